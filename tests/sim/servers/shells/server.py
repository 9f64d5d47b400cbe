"""A parameter server in the simulator: its real shells and cores; its loop, disk, threads and links take time.

`processes.loop` is its event loop, `log_disk` its disk, `requests` its links, `context` its view of the cluster;
`state` is what it holds, `checks` what must hold of it. Here are its life and its membership.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from adamctl.errors import AdamctlError
from adamctl.roles.controller.core.service.events import Disconnected
from adamctl.roles.lease import Lease
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.flush import FlushConfig
from adamctl.roles.ps.core.instructions import Apply, Refuse
from adamctl.roles.ps.options import ServerOptions
from adamctl.roles.ps.server import ParameterServer
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachReply, AttachRequest, Hello, Message, PullReply, PushRequest
from tests.sim.engine import ViolationError
from tests.sim.processes.link import End
from tests.sim.processes.loop import Abandoned, SimLoop, start
from tests.sim.processes.process import Member, RunView
from tests.sim.servers.shells.apply import SimApply
from tests.sim.servers.shells.checkpoint import SimRoots
from tests.sim.servers.shells.checks import ServerChecks
from tests.sim.servers.shells.context import SimConfiguration, SimContext, SimLog
from tests.sim.servers.shells.log_disk import SimLogStore
from tests.sim.servers.shells.requests import Fail, Send, SimConnection, SimRequest

if TYPE_CHECKING:
    from tests.sim.servers.clients.lanes import Respond

FLUSH = FlushConfig(window_s=1.0, window_bytes=1 << 20, retry_s=0.1, log_slack_bytes=1 << 12, group_bytes=1 << 12)
OPTIONS = ServerOptions(0, 1 << 30, None, FLUSH)
ON_THE_WAY = 0.3
"""Pushes that are applied while they arrive, as far as they can be."""
CUT_OFF, PIECE_S_MAX = 0.02, 0.002
"""How often the connection ends before a part, and how long one takes at most to follow the one before."""
ENDS_UNHEARD = 0.2
"""How often nobody tells a real client that the process has ended, as when its host has."""


class SimServer(ServerChecks):
    """One parameter server, process after process.

    Attributes:
        apply_s_max: longest batch.
        peers: all servers by name, itself among them.
        on_crash: is told of each end of a process.
        from_receipt: planted fault: the lease counts from when the answer came.
        failure_domain: the machine that it stands for.
        registered: done when the controllers have taken the process in.
        connections: that the process has made to other servers.
        accepted: ends of those that real clients have made to the process.
    """

    apply_s_max = 0.001
    peers: Mapping[str, SimServer]
    on_crash: Callable[[SimServer], None] = staticmethod(lambda _: None)
    last_connection = 0
    from_receipt = False
    failure_domain = ""
    view: RunView
    loop: SimLoop
    registered: asyncio.Future[None]
    connections: list[SimConnection]
    accepted: list[End]
    _handle: Callable[[Any], None]
    _arriving: Callable[[Any], Any]
    _on_disconnect: Callable[[int], None]

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.alive:
            return
        self.view = self.begin()
        self.world.note(self.name, "starts", "run", self.run)
        self.shell, self.ready = None, False
        self.connections, self.accepted = [], []
        self.lease = Lease(self.lease_s, self.clock.now)
        self.begin_checks()
        self.loop = SimLoop(self.view, self.stepped, self.shell_failed)
        self.loop.work_s_max = 0.02
        self.disk.on_full = self.invariants.ledger.disk_full
        self.registered = self.loop.create_future()
        self.member = Member(
            self.view, self.hosts, self.lease, registered=self._registered, renewed=self._renewed, lost=self._lost
        )
        self.member.from_receipt = self.from_receipt
        self.member.failure_domain = self.failure_domain
        self.member.join()
        start(self.loop, self._run())

    async def _run(self) -> None:
        """What the driver and the role's `run` do."""
        try:
            store = SimLogStore(self.disk, self.name, self._takes_long, self.check_written)
        except AdamctlError as error:
            self.violated(f"{self.name} cannot begin: {error}")
            return
        self.remember_found(store.found)
        context = SimContext(
            role="ps", node=self.name, options={}, transport=cast(Any, None),
            controller=cast(Any, SimConfiguration(self.loop, self.member)), stopping=asyncio.Event(),
            log=cast(logging.Logger, SimLog(self)), lease=self.lease, membership=cast(Any, self.member),
        )  # fmt: skip
        context.server = self
        self.shell = shell = ParameterServer(context, OPTIONS, store)
        applied = SimApply(self, shell._completed)
        shell._threads = cast(Any, applied)
        shell._carriers[Apply] = applied.submit
        shell._saver._roots = shell._keeper.roots = cast(Any, SimRoots())
        self.watch_batches(shell.core)
        await Abandoned(shell.run())

    def _takes_long(self, seconds: float) -> None:
        self.loop.took_s += seconds

    def open(self, handle: Any, on_disconnect: Any, arriving: Any) -> None:
        """The process begins to answer."""
        self._handle, self._on_disconnect, self._arriving = handle, on_disconnect, arriving
        self.ready = True

    def crash(self) -> None:
        """The process is gone, with all that was not synced; what is being synced may be there or not."""
        if not self.alive:
            return
        self.world.note(self.name, "CRASHES")
        self.end()
        self.shell, self.ready = None, False
        self.world.after(0.0, self.loop.bury)
        self.disk.crash()
        incarnation = self.incarnation
        if incarnation:
            self.invariants.leases.given_up(self.name, incarnation)
            connection = self.last_connection = self.member.connection
            for host in self.hosts.values():
                self.world.after(self.world.random.random() * 0.05, partial(host.take, Disconnected(connection)))
        for end in self.accepted:
            if end.open:
                end.close(tells=not self.world.chance(ENDS_UNHEARD))
        for peer in self.peers.values():
            if peer is not self and peer.alive and (self.name, peer.name) not in self.world.cut:
                self.world.after(0.001, partial(peer.gate, peer.run, partial(peer.peer_is_gone, self.name, self.run)))
        self.invariants.serves(self, {})
        self.invariants.crashed(self)
        self.on_crash(self)

    def peer_is_gone(self, peer: str, run: int) -> None:
        """Its connections have been closed."""
        for connection in self.connections:
            if connection.is_to(peer, run):
                connection.break_off()

    # --- membership -------------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        """The controllers say that this process is no member any more: it ends, as real ones do."""
        self.world.note(self.name, "is told", "that it was lost")
        self.lease.end()
        self.crash()

    def _renewed(self, until_s: float) -> None:
        true_s = self.world.now_s + self.clock.true_delay_s(until_s)
        self.invariants.leases.renewed(self.name, self.incarnation, true_s)
        self.stepped()

    def _registered(self) -> None:
        self.loop.do(lambda: self.registered.set_result(None))

    # --- requests ---------------------------------------------------------------------------------------------------

    def asked_by_peer(self, peer: Hello, message: Message, body: bytes, answered: Send, failed: Fail) -> None:
        """A request of another server has come."""

        def ask() -> None:
            self._serve(SimRequest(self, peer, 0, message, bytearray(body), answered, failed))

        self.loop.do(ask)
        self.check_taken(body)

    def request(self, connection: int, client: ClientKey, message: Message, body: memoryview, respond: Respond) -> None:
        """A client's request has come; without a process nobody answers."""
        sent = bytes(body)
        self.gate(self.run, lambda: self._take(connection, client, message, sent, respond))

    def _take(self, connection: int, client: ClientKey, message: Message, sent: bytes, respond: Respond) -> None:
        def send(reply: Message, pieces: list[Any]) -> None:
            if isinstance(reply, AttachReply):
                known = np.frombuffer(b"".join(pieces), "<i8").reshape(-1, 2).tolist()
                respond(reply, known)
            elif isinstance(reply, PullReply):
                respond(reply, [np.frombuffer(piece, "<f4") for piece in pieces])
            else:
                respond(reply, None)

        def fail(code: int, text: str, details: Mapping[str, object]) -> None:
            respond(Refuse(None, code, text), None)

        self.asked_by_client(connection, client, message, sent, send, fail)

    def asked_by_client(
        self,
        connection: int,
        client: ClientKey,
        message: Message,
        sent: bytes,
        send: Send,
        fail: Fail,
        cut_off: Callable[[], None] = lambda: None,
    ) -> None:
        """A client's request is there, or begins to come. `cut_off` is called if the rest of it does not come."""
        hello = Hello(1, 1, (), "worker", *client)
        random = self.world.random
        if isinstance(message, PushRequest) and self.ready and random.random() < ON_THE_WAY:
            body = bytearray(sent)
            request = SimRequest(self, hello, connection, message, body, send, fail)
            if self._arrives(request, body, sent, cut_off):
                return
        else:
            request = SimRequest(self, hello, connection, message, bytearray(sent), send, fail)
        if isinstance(message, AttachRequest):
            self.loop.do(lambda: self.check_attached(client, message, sent, lambda: self._serve(request)))
        else:
            self.loop.do(lambda: self._serve(request))

    def _serve(self, request: SimRequest) -> None:
        if not self.ready:
            request.fail(ErrorCode.NOT_READY, "not a member yet")
            return
        try:
            self._handle(request)
        except ViolationError:
            raise
        except Exception as error:
            self.shell_failed(error, f"a {type(request.message).__name__} was not served")

    def _arrives(self, request: SimRequest, body: bytearray, sent: bytes, cut_off: Callable[[], None]) -> bool:
        """A push that comes part by part, each of which may be applied on the way; the last ones may never come."""
        random, loop = self.world.random, self.loop
        arrival: Any = None

        def begin() -> None:
            nonlocal arrival
            arrival = request.arrival = self._arriving(request)

        loop.do(begin)
        if arrival is None:
            return False

        def come(piece: int) -> None:
            if random.random() < CUT_OFF:
                cut_off()
                return
            if piece == len(arrival.stops):
                loop.do(lambda: self._serve(request))
                return
            place = slice(arrival.stops[piece - 1] if piece else 0, arrival.stops[piece])

            def take() -> None:
                taken = arrival.arrived(piece, memoryview(sent[place]))
                body[place] = b"\xff" * len(sent[place]) if taken else sent[place]  # all ones are NaN

            loop.do(take)
            self.view.after(random.random() * PIECE_S_MAX, lambda: come(piece + 1))

        self.view.after(random.random() * PIECE_S_MAX, lambda: come(0))
        return True

    def disconnect(self, connection: int) -> None:
        """A client's connection has ended."""
        self.gate(self.run, lambda: self.loop.do(lambda: self._on_disconnect(connection)) if self.ready else None)
