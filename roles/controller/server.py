"""The controller's process: feeds the core, persists what it promises, then sends and answers.

One task takes all events that have come, steps the core through them, persists what they promise (one sync for all log
entries) in a thread, and only then carries out the remaining instructions. Events that come meanwhile form the next
batch.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from adamctl.errors import ConfigurationError, RemoteError, RunFailedError
from adamctl.net.address import parse_address
from adamctl.net.transport import Request
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.core.instructions import (
    Answer,
    Append,
    Instruction,
    Notice,
    Probe,
    Refuse,
    SaveSnapshot,
    SaveVote,
    Send,
)
from adamctl.roles.controller.core.paxos.messages import Received, decode_peer
from adamctl.roles.controller.core.service.commands import within_bytes
from adamctl.roles.controller.core.service.config import lease_config
from adamctl.roles.controller.core.service.controller_core import ControllerCore
from adamctl.roles.controller.core.service.events import (
    Beacon,
    CompareAndSet,
    Disconnected,
    Event,
    Leave,
    Read,
    Register,
    Replace,
    RestoreBackup,
    TakeBackup,
    Tick,
    Watch,
)
from adamctl.roles.controller.peers import PeerLinks, parse_peers
from adamctl.roles.controller.probing import Probes, Probing, has_ended
from adamctl.roles.controller.store import LogStore, Store
from adamctl.roles.failure_detector import PROBE_AGAIN_S, PROBE_SOON_S
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetRequest,
    ConfigReadRequest,
    ConfigWatchRequest,
    ControllerBackupRequest,
    ControllerPeerRequest,
    ControllerReplaceRequest,
    ControllerRestoreRequest,
    Empty,
    Hello,
    NodeBeaconRequest,
    NodeLeaveRequest,
    NodeRegisterRequest,
)
from adamctl.wire.unreadable import UNREADABLE

EVENTS_MAX = 16_384
TICK_S_MIN = 0.1
LAST_SEEN_BYTES_MAX = 16 << 10
"""Bound on the names in a STATUS that says of nodes when they were last seen, the most silent first."""
_CHANGES = msgspec.msgpack.Decoder(ConfigChanges)


class ControllerServer:
    """Carries out a core's instructions. Runs on one event loop."""

    def __init__(
        self,
        core: ControllerCore,
        store: Store,
        *,
        log: logging.Logger,
        probe: Probing | None = None,
        links: PeerLinks | None = None,
        on_cluster: Callable[[str], None] = lambda cluster: None,
    ) -> None:
        """
        Args:
            links: to the other controllers; None if there are none.
            probe: coroutine function that says whether a node's process has certainly ended; None: beacons decide.
        """
        self.core = core
        self._store = store
        self._log = log
        self._links = links
        self._on_cluster = on_cluster
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._requests: dict[int, Request] = {}
        self._token = 0
        self._loop = asyncio.get_running_loop()
        self._probes = Probes(probe, core.unconnected, self._put)
        self._disk = ThreadPoolExecutor(1, "controller-disk")
        self._first = core.recover(store.vote, store.snapshot, store.entries, self._loop.time())
        if store.vote is not None:
            on_cluster(core.cluster)
        if store.entries or store.snapshot is not None:
            log.info("the configuration is at revision %d, with %d nodes", core.state.revision, len(core.living()))
        store.snapshot, store.entries = None, ()  # the core has them, and need not keep them
        self._probes.later(PROBE_AGAIN_S)

    # --- events in --------------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> None:
        """Takes a request; it is answered once what the answer promises is on disk."""
        if len(self._events) >= EVENTS_MAX:
            request.fail(ErrorCode.NOT_READY, f"{EVENTS_MAX} requests are waiting for the disk; try again")
            return
        self._token += 1
        event = _event(request, self._token)
        if event is None:
            request.fail(ErrorCode.UNKNOWN_OPCODE, f"a controller does not serve {type(request.message).__name__}")
            return
        if isinstance(event, Received):
            request.reply(Empty())  # one-way: this only returns its credit
        else:
            self._requests[self._token] = request
        self._put(event)

    def disconnected(self, connection: int) -> None:
        """Notes that a connection has closed."""
        self._put(Disconnected(connection))
        self._probes.later(PROBE_SOON_S)

    def _put(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    # --- instructions out -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serves until cancelled.

        Raises:
            RunFailedError: the disk failed; nothing that is not on disk was answered.
            ConfigurationError: most of the other controllers have different limits.
        """
        config = self.core.config
        tick_s = min(config.lost_after_s / 4, max(config.granted_s / 8, TICK_S_MIN))
        next_tick_s = self._loop.time() + tick_s
        try:
            await self._do(self._first)
            while True:
                until_s = min(next_tick_s, self.core.next_deadline_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(until_s):
                        await self._wake.wait()
                self._wake.clear()
                if self._loop.time() >= until_s:
                    self._events.append(Tick())
                    next_tick_s = self._loop.time() + tick_s
                await self._work_off()
                if self.core.outvoted:
                    raise ConfigurationError(self.core.outvoted)
        finally:
            self._probes.close()
            self._disk.shutdown(wait=True)  # so that nothing is written after the store is closed
            for request in self._requests.values():
                request.fail(ErrorCode.SHUTTING_DOWN, "the controller is stopping")
            self._requests.clear()

    async def _work_off(self) -> None:
        instructions: list[Instruction] = []
        while self._events:
            instructions += self.core.step(self._events.popleft(), self._loop.time())
        await self._do(instructions)

    async def _do(self, instructions: list[Instruction]) -> None:
        batch = [one for one in instructions if isinstance(one, SaveVote | Append | SaveSnapshot)]
        if batch:
            await self._on_disk(partial(self._store.persist, batch))
            self._on_cluster(self.core.cluster)  # what is not on disk yet may be lost, so nobody is told of it
        for instruction in instructions:
            self._carry_out(instruction)
        if self._store.wants_snapshot:
            await self._on_disk(partial(self._store.write_snapshot, *self.core.snapshot()))

    async def _on_disk(self, call: Callable[[], None]) -> None:
        if self._store.blocks:
            await self._loop.run_in_executor(self._disk, call)
        else:
            call()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Answer():
                request = self._requests.pop(instruction.token, None)
                if request is not None:
                    entries = instruction.entries
                    request.reply(instruction.message, () if entries is None else (msgspec.msgpack.encode(entries),))
            case Refuse():
                request = self._requests.pop(instruction.token, None)
                if request is not None:
                    request.fail(instruction.code, instruction.message, instruction.details)
            case Notice():
                self._log.info("%s", instruction.message)
                self._probes.later(PROBE_AGAIN_S)  # among other things, this member may have begun to lead
            case Probe():
                self._probes.now(instruction.record)
            case Send():
                if self._links is not None:
                    self._links.send(instruction)
            case SaveVote() | Append() | SaveSnapshot():
                pass  # on disk already

    def status(self) -> dict[str, Any]:
        """Returns plain values for STATUS replies."""
        core, state = self.core, self.core.state
        leader = core.leader
        now_s = self._loop.time()
        heard_s = core.heard_s()
        told = within_bytes(sorted(heard_s, key=heard_s.__getitem__), LAST_SEEN_BYTES_MAX)
        last_seen_s = {node: round(max(now_s - heard_s[node], 0.0), 3) for node in told}
        return {
            "revision": state.revision,
            "nodes": len(core.living()),
            "watchers": core.watchers,
            "configuration_bytes": state.size_bytes,
            "last_seen_s": last_seen_s,
            "state": core.paxos.role,
            "leader": "" if leader is None else leader.name,
            "leader_address": "" if leader is None else leader.address,
            "slot": core.paxos.acceptor.chosen_to,
            "members": self._members(),
            "differing": dict(core.limits.differing),
            "strangers": [{"name": name, "address": address} for name, address in core.paxos.forming.strangers],
        }

    def unready(self) -> str:
        """Returns why it serves nobody now: it knows no leader."""
        return "" if self.core.leader is not None else "no leader is known"

    def _members(self) -> list[dict[str, Any]]:
        """Returns the controllers; the leader knows how many slots each was behind when it last answered (`lag`), and
        how long ago that was (`silent_s`)."""
        paxos = self.core.paxos
        now_s = self._loop.time()
        found: list[dict[str, Any]] = []
        for member in self.core.members:
            described: dict[str, Any] = {"name": member.name, "address": member.address, "identity": member.identity}
            if paxos.leadership is not None:
                slot = paxos.leadership.progress.get(member.identity)
                if member.identity == paxos.identity:
                    slot = paxos.acceptor.chosen_to
                described["lag"] = None if slot is None else paxos.acceptor.chosen_to - slot
                heard_s = now_s if member.identity == paxos.identity else paxos.leadership.heard_s.get(member.identity)
                described["silent_s"] = None if heard_s is None else round(max(now_s - heard_s, 0.0), 3)
            found.append(described)
        return found


def _event(request: Request, token: int) -> Event | None:
    match request.message:
        case ConfigReadRequest(prefix=prefix):
            return Read(token, prefix, request.peer.role, request.connection_id)
        case ConfigCompareAndSetRequest(session=session, sequence=sequence, known_serial=known_serial):
            try:
                changes = _CHANGES.decode(request.body)
            except UNREADABLE as error:
                raise RemoteError(ErrorCode.BAD_MESSAGE, f"the body is not a ConfigChanges: {error}") from error
            # A session's name includes its node, so no other node can continue it.
            peer = request.peer
            own = f"{peer.role}/{peer.node}/{session}" if session else ""
            return CompareAndSet(token, own, sequence, changes, known_serial, peer.role, peer.node)
        case ConfigWatchRequest(prefix=prefix, after_revision=after_revision, wait_s=wait_s):
            return Watch(token, request.connection_id, prefix, after_revision, wait_s, request.peer.role)
        case NodeRegisterRequest() as message:
            for address in (*message.addresses, *message.administration_addresses, *message.replication_addresses):
                parse_address(address)  # the others will parse it, and must not fail on it
            return Register(token, request.connection_id, message)
        case NodeBeaconRequest(node=node, incarnation=incarnation):
            return Beacon(token, request.connection_id, node, incarnation)
        case NodeLeaveRequest(node=node, incarnation=incarnation, why=why):
            return Leave(token, node, incarnation, why)
        case ControllerPeerRequest() as head:
            try:
                told = decode_peer(request.body)
                names = (head.cluster, head.source, head.address, head.destination)
                return Received(*names, told, head.limits, request.peer.node)
            except UNREADABLE as error:
                raise RemoteError(ErrorCode.BAD_MESSAGE, f"not a message between controllers: {error}") from error
        case ControllerReplaceRequest(old=old, name=name, address=address, identity=identity):
            return Replace(token, old, name, address, identity)
        case ControllerBackupRequest():
            return TakeBackup(token)
        case ControllerRestoreRequest():
            return RestoreBackup(token, bytes(request.body))
    return None


async def run(context: RoleContext) -> None:
    """Runs a controller until it is told to stop.

    Raises:
        ConfigurationError: the folder or the address is in use, or --peers is not valid.
        DamagedDataError: a file in the folder is damaged.
        RunFailedError: the disk failed.
    """
    config = lease_config(*(context.options.get(name) for name in ("lease", "lost_after", "retire_after")))
    peers = parse_peers(str(context.options.get("peers") or ""), context.node)
    folder = context.options.get("dir")
    path = Path(folder) if folder else Path(platformdirs.user_state_dir("adamctl", appauthor=False)) / "controller"
    store = await asyncio.to_thread(LogStore, path)
    if store.cut_bytes:
        context.log.warning("cut %d bytes of an unfinished write off the log in %s", store.cut_bytes, path)
    try:
        if peers and store.vote is not None and store.vote.name != context.node:
            raise ConfigurationError(
                f"{path} is the folder of controller {store.vote.name}, not of {context.node}; give --name "
                f"{store.vote.name}, or another --dir"
            )
        identity = secrets.randbits(63) | 1
        core = ControllerCore(config, name=context.node, peers=peers, identity=identity, chance=random.random)
        await serve(context, core, store)
    finally:
        store.close()


async def serve(context: RoleContext, core: ControllerCore, store: Store) -> None:
    """Serves a core until the context is told to stop."""
    own = core.own_address(context.node)
    limits = core.limits.own

    def hello() -> Hello:
        """Names no cluster: controllers check clusters themselves, since a new one must be able to join."""
        return msgspec.structs.replace(context.hello(), cluster="")

    links = PeerLinks(context.transport, hello, core.paxos, own, limits, context.log) if own else None
    server = ControllerServer(
        core,
        store,
        log=context.log,
        probe=lambda record: has_ended(context, record),
        links=links,
        on_cluster=context.belongs_to,
    )
    context.status = lambda: {**server.status(), "audit": list(context.audit.recent)}
    context.unready = server.unready
    context.ready_lines = lambda addresses: _ready_lines(context, addresses)
    work = asyncio.create_task(server.run())
    stopping = asyncio.create_task(context.stopping.wait())
    try:
        await context.serve(server.handle, on_disconnect=server.disconnected)
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            raise RunFailedError("the controller's task ended unexpectedly")
    finally:
        work.cancel()
        stopping.cancel()
        await asyncio.gather(work, stopping, return_exceptions=True)
        if links is not None:
            await links.close()


def _ready_lines(context: RoleContext, addresses: tuple[str, ...]) -> tuple[str, ...]:
    address = next((text for text in addresses if text.startswith("tcp://")), addresses[0])
    if context.certificate is not None:
        token = "ADAMCTL_TLS=... "
    else:
        token = "ADAMCTL_TOKEN=... " if context.token else ""
    lines = [
        f"controller {context.node} ready on {address}",
        f"join it with:  {token}adamctl ps start --controller {address}",
        "               (likewise worker, data and coordinator)",
    ]
    if context.common.bind in ("127.0.0.1", "::1", "localhost"):
        lines.append("only this machine can join; for others: controller start --bind 0.0.0.0 --tls-dir DIR")
    else:
        lines.append("on another machine, add:  --bind 0.0.0.0")
    return tuple(lines)
