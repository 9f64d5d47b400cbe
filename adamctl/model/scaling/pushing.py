"""A push on its way: through the network into the busiest server, applied, copied, answered; and a fetch back (pure).

A worker's pushes leave one after another, since each shard has one connection. It has one fetch under way at most, and
what asks for one meanwhile is served by the next. Pushes that wait for a server's apply threads are applied together
(Adam 3.3.1). In step, parts wait until all replicas' have come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from adamctl.model.scaling.cluster import ReplicaWork, ServerWork
from adamctl.model.scaling.station import APPLY, IN, OUT, Station

_COPY = -1
Later = Callable[[float, int], None]
"""Told that a context's push, or a replica's fetch, is on its way back: the time, and which."""


class Pushing:
    """All pushes and fetches of all contexts, which are numbered replica by replica.

    Attributes:
        applied: pushes.
        rounds: that they were applied in.
    """

    def __init__(self, server: ServerWork, work: ReplicaWork, replicas: int, answered: Later, fetched: Later) -> None:
        self._server, self._work = server, work
        self._answered, self._fetched = answered, fetched
        self.station = Station(server.rates)
        self._outgoing: list[deque[int]] = [deque() for _ in range(replicas)]
        self._wanted: list[list[int]] = [[] for _ in range(replicas)]  # contexts that the next fetch is for
        self._fetching: list[list[int]] = [[] for _ in range(replicas)]
        self._waiting: list[int] = []
        self._applying: list[int] = []
        self._held: list[int] = []
        self._uncopied: list[int] = []
        self._copying: list[int] = []
        self._copies_left = 0
        self.parts = replicas
        self.load = 1.0
        self.applied = self.rounds = 0

    @property
    def next_s(self) -> float:
        return self.station.next_s

    def push(self, now_s: float, context: int) -> None:
        """A context pushes."""
        queue = self._outgoing[context // self._work.contexts]
        queue.append(context)
        if len(queue) == 1:
            self.station.add(now_s, IN, self._work.push_bytes * self.load, context)

    def fetch(self, now_s: float, context: int) -> None:
        """A context wants what is applied by now."""
        replica = context // self._work.contexts
        self._wanted[replica].append(context)
        if not self._fetching[replica]:
            self._begin_fetch(now_s, replica)

    def installed(self, now_s: float, replica: int) -> list[int]:
        """A fetch is in a replica's weights; returns the contexts that wanted it. The next one begins, if there is."""
        done, self._fetching[replica] = self._fetching[replica], []
        if self._wanted[replica]:
            self._begin_fetch(now_s, replica)
        return done

    def _begin_fetch(self, now_s: float, replica: int) -> None:
        self._fetching[replica], self._wanted[replica] = self._wanted[replica], []
        self.station.add(now_s, OUT, self._work.fetch_bytes * self.load, replica)

    def step(self) -> None:
        """Carries out what happens at `next_s`."""
        now_s = self.station.next_s
        lane, what = self.station.end()
        if what == _COPY:
            self._copied(now_s)
        elif lane == IN:
            queue = self._outgoing[what // self._work.contexts]
            queue.popleft()
            if queue:
                self.station.add(now_s, IN, self._work.push_bytes * self.load, queue[0])
            self._arrived(now_s, what)
        elif lane == OUT:
            self._fetched(now_s, what)
        else:
            done, self._applying = self._applying, []
            self._done(now_s, done)
            self._apply(now_s)

    def set_parts(self, now_s: float, parts: int) -> None:
        """Changes of how many replicas a step in step is."""
        self.parts = parts
        self._complete(now_s)

    def _arrived(self, now_s: float, context: int) -> None:
        if self._work.keeps_to_steps:
            self._held.append(context)
            self._complete(now_s)
        else:
            self._waiting.append(context)
            self._apply(now_s)

    def _complete(self, now_s: float) -> None:
        if self._held and len(self._held) >= self.parts:
            self._waiting += self._held
            self._held = []
            self._apply(now_s)

    def _apply(self, now_s: float) -> None:
        if self._applying or not self._waiting:
            return
        together, self._waiting = self._waiting, []
        self.rounds += 1
        seconds = self._server.first_s + (len(together) - 1) * self._server.more_s
        if seconds > 0:
            self._applying = together
            self.station.add(now_s, APPLY, seconds * self.load, 0)
        else:
            self._done(now_s, together)

    def _done(self, now_s: float, contexts: list[int]) -> None:
        self.applied += len(contexts)
        if self._server.copied_bytes:
            self._uncopied += contexts
            self._copy(now_s)
        else:
            self._answer(now_s, contexts)

    def _copy(self, now_s: float) -> None:
        if self._copying or not self._uncopied:
            return
        self._copying, self._uncopied = self._uncopied, []
        self._copies_left = 2  # as much goes out to its secondaries as comes in from others' primaries
        for lane in (OUT, IN):
            self.station.add(now_s, lane, self._server.copied_bytes, _COPY)

    def _copied(self, now_s: float) -> None:
        self._copies_left -= 1
        if not self._copies_left:
            done, self._copying = self._copying, []
            self._answer(now_s, done)
            self._copy(now_s)

    def _answer(self, now_s: float, contexts: list[int]) -> None:
        for context in contexts:
            self._answered(now_s, context)
