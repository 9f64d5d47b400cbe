"""Workers that a run cannot use: of another version or plan, or out of the reach of others (pure).

A worker that derives another plan is known as such at once. That two workers cannot reach each other may be for a
moment only, since a process may just have died: it takes several groups, one after the other, that end before they
begin because of the same two processes. A worker that cannot be used stays out for good; another process of its name
may come. If it leaves a run without a replica, and no others come, the run has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple, TypeVar

from adamctl.roles.coordinator.core.work import WorkerKey

NODES_REMEMBERED_MAX = 1024
"""Of how many nodes, or pairs of them, it is remembered that they were dropped or cannot be used."""
ATTEMPTS_MAX = 3
"""How many groups in a row the same two processes may spoil by not reaching each other."""
OTHERS_WITHIN_S = 5.0
"""How long after a worker turned out to be of no use others may form a replica without it."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Misfit(NamedTuple):
    """A process that cannot be used: `code` and `text` refuse it when it joins."""

    incarnation: int
    code: int
    text: str


class Misfits:
    """Those of one run.

    Attributes:
        cause: why the run has no replica, while that is because of a worker that cannot be used; "" otherwise.
    """

    def __init__(self) -> None:
        self.cause = ""
        self._known: dict[str, Misfit] = {}
        self._attempts: dict[frozenset[WorkerKey], int] = {}
        self._since_s = inf

    def find(self, worker: WorkerKey) -> Misfit | None:
        """Returns why a worker cannot be used; None: it can be."""
        found = self._known.get(worker[0])
        return found if found is not None and found.incarnation == worker[1] else None

    def add(self, worker: WorkerKey, code: int, text: str, now_s: float) -> None:
        """Notes that a process cannot be used."""
        remember(self._known, worker[0], Misfit(worker[1], code, text))
        self.cause, self._since_s = text, now_s

    def apart(self, one: WorkerKey, other: WorkerKey) -> int:
        """Counts a group that has ended because these two do not reach each other; returns how many it were."""
        pair = frozenset((one, other))
        count = self._attempts.get(pair, 0) + 1
        remember(self._attempts, pair, count)
        return count

    def began(self, members: Iterable[WorkerKey]) -> None:
        """Notes that a group works: its members reach each other, and the run has a replica."""
        together = frozenset(members)
        for pair in [pair for pair in self._attempts if pair <= together]:
            del self._attempts[pair]
        self.cause, self._since_s = "", inf

    def due_s(self, alone_since_s: float) -> float:
        """Returns when the run has failed if it has no replica by then; inf for never."""
        return max(self._since_s, alone_since_s) + OTHERS_WITHIN_S


def remember(found: dict[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
    """Notes something under a key, and forgets what was noted longest ago if there is too much."""
    found.pop(key, None)
    found[key] = value
    if len(found) > NODES_REMEMBERED_MAX:
        del found[next(iter(found))]
