"""Up to which flight a replica of several partitions may begin, where replicas may be only so many steps apart (pure).

A flight that trains is a step of the replica, done when all its members have finished it. The coordinator allows steps
up to a number (`adamctl.roles.coordinator.core.pace`). Only flights that have been announced are granted: so nothing is
left of what was allowed when the replica has nothing to do, and its members need never be told to forget a grant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class Stand(NamedTuple):
    """How far a replica is: steps done; the step it waits to begin, 0 if none; how often it has rested."""

    done: int
    wanted: int
    rests: int


class FlightGrants:
    """The flights of one replica, in the order of their numbers.

    Attributes:
        granted: the last flight that may begin, and with it all before.
        waits, wait_s: how often flights had to wait for the coordinator, and the total time.
    """

    def __init__(self, changed: Callable[[], None], grant: Callable[[int], None], clock: Callable[[], float]) -> None:
        """Args:
        changed: called when there is something to report to the coordinator.
        grant: called with `granted` when more flights may begin.
        clock: reads seconds.
        """
        self._changed, self._tell_granted, self._clock = changed, grant, clock
        self._waiting: deque[tuple[int, bool]] = deque()
        self._begun = self._done = self._limit = self._rests = 0
        self._since_s: float | None = None
        self.granted = 0
        self.waits = 0
        self.wait_s = 0.0

    def announced(self, number: int, trains: bool) -> None:
        """There is another flight. Evaluations are no steps, but come in their turn."""
        self._waiting.append((number, trains))
        self._grant()
        if self._waiting and self._since_s is None:
            self._since_s = self._clock()
            self.waits += 1
            self._changed()

    def finish(self) -> None:
        """All members have finished a flight that trained."""
        self._done += 1
        self._changed()

    def allow(self, limit: int, rests: int) -> None:
        """Allows steps up to `limit`, if the replica has not rested since `rests` was read."""
        if rests != self._rests or limit <= self._limit:
            return
        self._limit = limit
        self._grant()
        if self._since_s is not None:
            now_s = self._clock()
            self.wait_s += now_s - self._since_s
            self._since_s = now_s if self._waiting else None

    def rest(self) -> None:
        """There is nothing to train on: steps that were allowed become void."""
        self._limit = self._begun
        self._rests += 1

    def stand(self) -> Stand:
        return Stand(self._done, self._begun + 1 if self._waiting else 0, self._rests)

    def _grant(self) -> None:
        before = self.granted
        while self._waiting and (not self._waiting[0][1] or self._begun < self._limit):
            self.granted, trains = self._waiting.popleft()
            self._begun += trains
        if self.granted > before:
            self._tell_granted(self.granted)
