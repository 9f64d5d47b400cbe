"""Which nodes are alive and when each was last heard from; the leader's view is the one that counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from adamctl.config.records import NodeRecord
from adamctl.roles.controller.core.service.commands import node_in
from adamctl.roles.controller.core.service.state import KeyState

NODES_PREFIX = "/nodes/"


@dataclass
class Node:
    """A living node.

    Attributes:
        connection: where it was last heard from, None once that is closed.
        parting: the leader has proposed to remove it; its beacons are no longer confirmed.
    """

    record: NodeRecord
    heard_s: float
    connection: int | None
    parting: bool = False


class NodeTable:
    """The nodes that the keys under `/nodes/` name, and the times that are not in the log."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def follow(self, state: KeyState, keys: Iterable[str], now: float) -> None:
        """Updates the nodes to match these keys. A key whose value is not a node's record is kept and ignored."""
        for key in keys:
            if key.startswith(NODES_PREFIX):
                record = node_in(state, key)
                name = key.removeprefix(NODES_PREFIX)
                if record is None:
                    self._nodes.pop(name, None)
                else:
                    self._nodes[name] = Node(record, now, None)

    def restore(self, state: KeyState, now: float) -> None:
        """Replaces all nodes with those that the keys name."""
        self._nodes.clear()
        self.follow(state, (entry.key for entry in state.read(NODES_PREFIX)), now)

    def refresh(self, now: float, *, keep_connections: bool = False) -> None:
        """Counts every node as heard from now."""
        for node in self._nodes.values():
            node.heard_s = now
            if not keep_connections:
                node.connection = None
                node.parting = False

    def disconnected(self, connection: int) -> None:
        for node in self._nodes.values():
            if node.connection == connection:
                node.connection = None
