"""Detects the end of a process before its lease expires.

If its connection has closed and every address at which it listened refuses a new one, it is certainly gone. The
controllers check that themselves (`roles/controller/probing.py`). etcd has no connection to any process; if it keeps
the membership, each role checks the processes that it had a connection with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from adamctl.config.records import NodeRecord, node_key
from adamctl.errors import AdamctlError, UnreachableError
from adamctl.net.address import host_id, is_loopback, parse_address
from adamctl.net.transport import Request, Transport
from adamctl.roles.configuration import ConfigurationStore, read_record
from adamctl.wire.messages import Hello

PROBE_SOON_S = 0.1
"""Delay after a connection has closed: lets a process that only lost it come back, and is too short to matter."""
PROBE_AGAIN_S = 1.0
PROBE_DEADLINE_S = 1.0
PROBES_MAX = 64
WATCHED_S = 30.0
"""By then its lease has expired, unless that is a very long one."""
TELL_DEADLINE_S = 2.0


class MemberRemover(Protocol):
    """The part of `Membership` that removes a member, on condition that it is still this incarnation."""

    async def leave(self, node: str, incarnation: int, *, deadline_s: float) -> None: ...


class FailureDetector:
    """Checks the processes that one role had a connection with. Runs on its event loop."""

    def __init__(
        self,
        store: ConfigurationStore,
        remover: MemberRemover,
        transport: Transport,
        hello: Callable[[], Hello],
        *,
        stopping: asyncio.Event,
        log: logging.Logger,
    ) -> None:
        """
        Args:
            store: where the members are listed.
            remover: removes members that have ended.
            transport: how to reach others.
            hello: gives the identity to connect with.
            stopping: set when the role ends; no process is checked after that.
            log: gets the processes that have ended, and checks that failed.
        """
        self._store, self._remover = store, remover
        self._transport, self._hello = transport, hello
        self._stopping, self._log = stopping, log
        self._peers: dict[int, tuple[str, int]] = {}
        self._looking: dict[tuple[str, int], asyncio.Task[None]] = {}

    def met(self, request: Request) -> None:
        """Remembers the process at the other end of a connection."""
        peer = request.peer
        if peer.incarnation and request.connection_id not in self._peers:
            self._peers[request.connection_id] = (peer.node, peer.incarnation)

    def disconnected(self, connection_id: int) -> None:
        """Notes that a connection made to this process has closed."""
        peer = self._peers.pop(connection_id, None)
        if peer is not None:
            self.suspect(*peer)

    def suspect(self, node: str, incarnation: int) -> None:
        """Checks whether a process has ended after a connection with it closed, unless a check is running."""
        key = (node, incarnation)
        if self._stopping.is_set() or key in self._looking or len(self._looking) >= PROBES_MAX:
            return
        self._looking[key] = asyncio.create_task(self._look(node, incarnation))
        self._looking[key].add_done_callback(lambda _: self._looking.pop(key, None))

    async def close(self) -> None:
        looking = tuple(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    async def _look(self, node: str, incarnation: int) -> None:
        """Returns when the process is no longer a member, or answers."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WATCHED_S
        pause_s = PROBE_SOON_S
        while loop.time() < until_s:
            await asyncio.sleep(pause_s)
            pause_s = PROBE_AGAIN_S
            try:
                record = await self._member(node, incarnation)
                if record is None:
                    return
                lives = await looked_at(record, self._transport, self._hello)
                if lives:
                    return
                if lives is None:
                    continue
                await self._remover.leave(node, incarnation, deadline_s=TELL_DEADLINE_S)
            except AdamctlError as error:
                self._log.info("cannot find out whether %s is still running: %s", node, error)
            else:
                self._log.info("%s (incarnation %d) has ended: its addresses refuse connections", node, incarnation)
                return

    async def _member(self, node: str, incarnation: int) -> NodeRecord | None:
        found = await read_record(self._store, node_key(node), NodeRecord)
        return found[0] if found is not None and found[0].incarnation == incarnation else None


async def looked_at(record: NodeRecord, transport: Transport, hello: Callable[[], Hello]) -> bool | None:
    """Returns whether a node's process is alive. True: it answers; False: it has certainly ended; None: unknown.

    It has ended if each of its TCP addresses refuses connections or belongs to another process. A loopback address of
    another machine says nothing, and a node without any address cannot be judged.
    """
    addresses = [parse_address(text) for text in record.addresses if text.startswith("tcp://")]
    refused = 0
    for address in addresses:
        if is_loopback(address.host) and record.host != host_id():
            continue
        try:
            connection = await transport.connect(str(address), hello(), deadline_s=PROBE_DEADLINE_S)
        except UnreachableError as error:
            refused += isinstance(error.__cause__, ConnectionRefusedError)
        except AdamctlError:
            return None
        else:
            peer = connection.peer
            await connection.close()
            if (peer.node, peer.incarnation) == (record.node, record.incarnation):
                return True
            refused += 1
    return False if addresses and refused == len(addresses) else None
