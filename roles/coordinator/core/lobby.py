"""Workers that have joined and have no group yet, and which of them form the next one (pure).

Where a replica has several partitions, every `partitions` workers form a group. Workers of one host come first, since
partitions exchange much. Workers of several hosts form a group only after a moment in which others of one host may
come. Whoever was dropped from groups before comes last. Only workers with a waiting request are taken, so that each
learns of its group at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from adamctl.roles.coordinator.core.events import WorkerJoins
from adamctl.roles.coordinator.core.work import WorkerKey

MIX_AFTER_S = 2.0
"""How long there must have been enough workers for a group before it may span hosts."""
ASKS_AGAIN_S = 5.0
"""How long a worker whose waiting request was answered is still counted as one that waits."""
GUESTS_MAX = 1024
"""As many as a server has connections."""


@dataclass(slots=True)
class Guest:
    """A worker in the lobby.

    `place`: its place in the order of arrival, which it keeps when it asks again. `waits`: its request is still to be
    answered, at `until_s` at the latest; if not, it is forgotten then. `drops`: how often its node was dropped.
    """

    joins: WorkerJoins
    place: int
    until_s: float
    drops: int = 0
    waits: bool = True

    @property
    def key(self) -> WorkerKey:
        return self.joins.node, self.joins.incarnation

    @property
    def host(self) -> str:
        """Its host; a worker that does not know its host has one of its own."""
        return self.joins.host or f"?{self.joins.node}"


class Lobby:
    """The lobby of one run. At most one guest of each node.

    Attributes:
        guests: by node.
    """

    def __init__(self, partitions: int) -> None:
        assert partitions >= 1
        self.partitions = partitions
        self.guests: dict[str, Guest] = {}
        self._last_place = 0
        self._enough_since_s = inf

    def __len__(self) -> int:
        return len(self.guests)

    @property
    def full(self) -> bool:
        return len(self.guests) >= GUESTS_MAX

    def put(self, joins: WorkerJoins, now_s: float, drops: int = 0) -> Guest | None:
        """Takes a worker in; returns what it was before, if the same process or another of that name was here."""
        before = self.guests.pop(joins.node, None)
        if before is None or before.joins.incarnation != joins.incarnation:
            self._last_place += 1
            place = self._last_place
        else:
            place = before.place
        self.guests[joins.node] = Guest(joins, place, now_s + joins.wait_s, drops)
        return before

    def remove(self, worker: WorkerKey) -> Guest | None:
        """Takes a worker out; returns it if it was here."""
        guest = self.guests.get(worker[0])
        if guest is None or guest.key != worker:
            return None
        return self.guests.pop(worker[0])

    def clear(self) -> list[Guest]:
        """Takes all of them out."""
        guests, self.guests = list(self.guests.values()), {}
        return guests

    def expire(self, now_s: float) -> list[Guest]:
        """Returns the workers whose wait is over. They are counted for a moment longer, as they may ask again."""
        over = [guest for guest in self.guests.values() if now_s >= guest.until_s]
        for guest in over:
            if guest.waits:
                guest.waits, guest.until_s = False, now_s + ASKS_AGAIN_S
            else:
                del self.guests[guest.joins.node]
        return [guest for guest in over if guest.joins.node in self.guests]

    def choose(self, now_s: float) -> list[Guest]:
        """Takes out the workers that form the next group, in the order of their partitions; empty if none can."""
        if len(self.guests) < self.partitions:
            self._enough_since_s = inf
            return []
        self._enough_since_s = min(self._enough_since_s, now_s)
        chosen = self._of_one_host()
        if not chosen and now_s >= self._enough_since_s + MIX_AFTER_S:
            chosen = self._of_several_hosts()
        for guest in chosen:
            del self.guests[guest.joins.node]
        return chosen

    def wakeup_s(self, now_s: float, wanted: bool) -> float:
        """Returns when a wait is over, or, with `wanted`, when a group may span hosts; inf for never."""
        times = [guest.until_s for guest in self.guests.values()]
        if wanted and now_s < self._enough_since_s + MIX_AFTER_S:
            times.append(self._enough_since_s + MIX_AFTER_S)
        return min(times, default=inf)

    def _waiting(self) -> list[Guest]:
        waiting = [guest for guest in self.guests.values() if guest.waits]
        return sorted(waiting, key=lambda guest: (guest.drops, guest.place))

    def _of_one_host(self) -> list[Guest]:
        for found in _by_host(self._waiting()):
            if len(found) >= self.partitions:
                return found[: self.partitions]
        return []

    def _of_several_hosts(self) -> list[Guest]:
        """From as few hosts as possible, workers of one host side by side, and nobody who was dropped without need."""
        waiting = self._waiting()
        if len(waiting) < self.partitions:
            return []
        drops_max = waiting[self.partitions - 1].drops
        hosts = _by_host([guest for guest in waiting if guest.drops <= drops_max])
        together = [guest for found in sorted(hosts, key=len, reverse=True) for guest in found]
        return together[: self.partitions]


def _by_host(guests: Sequence[Guest]) -> list[list[Guest]]:
    """Returns the guests of each host, hosts in the order of their first guest."""
    hosts: dict[str, list[Guest]] = {}
    for guest in guests:
        hosts.setdefault(guest.host, []).append(guest)
    return list(hosts.values())
