"""Probes nodes that have closed their connection, to detect their end sooner than by missing beacons."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from adamctl.config.records import NodeRecord
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.core.service.events import Gone
from adamctl.roles.failure_detector import PROBE_AGAIN_S, PROBES_MAX, looked_at

Probing: TypeAlias = Callable[[NodeRecord], Awaitable[bool]]
"""Says whether a node's process has certainly ended."""


class Probes:
    """Probes of one controller. Runs on one event loop."""

    def __init__(
        self, probe: Probing | None, unconnected: Callable[[], Sequence[NodeRecord]], gone: Callable[[Gone], None]
    ) -> None:
        """`probe` is None if beacons alone decide."""
        self._probe = probe
        self._unconnected = unconnected
        self._gone = gone
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}  # by node and incarnation
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._loop = asyncio.get_running_loop()

    def later(self, after_s: float) -> None:
        """Probes all nodes that are not connected, after a delay and then every second while there are any."""
        if self._probe is None:
            return
        when_s = self._loop.time() + after_s
        if self._timer is not None:
            if self._timer_s <= when_s:
                return
            self._timer.cancel()
        self._timer_s = when_s
        self._timer = self._loop.call_at(when_s, self._all)

    def now(self, record: NodeRecord) -> None:
        """Probes one node, unless a probe of it is running."""
        key = (record.node, record.incarnation)
        if self._probe is None or key in self._running or len(self._running) >= PROBES_MAX:
            return
        self._running[key] = asyncio.create_task(self._run(self._probe, record, key))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._running.values():
            task.cancel()

    def _all(self) -> None:
        self._timer = None
        unconnected = self._unconnected()
        for record in unconnected:
            self.now(record)
        if unconnected:
            self.later(PROBE_AGAIN_S)

    async def _run(self, probe: Probing, record: NodeRecord, key: tuple[str, int]) -> None:
        try:
            if await probe(record):
                self._gone(Gone(*key))
        finally:
            del self._running[key]


async def has_ended(context: RoleContext, record: NodeRecord) -> bool:
    """Returns whether the node's process has certainly ended (`looked_at`)."""
    return await looked_at(record, context.transport, context.hello) is False
