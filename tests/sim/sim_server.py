"""A parameter server in the simulator: the real cores, and a shell with a disk, threads and links that take time.

`sim_server_state` is what it holds, `sim_server_links` how it talks to other servers, `sim_server_clients` how to
clients, `sim_server_store` what it keeps on its disk; here are its life, its membership and its instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from adamctl.config.records import node_key
from adamctl.kernels.rules.make import make_rule
from adamctl.roles.controller.core_events import Disconnected
from adamctl.roles.controller.core_state import Changes
from adamctl.roles.lease import Lease
from adamctl.roles.ps.apply import Applier
from adamctl.roles.ps.core import Core
from adamctl.roles.ps.core_flush import FlushCore
from adamctl.roles.ps.core_instructions import (
    AnswerAttach,
    AnswerPull,
    AnswerPush,
    Apply,
    Free,
    Image,
    Keep,
    Refresh,
    Refuse,
)
from adamctl.roles.ps.core_job import Job
from adamctl.roles.ps.core_replication import ReplicationCore
from adamctl.roles.ps.core_replication_events import (
    Ask,
    Build,
    Holds,
    LetGo,
    Load,
    Notice,
    Propose,
    ReadNode,
    ReplicationConfig,
    Reply,
)
from adamctl.roles.ps.core_sequence import ClientKey
from adamctl.roles.ps.core_shard import Shard
from adamctl.roles.ps.following import JOBS_PREFIX, JobKeys
from adamctl.roles.ps.node_keys import DRAINS_PREFIX, NODES_PREFIX, NodeKeys
from adamctl.wire.messages import ConfigCompareAndSetReply, Message
from tests.sim.server_ledger import done_of
from tests.sim.sim_process import Member, RunView
from tests.sim.sim_server_clients import ServerDesk
from tests.sim.sim_server_links import PeerRequest, ServerLinks
from tests.sim.sim_server_state import ServerState
from tests.sim.sim_server_store import ServerStore
from tests.sim.sim_store import FLUSH

if TYPE_CHECKING:
    from tests.sim.sim_client_lanes import Respond


class SimServer(ServerState):
    """One parameter server, process after process.

    Attributes:
        disk_s_max, apply_s_max: longest sync, longest batch.
        disk_full: no group can be written.
        peers: all servers by name, itself among them.
        on_crash: is told of each end of a process.
        from_receipt: planted fault: the lease counts from when the answer came.
        sync_first: if not, a planted fault: durable before it is synced.
    """

    disk_s_max, apply_s_max, disk_full = 0.002, 0.001, False
    peers: Mapping[str, SimServer]
    on_crash: Callable[[SimServer], None] = staticmethod(lambda _: None)
    last_connection = 0
    from_receipt, sync_first = False, True
    view: RunView
    links: ServerLinks
    desk: ServerDesk
    store: ServerStore

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.alive:
            return
        self.view = self.begin()
        self.world.note(self.name, "starts", "run", self.run)
        self.core = None
        self.found = self.disk.copy()
        self.keys = JobKeys()
        self.nodes = NodeKeys()
        self.lease = Lease(self.lease_s, self.clock.now)
        self._served: dict[int, int] = {}  # bucket -> at which epoch it is served, or was last
        self._serving: set[int] = set()
        self.registered_revision = 0
        self._tick_due_s = float("inf")
        self._applier = Applier()
        self.links = ServerLinks(self)
        self.member = Member(
            self.view, self.hosts, self.lease, registered=self._registered, renewed=self._renewed, lost=self._lost
        )
        self.member.from_receipt = self.from_receipt
        self.member.join()

    def crash(self) -> None:
        """The process is gone, with all that was not synced; what is being synced may be there or not."""
        if not self.alive:
            return
        self.world.note(self.name, "CRASHES")
        self.end()
        self.core = None
        incarnation = self.incarnation
        if incarnation:
            self.invariants.leases.given_up(self.name, incarnation)
            connection = self.last_connection = self.member.connection
            for host in self.hosts.values():
                self.world.after(self.world.random.random() * 0.05, partial(host.take, Disconnected(connection)))
        for peer in self.peers.values():
            if peer is not self and (self.name, peer.name) not in self.world.cut:
                self.world.after(0.001, partial(peer.gate, peer.run, partial(peer.links.broken, self.name)))
        self.invariants.serves(self, {})
        self.invariants.crashed(self)
        self.on_crash(self)

    # --- membership -------------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        """The controllers say that this process is no member any more: it ends, as real ones do."""
        self.world.note(self.name, "is told", "that it was lost")
        self.lease.end()
        self.crash()

    def _renewed(self, until_s: float) -> None:
        true_s = self.world.now_s + self.clock.true_delay_s(until_s)
        self.invariants.leases.renewed(self.name, self.incarnation, true_s)
        self._stepped()

    def _registered(self) -> None:
        def known(changes: Changes | None) -> None:
            entries = {entry.key: entry for entry in changes.entries} if changes is not None else {}
            entry = entries.get(node_key(self.name))
            if entry is None:
                self.view.after(0.05, self._registered)
            else:
                self._open(entry.revision)

        self.member.read("own", node_key(self.name), known)

    def _open(self, revision: int) -> None:
        """The process begins to work."""
        flush = FlushCore(FLUSH)
        core = Core(1, flush=flush)
        config = ReplicationConfig.of_lease(self.lease_s, settle_s=1.0, shun_s=1.0)
        self.replication = ReplicationCore(
            core, self.name, config, self.lease.valid, self.clock.now, confirmed_s=lambda: self.lease.confirmed_s
        )
        self.core = core
        self.desk, self.store = ServerDesk(self, core), ServerStore(self, core, flush)
        self.registered_revision = revision
        core.unknown.begin(told=False)
        self.replication.registered(self.member.incarnation, revision)
        for prefix in (JOBS_PREFIX, NODES_PREFIX, DRAINS_PREFIX):
            self.member.follow(prefix, partial(self._follow, prefix))
        self.store.tick()
        self._stepped()

    # --- configuration ----------------------------------------------------------------------------------------------

    def _follow(self, prefix: str, changes: Changes) -> None:
        if prefix == JOBS_PREFIX:
            self.keys.take(changes)
            if self.core is not None and not self.core.unknown.told:
                self.core.unknown.begin(told=True)
        elif prefix == NODES_PREFIX:
            self.nodes.take_nodes(changes)
        else:
            self.nodes.take_drains(changes)
        self._configure()

    def _configure(self) -> None:
        if not self.nodes.told or self.core is None:
            return
        view = self.keys.view(self.job_name)
        if view is None:
            return
        if self.job_name not in self.core.jobs:
            job = Job(self.job_name, view.layout, make_rule(view.record.rule), view.revision)
            job.durable = view.record.acks == "durable"
            self.core.add_job(job)
        now = self.clock.now()
        self.do(self.replication.configured(self.job_name, view, self.nodes.nodes, self.nodes.draining, now))

    def _read_node(self, node: str) -> None:
        def found(changes: Changes | None) -> None:
            if changes is None or self.core is None:
                return
            entry = next((entry for entry in changes.entries if entry.key == node_key(node)), None)
            self.nodes.found(node, entry, changes.revision)
            self._configure()

        self.member.read(f"node {node}", node_key(node), found)

    def _reread(self, name: str) -> None:
        def found(changes: Changes | None) -> None:
            if changes is not None and self.core is not None:
                self.keys.take_job(name, list(changes.entries), changes.revision)
                self._configure()

        self.member.read("job", f"/jobs/{name}", found)

    # --- requests ---------------------------------------------------------------------------------------------------

    def request(self, connection: int, client: ClientKey, message: Message, body: memoryview, respond: Respond) -> None:
        """A client's request has come; without a process nobody answers."""
        self.gate(
            self.run,
            lambda: self.desk.serve(connection, client, message, body, respond) if self.core is not None else None,
        )

    def disconnect(self, connection: int) -> None:
        self.gate(self.run, lambda: self.core.disconnected(connection) if self.core is not None else None)

    def peer_request(self, request: PeerRequest) -> None:
        """A request of another server has come; where there is no process, its connection is refused."""
        if not self.alive or self.core is None:
            request.broken()
            return
        self.gate(self.run, lambda: self.links.requested(request))

    def soon(self, takes_time: bool, action: Callable[[], None]) -> None:
        """Does something now, or a moment later."""
        if takes_time:
            self.view.after(self.world.random.random() * 0.001, action)
        else:
            action()

    # --- instructions -----------------------------------------------------------------------------------------------

    def do(self, instructions: Sequence[Any]) -> None:
        """Carries out what the cores say, and then looks at what has become of it."""
        for instruction in instructions:
            if self.core is None:
                return
            self.carry_out(instruction)
        if self.core is not None:
            self.store.kick()
        self._stepped()

    def carry_out(self, instruction: Any) -> None:
        match instruction:
            case Apply():
                self._apply(instruction)
            case AnswerPush():
                self.desk.answer_push(instruction)
            case AnswerAttach():
                instruction.token.respond(instruction.message, instruction.known)
            case AnswerPull():
                self.desk.answer_pull(instruction)
            case Refuse(token=PeerRequest()):
                self.links.refuse(instruction.token, instruction)
            case Refuse():
                instruction.token.respond(instruction)
            case Keep() | Free():
                pass
            case Image():
                self.store.take_image(instruction)
            case Refresh():
                self._reread(instruction.job)
            case Ask():
                self.links.ask(instruction)
            case Reply():
                self.links.reply(instruction)
            case Propose():
                self._propose(instruction)
            case ReadNode():
                self._read_node(instruction.node)
            case Build():
                self.view.after(self.world.random.random() * 0.02, lambda: self.store.build(instruction))
            case Load():
                self.view.after(self.world.random.random() * 0.02, lambda: self.store.load(instruction))
            case Holds():
                self.store.hold(instruction)
            case LetGo():
                self.store.let_go(instruction)
            case Notice():
                self.world.note(self.name, "says", f"bucket {instruction.bucket}:", instruction.text)
            case _:
                raise TypeError(f"unknown instruction {instruction}")

    def _apply(self, instruction: Apply) -> None:
        """A thread takes its time. What it writes over looks like nothing meanwhile: a reader of it would tell."""
        random = self.world.random
        touched: list[tuple[Any, float]] = []

        def halfway() -> None:
            for batch in instruction.batches:
                if batch.in_place:
                    array = batch.shard.values.array
                    touched.append((array, float(array[-1])))
                    array[-1] += 0.5

        def done() -> None:
            assert self.core is not None
            for array, value in touched:
                array[-1] = value
            self.apply_now(instruction)

        due_s = random.random() * self.apply_s_max
        if random.random() < 0.2:
            self.view.after(due_s / 2, halfway)
        self.view.after(due_s, done)

    def apply_now(self, instruction: Apply) -> None:
        assert self.core is not None
        self._applier.apply(instruction.job.rule, instruction.batches)
        out = self.core.completed(instruction.job, instruction.batches, self.clock.now())
        for batch in instruction.batches:
            if batch.applied and not batch.shard.bucket.dropped:
                self._check(batch.shard)
        self.do(out)

    def _propose(self, instruction: Propose) -> None:
        self.world.note(self.name, "proposes", instruction.why)

        def answered(reply: ConfigCompareAndSetReply | None) -> None:
            if self.core is None:
                return
            self.do(self.replication.proposed(instruction.order, reply, self.clock.now()))

        self.member.compare_and_set(instruction.changes, answered)

    # --- time -------------------------------------------------------------------------------------------------------

    def _set_tick(self) -> None:
        now = self.clock.now()
        due_s = self.world.now_s + self.clock.true_delay_s(self.replication.next_deadline_s(now)) + 1e-6
        if due_s < self._tick_due_s - 1e-9 or self._tick_due_s < self.world.now_s:
            self._tick_due_s = due_s
            self.view.after(due_s - self.world.now_s, lambda: self._tick(due_s))

    def _tick(self, due_s: float) -> None:
        if self._tick_due_s == due_s and self.core is not None:
            self._tick_due_s = float("inf")
            self.do(self.replication.tick(self.clock.now()))

    def _stepped(self) -> None:
        """After every event: who serves what now, and what has become of it."""
        if self.core is None:
            return
        self._set_tick()
        job, until_s = self.job, self.serving()
        # Without a lease it answers nobody, whatever it has taken over: a late answer may have completed that.
        leased = {index for index, true_s in until_s.items() if true_s > self.world.now_s}
        for index in leased - self._serving:
            assert job is not None
            self.world.note(self.name, "serves", "bucket", index)
            epoch = job.buckets[index].epoch
            if self._served.get(index) != epoch:  # else it had only stopped, to hand it over or without a lease
                self.invariants.began_to_serve(self, index, epoch)
            self._served[index] = epoch
        self._serving = leased
        self.invariants.serves(self, until_s)

    def _check(self, shard: Shard) -> None:
        version = (shard.bucket.epoch, shard.counter)
        self.invariants.ledger.holds(self.name, shard.index, version, shard.values.array, done_of(shard.memory))
