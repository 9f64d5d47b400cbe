"""Asks nodes that have closed their connection whether they are still there: sooner than beacons could be missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from adamctl.config.records import NodeRecord
from adamctl.errors import AdamctlError, UnreachableError
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.core_events import Gone

PROBE_SOON_S = 0.1
"""After a connection has closed: time for a process that only lost it to come back, too short for anybody to notice."""
PROBE_AGAIN_S = 1.0
PROBE_DEADLINE_S = 1.0
PROBES_MAX = 64

Probing: TypeAlias = Callable[[NodeRecord], Awaitable[bool]]
"""Says whether a node's process has certainly ended."""


class Probes:
    """Probes of one controller. Runs on one event loop."""

    def __init__(
        self, probe: Probing | None, unconnected: Callable[[], Sequence[NodeRecord]], gone: Callable[[Gone], None]
    ) -> None:
        """`probe` is None where beacons alone decide."""
        self._probe = probe
        self._unconnected = unconnected
        self._gone = gone
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}  # by node and incarnation
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._loop = asyncio.get_running_loop()

    def later(self, after_s: float) -> None:
        """Then probes all nodes that are not connected, and again every second while there are any."""
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
        """Probes one node, unless that is being done."""
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
    """Returns whether the node's process has certainly ended: every TCP address it had refuses connections."""
    refused = 0
    addresses = [address for address in record.addresses if address.startswith("tcp://")]
    for address in addresses:
        try:
            connection = await context.transport.connect(address, context.hello(), deadline_s=PROBE_DEADLINE_S)
        except UnreachableError as error:
            refused += isinstance(error.__cause__, ConnectionRefusedError)
        except AdamctlError:
            return False
        else:
            other = (connection.peer.node, connection.peer.incarnation) != (record.node, record.incarnation)
            await connection.close()
            refused += other
    return bool(addresses) and refused == len(addresses)
