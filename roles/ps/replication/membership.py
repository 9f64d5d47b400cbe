"""Follows which parameter servers are live, and which of them are being drained."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from adamctl.config.records import NodeRecord, node_key
from adamctl.errors import UnreachableError
from adamctl.roles.configuration import follow_on
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.replication.core.node_keys import DRAINS_PREFIX, NODES_PREFIX, NodeKeys, NodeView


class Neighbours:
    """What is known about other servers."""

    def __init__(
        self,
        context: RoleContext,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after each change."""
        assert context.controller is not None
        self._store, self._log, self._spawn = context.controller, context.log, spawn
        self._changed = changed
        self._keys = NodeKeys()

    def begin(self) -> None:
        """Starts to follow the keys of servers and of drains."""
        self._spawn(self._follow(DRAINS_PREFIX))
        self._spawn(self._follow(NODES_PREFIX))

    @property
    def told(self) -> bool:
        """Whether everything has been read at least once."""
        return self._keys.told

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        return self._keys.nodes

    @property
    def records(self) -> Mapping[str, NodeRecord]:
        return self._keys.records

    @property
    def draining(self) -> frozenset[str]:
        return self._keys.draining

    async def _follow(self, prefix: str) -> None:
        take = self._keys.take_nodes if prefix == NODES_PREFIX else self._keys.take_drains
        away = partial(self._log.warning, "the controller cannot be reached, so live servers are unknown: %s")
        async for changes in follow_on(self._store, prefix, away):
            take(changes)
            self._changed()

    def read(self, node: str, then: Callable[[], None]) -> None:
        """Reads a server's key again: the server has been silent for long, and the watch may lag."""
        self._spawn(self._read(node, then))

    async def _read(self, node: str, then: Callable[[], None]) -> None:
        key = node_key(node)
        try:
            revision, entries = await self._store.read(key)
        except UnreachableError as error:
            self._log.warning("%s is silent and its key cannot be read: %s", node, error)
            return
        self._keys.found(node, next((entry for entry in entries if entry.key == key), None), revision)
        then()
