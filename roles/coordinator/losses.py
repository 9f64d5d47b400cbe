"""Watches the servers of a run, and carries out the instructions of the core. Everything runs on the event loop.

A node that the run needs is found to be gone within seconds: by a broken connection, a deleted key, a new incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from math import inf
from typing import Any

from adamctl.config.records import NodeRecord, node_key
from adamctl.errors import AdamctlError, ProtocolError, RunFailedError, UnreachableError
from adamctl.net.transport import Connection
from adamctl.roles.configuration import ConfigurationStore, follow_on, nodes_of, read_record
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator.core import events, losses
from adamctl.roles.coordinator.core.instructions import (
    AttachAgain,
    FailRun,
    Instruction,
    LoseWorker,
    ReadKeys,
    Say,
    WatchServer,
)
from adamctl.roles.coordinator.core.losses import LossCore
from adamctl.roles.coordinator.core.membership import Membership
from adamctl.roles.coordinator.service import RunService

_LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 0.25
CONNECT_S = 4.0


class Losses:
    """The shell of `LossCore`.

    Attributes:
        core: the state machine whose instructions are carried out.
        any_data_server: workers read from every data server of the cluster, not only from those the run began with.
    """

    def __init__(
        self,
        core: LossCore,
        context: RoleContext,
        service: RunService,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        fail: Callable[[AdamctlError], None],
        attach: Callable[[float], Awaitable[None]],
    ) -> None:
        """`spawn` starts an activity whose error ends the run; `attach(deadline_s)` has the run's client attach."""
        assert context.controller is not None
        self.core, self._context, self._service = core, context, service
        self._store: ConfigurationStore = context.controller
        self._members = Membership(dict((*core.servers, *core.data)))
        self._spawn, self._fail, self._attach = spawn, fail, attach
        self._loop = asyncio.get_running_loop()
        self.any_data_server = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf

    def begin(self) -> None:
        """Starts to watch all servers and the membership of the cluster."""
        for instruction in self.core.begin():
            self._carry_out(instruction)
        self._spawn(watch_nodes(self._store, self._members, lambda *key: self._step(losses.NodeGone(*key))))

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _step(self, event: losses.Event) -> None:
        for instruction in self.core.step(event, self._loop.time()):
            self._carry_out(instruction)
        self._set_timer()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Say(text):
                self._service.say(text)
            case LoseWorker(node, incarnation, cause):
                self._service.step(events.WorkerLost(node, incarnation, cause))
            case FailRun(cause):
                self._fail(RunFailedError(cause))
            case WatchServer(server):
                self._spawn(watch_server(self._context, server, partial(self._server_lost, server)))
            case ReadKeys(wait, nodes):
                self._spawn(self._read_keys(wait, nodes))
            case AttachAgain(node, deadline_s):
                self._spawn(self._attach_again(node, deadline_s))

    def _server_lost(self, server: NodeRecord, cause: str) -> None:
        self._step(losses.ServerLost(server.node, server.incarnation, cause))

    async def _read_keys(self, wait: int, nodes: tuple[str, ...]) -> None:
        records: list[NodeRecord] = []
        with contextlib.suppress(UnreachableError):
            if self.any_data_server and nodes == self.core.data_nodes:
                found_nodes = nodes_of((await self._store.read("/nodes/"))[1], "data")
                nodes = tuple(record.node for record in found_nodes)
            for node in nodes:
                found = await read_record(self._store, node_key(node), NodeRecord)
                if found is not None:
                    record, revision = found
                    records.append(record)
                    self._members.found(node, record.incarnation, revision)
        self._step(losses.KeysRead(wait, tuple(records)))

    async def _attach_again(self, node: str, deadline_s: float) -> None:
        await self._attach(deadline_s)
        self._step(losses.Attached(node))

    def _set_timer(self) -> None:
        due_s = self.core.wakeup_s()
        if due_s == self._timer_s:
            return
        self.close()
        self._timer, self._timer_s = None, due_s
        if due_s < inf:
            self._timer = self._loop.call_at(due_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_s = None, inf
        self._step(events.Tick())


async def watch_server(context: RoleContext, record: NodeRecord, gone: Callable[[str], None]) -> None:
    """Keeps a connection to a server; calls `gone` once, with the cause, when the server is gone.

    A server that does not answer may just be busy: it counts as gone when it refuses, and `watch_nodes` notices the
    rest.
    """
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        while True:
            if connection is None or connection.closed:
                asked_s = loop.time()
                try:
                    connection = await context.connect(record, CONNECT_S)
                except (UnreachableError, ProtocolError) as error:
                    if loop.time() - asked_s < CONNECT_S / 2:
                        gone(str(error))
                        return
                    continue
                if connection.peer.incarnation == 0:
                    await connection.close()  # the controllers have registered it, but it has not heard of that yet
                elif connection.peer.incarnation != record.incarnation:
                    gone("it has restarted, and what it held is lost")
                    return
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        if connection is not None:
            await connection.close()


async def watch_nodes(store: ConfigurationStore, members: Membership, gone: Callable[[str, int], None]) -> None:
    """Follows `/nodes/`; calls `gone(node, incarnation)` for every process that is a member no more. Never returns."""
    away = partial(_LOG.warning, "the configuration service cannot be reached, so lost members are not noticed: %s")
    async for changes in follow_on(store, "/nodes/", away):
        found = {record.node: record.incarnation for record in nodes_of(changes.entries)}
        deleted = {key.removeprefix("/nodes/") for key in changes.deleted}
        for node, incarnation in members.take(found, deleted, changes.reset, changes.revision):
            gone(node, incarnation)
