"""The live parameter servers, and which of them are draining, according to the configuration service (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adamctl.config.records import DrainRecord, NodeRecord, RecordT, decode
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry
from adamctl.wire.unreadable import UNREADABLE

NODES_PREFIX = "/nodes/"
DRAINS_PREFIX = "/drains/"
ROLE = "ps"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live server in the configuration service; `revision`: of its key, from when the process registered."""

    record: NodeRecord
    revision: int


class NodeKeys:
    """Everything under `/nodes/` and `/drains/`, kept up to date from changes.

    Results of the watch and of reads may come in any order. The watch reports every change eventually, so it may lag. A
    read older than what is known is ignored, since the newer state would not be reported again.

    Attributes:
        nodes: live parameter servers by name.
        told: whether both prefixes have been read at least once.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeView] = {}
        self._drains: dict[str, DrainRecord] = {}
        self._read: set[str] = set()
        self._watched = 0  # the revision that the watch under `/nodes/` has reached
        self._looked: dict[str, int] = {}  # server -> the revision at which its key was last read

    @property
    def told(self) -> bool:
        return len(self._read) == 2

    @property
    def records(self) -> Mapping[str, NodeRecord]:
        return {name: view.record for name, view in self.nodes.items()}

    @property
    def draining(self) -> frozenset[str]:
        """Servers that should hold nothing; a process started after the drain was requested is not included."""
        return frozenset(
            node
            for node, drain in self._drains.items()
            if node in self.nodes and self.nodes[node].record.incarnation == drain.incarnation
        )

    def take_nodes(self, changes: Changes) -> None:
        """Takes in changes under `/nodes/`; unreadable records are ignored."""
        self._read.add(NODES_PREFIX)
        self._watched = changes.revision
        if changes.reset:
            self.nodes.clear()
            self._looked.clear()
        for entry in changes.entries:
            name = entry.key.removeprefix(NODES_PREFIX)
            if self._looked.get(name, -1) > changes.revision:
                continue  # a read is newer than the watch
            self.nodes.pop(name, None)
            self._put(name, entry)
        for key in changes.deleted:
            name = key.removeprefix(NODES_PREFIX)
            if self._looked.get(name, -1) <= changes.revision:
                self.nodes.pop(name, None)

    def take_drains(self, changes: Changes) -> None:
        """Takes in changes under `/drains/`."""
        self._read.add(DRAINS_PREFIX)
        if changes.reset:
            self._drains.clear()
        for entry in changes.entries:
            record = _decoded(entry.value, DrainRecord)
            if record is not None:
                self._drains[entry.key.removeprefix(DRAINS_PREFIX)] = record
        for key in changes.deleted:
            self._drains.pop(key.removeprefix(DRAINS_PREFIX), None)

    def found(self, name: str, entry: ConfigEntry | None, revision: int) -> None:
        """Takes in the result of reading one server's key at a revision; None if there is no such key."""
        if revision < max(self._watched, self._looked.get(name, -1)):
            return
        self._looked[name] = revision
        self.nodes.pop(name, None)
        if entry is not None:
            self._put(name, entry)

    def _put(self, name: str, entry: ConfigEntry) -> None:
        record = _decoded(entry.value, NodeRecord)
        if record is not None and record.role == ROLE and record.node == name:
            self.nodes[name] = NodeView(record, entry.revision)


def _decoded(value: bytes, kind: type[RecordT]) -> RecordT | None:
    try:
        return decode(value, kind)
    except UNREADABLE:
        return None
