"""The interface that a role is written against: its identity, its network, its membership, its end."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from adamctl.config.records import AddressKind, NodeRecord, node_key
from adamctl.errors import AdamctlError, NoAddressError, UnreachableError, WrongClusterError
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.transport import ArrivalHandler, Connection, Handler, PlacingHandler, Request, Server, Transport
from adamctl.roles.addresses import BoundAddresses, no_address, places, usable_addresses
from adamctl.roles.audit import Audit, is_audited
from adamctl.roles.beacons import BeaconPlan, Beacons, LoopBeacons, OwnedSender, ThreadBeacons, send_beacons
from adamctl.roles.certificate import CertificateWatch
from adamctl.roles.cluster_binding import bind, bound_to
from adamctl.roles.common_status import common_status
from adamctl.roles.configuration import ConfigurationStore, Membership, read_record
from adamctl.roles.failure_detector import FailureDetector
from adamctl.roles.lease import LEASE_SHARE, Lease
from adamctl.roles.process import CommonOptions, ReadyReport
from adamctl.wire.constants import ErrorCode, Opcode
from adamctl.wire.messages import (
    OPCODE_OF_REQUEST,
    Empty,
    Hello,
    NodeRegisterReply,
    NodeRegisterRequest,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
)
from adamctl.wire.permissions import refusal

LEAVE_DEADLINE_S = 2.0
DRAIN_S_MAX = 86_400.0


@dataclass
class RoleContext:
    """What the driver gives a role's `run(context)`.

    Attributes:
        role: name of the role.
        node: this process's name in the cluster, unique among living nodes.
        options: the role's own flags by name (dashes as underscores).
        transport: how to reach others; `hello()` is the identity to connect with.
        controller: the configuration service; None for the controller itself.
        stopping: set when this role should end (signal, SHUTDOWN request, lost parent); `run` then returns.
        log: writes to stderr and the role's log file.
        incarnation: issued by the controllers at `serve`; 0 before and for the controller.
        stores: this process keeps what it holds on disk too; set it before `serve`, which tells others.
        failure_domain: the name of what fails together with this process; empty: its machine. Set it before `serve`.
        token: the cluster's shared secret.
        cluster: the identity of the cluster that it belongs to; empty while it knows none.
        kept_in: the folder of what it keeps on disk, which is bound to one cluster; set it before `serve`.
        status: called for STATUS requests; a role replaces it to add its own plain values.
        unready: called for `--health`; a role replaces it to say why others cannot count on it now, "" if they can.
        common: the flags that every role has.
        membership: where `serve` registers; None for the controller and for roles without a cluster in tests.
        listen: addresses that `serve` listens on by default.
        ready_report: is told when the role serves.
        ready_lines: makes the lines printed for a manually started role, from its addresses.
        failure: why the role must end, if it is an error; `run_role` raises it after `run` has returned.
        stop_reason: why `stopping` was set, for users.
        drain_on_term_s: on SIGTERM, for how long it may move off what it holds before it ends; 0: it ends at once.
        drain_s: for how long it may do so now, once `stopping` is set.
        stays: says, in any thread, whether it holds what is lost with it, so that it waits for controllers for ever.
        leaving: it serves on, and wants nothing more; STATUS says that it is not ready.
        exit_code: the process's exit code if there is no failure.
        lease: until when this process may consider itself a member, by `lease.clock`; endless without membership.
        make_beacon_sender: makes the sender of beacons for a separate thread, given a lease of D seconds; None: beacons
            are sent from the event loop, through `membership`, and timed by the loop's clock.
        audit: writes down who administers this process.
        certificate: of this process, which STATUS tells about; None without TLS.
        failure_detector: is told of closed connections if the membership service cannot see them; None: it can.
    """

    role: str
    node: str
    options: Mapping[str, Any]
    transport: Transport
    controller: ConfigurationStore | None
    stopping: asyncio.Event
    log: logging.Logger
    incarnation: int = 0
    stores: bool = False
    failure_domain: str = ""
    token: str = ""
    cluster: str = ""
    kept_in: Path | None = None
    status: Callable[[], dict[str, Any]] = dict
    unready: Callable[[], str] = str
    common: CommonOptions = field(default_factory=CommonOptions)
    membership: Membership | None = None
    listen: tuple[str, ...] = ()
    ready_report: ReadyReport | None = None
    ready_lines: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None
    failure: AdamctlError | None = None
    stop_reason: str = ""
    drain_on_term_s: float = 0.0
    drain_s: float = 0.0
    stays: Callable[[], bool] = lambda: False
    leaving: bool = False
    exit_code: int = 0
    addresses: tuple[str, ...] = ()
    lease: Lease = field(default_factory=Lease.endless)
    make_beacon_sender: Callable[[float], OwnedSender] | None = None
    certificate: CertificateWatch | None = None
    failure_detector: FailureDetector | None = None
    audit: Audit = field(init=False)
    _bound: BoundAddresses | None = None
    _server: Server | None = None
    _beacons: Beacons | None = None
    _started_s: float = 0.0
    _ready: bool = False

    def __post_init__(self) -> None:
        self.audit = Audit(self.role, self.node)

    def hello(self) -> Hello:
        """Returns the identity to connect with, and to serve as."""
        return make_hello(self.role, self.node, self.incarnation, self.token, cluster=self.cluster)

    def belongs_to(self, cluster: str) -> None:
        """Makes this process part of this cluster and no other from now on; an empty identity changes nothing."""
        if cluster:
            self.cluster = cluster
            with suppress(AttributeError):
                self._server.identity = self.hello()  # type: ignore[union-attr]

    @property
    def ready(self) -> bool:
        """Whether the role listens and is a member."""
        return self._ready

    @property
    def ending(self) -> bool:
        """Whether it was told to end, or moves off what it holds to be ended."""
        return self.leaving or self.stopping.is_set()

    @property
    def bound(self) -> BoundAddresses:
        """Where it listens, and what others are told about that; only after `serve`."""
        assert self._bound is not None
        return self._bound

    async def serve(
        self,
        handler: Handler,
        *,
        addresses: Sequence[str] = (),
        administration: Sequence[str] = (),
        replication: Sequence[str] = (),
        on_disconnect: Callable[[int], None] | None = None,
        arriving: ArrivalHandler | None = None,
        placing: PlacingHandler | None = None,
        region_bytes_max: int | None = None,
    ) -> Server:
        """Listens, registers, starts the beacons and reports ready. May be called once.

        Answers STATUS and SHUTDOWN itself, and everything else with NOT_READY until it is registered. `handler` gets
        the rest, `arriving` can look at large bodies while they arrive, `placing` says where the bodies of one-way
        requests go. `addresses` default to those of the role's
        `--bind` and `--port` flags and a Unix socket for peers on this host. The driver closes the server after `run`
        has returned.

        Addresses in `administration` and `replication` accept only that traffic, which is then refused elsewhere; by
        default `addresses` accept all. `region_bytes_max`: memory of clients that it may map; by default the
        transport's limit.

        Raises:
            ConfigurationError: an address is taken, or the node's name is.
            UnreachableError: no controller answered within `--controller-deadline`.
        """
        if self._server is not None:
            raise RuntimeError("a role serves once; give all addresses in one call")
        self._started_s = asyncio.get_running_loop().time()
        if self.kept_in is not None:
            self.cluster = await asyncio.to_thread(bound_to, self.kept_in)
        chosen = places(tuple(addresses) or self._listen_by_default(), administration, replication)
        limits = None
        if region_bytes_max is not None:
            limits = replace(self.transport.server_limits, region_bytes_max=region_bytes_max)
        if self.failure_detector is not None:
            on_disconnect = partial(self._disconnected, on_disconnect)
        server = await self.transport.serve(
            tuple(place.address for place in chosen),
            self.hello(),
            lambda request: self._handle(request, handler),
            on_disconnect=on_disconnect,
            arriving=None if arriving is None else partial(self._arriving, arriving),
            placing=None if placing is None else partial(self._placing, placing),
            limits=limits,
        )
        self._server = server
        self._bound = BoundAddresses(chosen, server.addresses, self.common)
        self.addresses = self._bound.advertised["clients"]
        if self.membership is not None:
            await self._register(self.membership, server)
        self._ready = True
        if self.ready_report is not None:
            lines = self.ready_lines or self._ready_lines
            self.ready_report.serving(self.addresses, self.incarnation, lines(self.addresses))
        self.log.info("ready on %s", self._bound.describe() if self._bound.separate else ", ".join(self.addresses))
        return server

    def at_work(self, lines: tuple[str, ...]) -> None:
        """Reports ready, for a role that listens nowhere; `lines` are printed for a manually started one."""
        self._ready = True
        if self.ready_report is not None:
            self.ready_report.serving((), self.incarnation, lines)

    async def connect(self, node: str | NodeRecord, deadline_s: float, *, takes: AddressKind = "clients") -> Connection:
        """Connects to a node by name or record: through its Unix socket if it is on this host, else by TCP.

        `takes`: the kind of traffic, which selects the addresses.

        Raises:
            NoAddressError: none of its addresses can be used from here.
            UnreachableError: no living node has this name, or it cannot be reached at any of its addresses.
            HandshakeError: it refuses us.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        record = await self._record(node) if isinstance(node, str) else node
        problem = ""
        for address in usable_addresses(record, self.transport.kind, takes):
            try:
                connection = await self.transport.connect(
                    address,
                    self.hello(),
                    deadline_s=max(until_s - loop.time(), 0.001),
                    expects=(record.role, record.node),
                )
            except (UnreachableError, WrongClusterError) as error:
                problem = str(error)
                continue
            if connection.peer.node == record.node:
                return connection
            problem = f"{address} is now {connection.peer.role} {connection.peer.node}"
            await connection.close()
        if not problem:
            problem = no_address(self.node, record, self.transport.kind, takes)
            raise NoAddressError(f"cannot reach {record.role} {record.node}: {problem}")
        raise UnreachableError(f"cannot reach {record.role} {record.node}: {problem}")

    def lost_sight_of(self, node: str, incarnation: int) -> None:
        """Notes that a connection to a process was closed by the other side."""
        if self.failure_detector is not None:
            self.failure_detector.suspect(node, incarnation)

    def stop(self, reason: str, *, exit_code: int = 0, drain_s: float = 0.0) -> None:
        """Asks the role to end; the first reason is kept. `drain_s`: for how long it may move off what it holds."""
        if not self.stopping.is_set():
            self.drain_s = drain_s
            self.stop_reason = reason
            self.exit_code = exit_code
            self.log.info("stopping: %s", reason)
            self.stopping.set()

    def fail(self, error: AdamctlError) -> None:
        """Asks the role to end because of an error, which decides the exit code; the first error is kept."""
        if self.failure is None and not self.stopping.is_set():
            self.failure = error
        self.stop(str(error), exit_code=error.exit_code)

    async def close(self) -> None:
        """Leaves the cluster and closes what `serve` opened. The driver calls it; tests may."""
        if self.membership is not None:
            self.lease.end()  # others may take over as soon as this process has left
        if self.failure_detector is not None:
            await self.failure_detector.close()
        if self._beacons is not None:
            await self._beacons.close()
        if self.membership is not None and self.incarnation and not isinstance(self.failure, UnreachableError):
            try:
                await self.membership.leave(self.node, self.incarnation, deadline_s=LEAVE_DEADLINE_S)
            except AdamctlError as error:
                self.log.info("could not leave the cluster: %s", error)
        if self._server is not None:
            await self._server.close()
        self._ready = False

    # --- inside -----------------------------------------------------------------------------------------------------

    def _listen_by_default(self) -> tuple[str, ...]:
        return self.listen or ("tcp://127.0.0.1:0",)

    def _disconnected(self, then: Callable[[int], None] | None, connection_id: int) -> None:
        assert self.failure_detector is not None
        self.failure_detector.disconnected(connection_id)
        if then is not None:
            then(connection_id)

    def _arriving(self, arriving: ArrivalHandler, request: Request) -> Any:
        """Keeps `arriving` from seeing a body whose request will be refused."""
        opcode = OPCODE_OF_REQUEST[type(request.message)]
        return None if refusal(request.peer, opcode, request.message) else arriving(request)

    def _placing(self, placing: PlacingHandler, request: Request) -> memoryview | None:
        """As `_arriving`."""
        opcode = OPCODE_OF_REQUEST[type(request.message)]
        return None if refusal(request.peer, opcode, request.message) else placing(request)

    def _handle(self, request: Request, handler: Handler) -> None:
        if self.failure_detector is not None:
            self.failure_detector.met(request)
        opcode = OPCODE_OF_REQUEST[type(request.message)]
        if is_audited(opcode, request):
            self.audit.watch(request, opcode, partial(self._answer, opcode, handler))
        else:
            self._answer(opcode, handler, request)

    def _answer(self, opcode: Opcode, handler: Handler, request: Request) -> None:
        if self._bound is not None and self._bound.refuse_misplaced(request):
            return
        refused = refusal(request.peer, opcode, request.message)
        if refused:
            request.fail(ErrorCode.NOT_ALLOWED, f"{refused} to {self.role} {self.node}")
            return
        match request.message:
            case StatusRequest():
                own: dict[str, Any] = {
                    "role": self.role,
                    "node": self.node,
                    "incarnation": self.incarnation,
                    "uptime_s": round(asyncio.get_running_loop().time() - self._started_s, 3),
                    "ready": self._ready and not self.leaving,
                    **common_status(self.lease, self._server),
                }
                if self.certificate is not None:
                    own["certificate"] = self.certificate.status()
                request.reply(StatusReply({**self.status(), **own}))
            case ShutdownRequest(reason=reason, drain_s=drain_s):
                request.reply(Empty())
                drain_s = drain_s if 0 < drain_s <= DRAIN_S_MAX else 0.0
                self.stop(f"told by {request.peer.node}: {reason}", drain_s=drain_s)
            case _ if not self._ready:
                request.fail(ErrorCode.NOT_READY, f"{self.role} {self.node} has not joined the cluster yet")
            case _:
                handler(request)

    async def _register(self, membership: Membership, server: Server) -> None:
        told = self.bound.advertised
        request = NodeRegisterRequest(
            self.node,
            self.role,
            told["clients"],
            host_id(),
            os.getpid(),
            self.common.capacity_bytes,
            told["administration"],
            told["replication"],
            server.limits.memory_bytes_max,
            server.limits.credit_bytes,
            secrets.randbits(62) | 1,
            self.stores,
            self.failure_domain,
            self.common.wait_for_name,
        )
        reply = await membership.register(request, deadline_s=self.common.controller_deadline_s)
        self.incarnation = reply.incarnation
        self.cluster = reply.cluster or self.cluster
        with suppress(AttributeError):
            server.identity = self.hello()  # type: ignore[attr-defined]
        if self.kept_in is not None:
            await asyncio.to_thread(bind, self.kept_in, self.cluster)
        self._begin_beacons(membership, reply)

    def _begin_beacons(self, membership: Membership, told: NodeRegisterReply) -> None:
        deadline_s = self.common.controller_deadline_s
        plan = BeaconPlan(self.node, self.incarnation, told.beacon_interval_s, deadline_s, self.stays)
        lease_s = told.lease_s or told.lost_after_s * LEASE_SHARE
        if self.make_beacon_sender is None:
            self.lease = Lease(lease_s, asyncio.get_running_loop().time)
            self._beacons = LoopBeacons(lambda: send_beacons(membership, plan, self.lease, self.log), self.fail)
        else:
            self.lease = Lease(lease_s)
            self._beacons = ThreadBeacons(self.make_beacon_sender, plan, self.lease, self.log, self.fail)

    async def _record(self, node: str) -> NodeRecord:
        if self.controller is None:
            raise UnreachableError(f"cannot look up {node}: this process has no controller")
        found = await read_record(self.controller, node_key(node), NodeRecord)
        if found is None:
            raise UnreachableError(f"there is no living node {node}; `adamctl status` lists the nodes")
        return found[0]

    def _ready_lines(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        return (f"{self.role} {self.node} ready on {self.bound.describe()}",)
