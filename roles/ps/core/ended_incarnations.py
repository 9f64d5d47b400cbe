"""Finds ended incarnations if etcd keeps the configuration (pure); the controllers have their own counterpart.

With etcd there is no leader. Every parameter server reads the nodes now and then, and the one with the lowest live
incarnation writes the record. If two servers both write, no harm is done: the change is conditional on the record's
revision.

Incarnations are etcd revisions, with gaps. Every incarnation up to a revision that was current one horizon ago, and not
seen alive since, ended at least that long ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adamctl.config.records import NodeRecord, RetiredRecord


class EndedIncarnations:
    """What one server has seen of the nodes."""

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._looks: deque[tuple[float, int]] = deque()  # (time, revision); the first is at least a horizon old
        self._first = 0
        self._alive: frozenset[int] = frozenset()
        self._gone: dict[int, float] = {}

    def note(self, now: float, revision: int, alive: Iterable[int]) -> None:
        """Notes which incarnations were alive at a revision."""
        living = frozenset(alive)
        for one in self._alive - living:
            self._gone[one] = now
        self._alive = living
        self._first = self._first or revision
        self._looks.append((now, revision))
        while len(self._looks) > 1 and now - self._looks[1][0] >= self._horizon_s:
            self._looks.popleft()

    def record(self, now: float, known: RetiredRecord) -> RetiredRecord | None:
        """Returns the record that should replace `known`; None if no incarnation has ended since."""
        self._gone = {one: since_s for one, since_s in self._gone.items() if not known.has(one)}
        if not self._looks or now - self._looks[0][0] < self._horizon_s:
            return None
        waiting = {one for one, since_s in self._gone.items() if now - since_s < self._horizon_s}
        if not self._gone.keys() - waiting and known.floor >= self._first:
            return None
        floor = max(known.floor, self._looks[0][1], *self._gone.keys() - waiting)
        kept = sorted(one for one in {*self._alive, *waiting} if one <= floor and not known.has(one))
        return RetiredRecord(floor, tuple(kept))


def is_first(node: str, nodes: Iterable[NodeRecord]) -> bool:
    """Returns whether this parameter server is the live one that writes the record."""
    servers = sorted((one.incarnation, one.node) for one in nodes if one.role == "ps")
    return bool(servers) and servers[0][1] == node
