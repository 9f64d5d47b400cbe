"""What the shells of a simulated server see of the cluster: its configuration, its members, its log of messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from adamctl.config.records import NodeRecord
from adamctl.errors import AdamctlError, UnreachableError
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.service.events import Event, Read, Watch
from adamctl.wire.changes import Changes
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigEntry,
    ConfigReadReply,
    ConfigWatchReply,
    HelloReply,
)
from tests.sim.controllers.clients import Caller
from tests.sim.processes.process import WATCH_S, Member
from tests.sim.servers.shells.requests import SimConnection

if TYPE_CHECKING:
    from tests.sim.processes.loop import SimLoop
    from tests.sim.servers.shells.server import SimServer

CALL_S = 3.0
CALLS_S_MAX = 20.0
"""As long as a real client tries."""


class SimConfiguration:
    """`ConfigurationStore` of one process, over the simulated controllers."""

    def __init__(self, loop: SimLoop, member: Member) -> None:
        self._loop, self._member = loop, member
        self._idle: list[Caller] = []

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        answer = await self._answered(lambda token: Read(token, prefix), CALL_S)
        assert isinstance(answer.message, ConfigReadReply)
        return answer.message.revision, list(answer.entries or ())

    async def compare_and_set(self, changes: ConfigChanges) -> ConfigCompareAndSetReply:
        future: asyncio.Future[ConfigCompareAndSetReply | None] = self._loop.create_future()
        self._member.compare_and_set(changes, self._teller(future))
        reply = await future
        if reply is None:
            raise UnreachableError("no controller has answered")
        return reply

    async def watch(self, prefix: str, after_revision: int, wait_s: float) -> Changes:
        until_s = self._loop.time() + wait_s
        while True:
            asked = after_revision
            answer = await self._answered(
                lambda token, asked=asked: Watch(token, self._member.connection, prefix, asked, WATCH_S),  # type: ignore[misc]
                CALL_S,
            )
            reply = answer.message
            assert isinstance(reply, ConfigWatchReply)
            entries = answer.entries or ()
            if entries or reply.deleted or reply.reset or self._loop.time() >= until_s:
                return Changes(reply.revision, entries, reply.deleted, reply.reset)
            after_revision = reply.revision

    async def _answered(self, event: Callable[[int], Event], call_s: float) -> Answer:
        """Asks until it is answered, as the real client does."""
        until_s = self._loop.time() + CALLS_S_MAX
        while True:
            future: asyncio.Future[Answer | Refuse | None] = self._loop.create_future()
            caller = (
                self._idle.pop() if self._idle else Caller(self._member.view, self._member.name, self._member.hosts)
            )  # type: ignore[arg-type]
            caller.call(event, self._teller(future), call_s)
            answer = await future
            self._idle.append(caller)
            if isinstance(answer, Answer):
                return answer
            if self._loop.time() >= until_s:
                raise UnreachableError("no controller has answered")
            await asyncio.sleep(0.05)

    def _new_caller(self) -> Caller:
        member = self._member
        return Caller(member.view, member.name, member.hosts)  # type: ignore[arg-type]

    def _teller(self, future: asyncio.Future[Any]) -> Callable[[Any], None]:
        def tell(answer: Any) -> None:
            self._loop.do(lambda: None if future.done() else future.set_result(answer))

        return tell


class SimLog:
    """Takes what is logged into the trace; what a shell did not expect is a violation."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    def debug(self, text: str, *details: object) -> None:
        self._note(text, details)

    def info(self, text: str, *details: object) -> None:
        self._note(text, details)

    def warning(self, text: str, *details: object) -> None:
        self._note(text, details)

    def error(self, text: str, *details: object, exc_info: BaseException | None = None) -> None:
        self._note(text, details)
        if exc_info is not None:
            self._server.shell_failed(exc_info, text)

    def exception(self, text: str, *details: object) -> None:
        self._note(text, details)
        error = sys.exc_info()[1]
        assert error is not None
        self._server.shell_failed(error, text)

    def _note(self, text: str, details: tuple[object, ...]) -> None:
        world = self._server.world
        if world.keep_trace:
            world.note(self._server.name, "logs", text % details if details else text)


class _Served:
    """What listens."""

    region_bytes = 0

    def connections_by_kind(self) -> dict[str, int]:
        return {}


class SimContext(RoleContext):
    """The context of one process."""

    server: SimServer

    async def serve(self, handler: Any, **others: Any) -> Any:
        """Waits until the process is registered, and hands over who answers."""
        await self.server.registered
        self.incarnation = self.server.incarnation
        self._ready = True
        self.server.open(handler, others["on_disconnect"], others["arriving"])
        return _Served()

    async def connect(self, node: str | NodeRecord, deadline_s: float, *, takes: Any = "clients") -> Any:
        """Shakes hands with the process that has a name now."""
        assert isinstance(node, NodeRecord)
        server, peer = self.server, self.server.peers[node.node]
        loop, view = server.loop, server.view
        future: asyncio.Future[tuple[int, int]] = loop.create_future()

        def settle(outcome: tuple[int, int] | None) -> None:
            def done() -> None:
                if future.done():
                    return
                if outcome is None:
                    future.set_exception(UnreachableError(f"{node.node} cannot be reached"))
                else:
                    future.set_result(outcome)

            server.gate(view.run, lambda: loop.do(done))

        def greet() -> None:
            if not peer.alive or not peer.ready:
                settle(None)
                return
            run = peer.run
            peer.gate(
                run,
                lambda: peer.view.send_reliably(
                    server.name, lambda: settle((run, peer.incarnation)), lambda: settle(None)
                ),
            )

        view.send_reliably(peer.name, greet, lambda: settle(None))
        timer = loop.call_later(deadline_s, lambda: settle(None))
        try:
            run, incarnation = await future
        finally:
            timer.cancel()
        if peer.run != run:
            raise UnreachableError(f"{node.node} has ended")
        return SimConnection(server, peer, HelloReply(1, (), "ps", node.node, incarnation, 1 << 30))

    def lost_sight_of(self, node: str, incarnation: int) -> None:
        """Supervisors tell, in the simulator."""

    def fail(self, error: AdamctlError) -> None:
        """The process would end with an error."""
        self.server.violated(f"{self.server.name} ends: {error}")
