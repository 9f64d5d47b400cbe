"""A client's identity, and how a client that servers have forgotten continues under a new one without pushing twice."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from adamctl.config.names import as_name
from adamctl.errors import AdamctlError, RemoteError
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import cluster_client
from adamctl.roles.ps.client.parameter_client import Base, ParameterClient, PushOutcome, PushSet, RefusedPart
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Hello, NodeRegisterRequest

ROLE = "client"
CONNECT_DEADLINE_S = 5.0
LEAVE_DEADLINE_S = 2.0
JOIN_AGAIN_S = 30.0
log = logging.getLogger("adamctl.api")
RENEWALS_MAX = 3
"""Renewals for one push: a client that is forgotten as soon as it starts competes with too many others."""


def evicted(refused: Sequence[RefusedPart]) -> list[RefusedPart]:
    """Returns the parts that were refused because servers have forgotten the client's numbers."""
    return [part for part in refused if part.code == ErrorCode.CLIENT_EVICTED]


async def push_again(servers: ParameterClient, push: PushSet, parts: Sequence[RefusedPart]) -> PushOutcome:
    """Pushes parts of a forgotten client's push again, under the numbers of another client; as float32.

    Raises:
        RemoteError: CLIENT_EVICTED: a part was sent before and not acknowledged, so it may have been applied.
    """
    unsure = [part for part in parts if part.unsure]
    if unsure:
        what = f"shard {unsure[0].shard}: the servers forgot this client before they acknowledged one of its pushes"
        raise RemoteError(ErrorCode.CLIENT_EVICTED, f"{what}; it is unknown whether that push was applied")
    base = None if push.base is None else Base(push.base.pushes, np.zeros_like(push.base.sequences))
    return await servers.start_push(replace(push, base=base), exact=True, only=[part.shard for part in parts])


class Identity:
    """A client's identity in the cluster: a new name, and an incarnation given by the controllers.

    Attributes:
        store: the configuration service.
        node, incarnation: the incarnation is 0 while the client is not a member.
        listed: False once the controllers have given it up, as after a pause of this process. Servers know it by its
            incarnation and go on, but forget it after a while (`--retire-after`).
    """

    def __init__(self, transport: StreamTransport, addresses: Sequence[str], token: str, deadline_s: float) -> None:
        """Raises ConfigurationError: an address is malformed, or a package needed for etcd is not installed."""
        self._token, self._deadline_s, self._cluster = token, deadline_s, ""
        self.node, self.incarnation = _new_name(), 0
        if transport.tls is not None:
            self.node = transport.tls.current.identity.part(self.node)
        self.store = cluster_client(transport, addresses, self.hello, deadline_s=deadline_s)
        self._beacons: asyncio.Task[None] | None = None
        self.listed, self._again_s = True, 0.0

    def hello(self) -> Hello:
        return make_hello(ROLE, self.node, self.incarnation, self._token, cluster=self._cluster)

    async def begin(self) -> None:
        """Becomes a member of the cluster. Raises UnreachableError, HandshakeError."""
        process = secrets.randbits(62) | 1
        request = NodeRegisterRequest(self.node, ROLE, (), host_id(), os.getpid(), process=process)
        try:
            reply = await self.store.register(request, deadline_s=min(CONNECT_DEADLINE_S, self._deadline_s))
        except BaseException:
            await self.store.close()
            raise
        self.incarnation, self._cluster, self.listed = reply.incarnation, reply.cluster, True
        self._beacons = asyncio.create_task(self._send_beacons(reply.beacon_interval_s))

    async def may_join_again(self, pending: Collection[asyncio.Task[None]], deadline_s: float) -> bool:
        """Waits for pushes on their way and returns whether none is left: only then is a new incarnation as good.

        A push whose answer is still to come when servers forget its client may have been applied or not. Returns False
        at once for JOIN_AGAIN_S after it was asked, so that unreachable controllers hold up few pushes.
        """
        now_s = time.monotonic()
        if now_s < self._again_s:
            return False
        self._again_s = now_s + JOIN_AGAIN_S
        if pending:
            await asyncio.wait(set(pending), timeout=deadline_s)
        return not pending

    async def restart(self) -> None:
        """Becomes a member again, under the same name, which owns the jobs that it created. Raises as `begin`."""
        await self.end_beacons()
        await self.leave()
        await self.store.close()  # a connection belongs to one incarnation
        await self.begin()

    async def leave(self) -> None:
        """Ends the membership. Raises UnreachableError."""
        incarnation, self.incarnation = self.incarnation, 0
        if incarnation:
            await self.store.leave(self.node, incarnation, deadline_s=LEAVE_DEADLINE_S)

    async def end_beacons(self) -> None:
        beacons, self._beacons = self._beacons, None
        if beacons is not None:
            beacons.cancel()
            await asyncio.gather(beacons, return_exceptions=True)

    async def _send_beacons(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.store.beacon(self.node, self.incarnation, deadline_s=self._deadline_s)
            except RemoteError as error:
                log.warning("client %s is no longer listed: %s", self.node, error)
                self.listed = False
                return
            except AdamctlError as error:
                log.warning("client %s: %s", self.node, error)


class FormerClients:
    """Clients of a job's servers that have been replaced; each is closed when nothing of it is on its way."""

    def __init__(self, pulling: asyncio.Lock) -> None:
        """`pulling`: held by whoever pulls with the client that is present then."""
        self._pulling = pulling
        self._ending: dict[asyncio.Task[None], ParameterClient] = {}
        self._rolled_back = 0

    @property
    def rolled_back(self) -> int:
        """Number of their acknowledged shard updates that were lost."""
        return self._rolled_back + sum(servers.rollbacks.numbers for servers in self._ending.values())

    def add(self, servers: ParameterClient) -> None:
        """Takes a client that nothing more is asked of."""
        ending = asyncio.create_task(self._end(servers))
        self._ending[ending] = servers
        ending.add_done_callback(self._ended)

    async def _end(self, servers: ParameterClient) -> None:
        await servers.idle()
        async with self._pulling:
            await servers.close()

    def _ended(self, ending: asyncio.Task[None]) -> None:
        self._rolled_back += self._ending.pop(ending).rollbacks.numbers
        if not ending.cancelled() and ending.exception() is not None:
            log.error("a former client was not closed", exc_info=ending.exception())

    async def close(self) -> None:
        """Abandons what is on its way."""
        ending = dict(self._ending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for servers in ending.values():
            await servers.close()


def _new_name() -> str:
    """Returns a name that no client has had before."""
    return f"{ROLE}-{as_name(platform.node())[:60]}-{os.getpid()}-{secrets.token_hex(4)}"
