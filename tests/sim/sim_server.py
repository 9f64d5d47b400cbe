"""A parameter server in the simulator: the real cores, and a shell with a disk, threads and links that take time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adamctl.config.records import node_key
from adamctl.kernels.rules.make import make_rule
from adamctl.roles.controller.core_events import Disconnected
from adamctl.roles.controller.core_state import Changes
from adamctl.roles.lease import Lease
from adamctl.roles.ps.apply import Applier
from adamctl.roles.ps.core import Core
from adamctl.roles.ps.core_copies import HeldCopy, HeldShard
from adamctl.roles.ps.core_flush import Entry, FlushCore, Group, Item, Waiter
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
from adamctl.roles.ps.core_job import Job, ShardContent
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
from adamctl.roles.ps.core_sequence import ClientKey, ClientMemory
from adamctl.roles.ps.core_shard import Shard
from adamctl.roles.ps.following import JOBS_PREFIX, JobKeys
from adamctl.roles.ps.node_keys import DRAINS_PREFIX, NODES_PREFIX, NodeKeys
from adamctl.roles.ps.replica_body import CopyRecord, decode_body, encode_body
from adamctl.wire.messages import (
    AttachRequest,
    ConfigCompareAndSetReply,
    Message,
    PullRequest,
    PushRequest,
    PushResult,
)
from tests.sim.controllers import SimController
from tests.sim.engine import Clock, ViolationError, World
from tests.sim.server_ledger import Done, done_of
from tests.sim.sim_process import Member, RunView, SimProcess
from tests.sim.sim_store import FLUSH, RECORD_BYTES, Held, Holding, SimDisk, StoredShard, Written

if TYPE_CHECKING:
    from tests.sim.server_invariants import ServerInvariants
    from tests.sim.sim_push_client import Respond

STORE_TICK_S = 0.1


@dataclass(eq=False)
class _Request:
    """A client's request. `arrays` are copied when they are sent, which is when nobody may have written to them."""

    respond: Respond
    kept: bool = False


@dataclass(frozen=True, eq=False)
class PeerRequest:
    """Another server's request. `respondent`: the incarnation that answers."""

    peer: str
    incarnation: int
    message: Message
    body: bytes
    respond: Callable[[Message, bytes, int], None]
    refuse: Callable[[Refuse], None]
    broken: Callable[[], None]
    respondent: int = 0


@dataclass(eq=False)
class _Taking:
    """Whom a shard's image is for: a record of a group."""

    group: Group
    item: Item


class SimServer(SimProcess):
    """One parameter server, process after process.

    Attributes:
        disk: what survives.
        core, replication: None while the process is down or not registered.
        disk_s_max, apply_s_max: longest sync, longest batch.
        disk_full: no group can be written.
    """

    def __init__(
        self,
        world: World,
        name: str,
        clock: Clock,
        hosts: Mapping[str, SimController],
        lease_s: float,
        invariants: ServerInvariants,
        job: str,
    ) -> None:
        super().__init__(world, name, clock)
        self.hosts, self.lease_s, self.invariants, self.job_name = hosts, lease_s, invariants, job
        self.disk = SimDisk()
        self.disk_s_max, self.apply_s_max, self.disk_full = 0.002, 0.001, False
        self.peers: dict[str, SimServer] = {}
        self.on_crash: Callable[[SimServer], None] = lambda _: None
        self.last_connection = 0
        self.core: Core | None = None
        self.replication: ReplicationCore
        self.member: Member
        self.lease: Lease
        self.from_receipt = False  # planted fault
        self.sync_first = True  # if not, a planted fault: durable before it is synced
        self.view: RunView
        self._applier = Applier()

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        return self.member.incarnation if self.run else 0

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
        self.born_s = self.world.now_s
        self._served: set[int] = set()
        self.registered_revision = 0
        self.held = Held()
        self.held_entry = Entry(self.held, RECORD_BYTES)
        self._tick_due_s = float("inf")
        self._images: dict[int, Image] = {}
        self._gone: set[int] = set()
        self._orders: dict[int, str] = {}
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
                self.world.after(0.001, partial(peer.gate, peer.run, partial(peer.broken, self.name)))
        self.invariants.serves(self, {})
        self.invariants.crashed(self)
        self.on_crash(self)

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
        core = Core(1, flush=FlushCore(FLUSH))
        config = ReplicationConfig.of_lease(self.lease_s, settle_s=1.0, shun_s=1.0)
        self.replication = ReplicationCore(core, self.name, config, self.lease.valid, self.clock.now)
        self.core = core
        self.registered_revision = revision
        core.unknown.begin(told=False)
        self.replication.registered(self.member.incarnation, revision)
        for prefix in (JOBS_PREFIX, NODES_PREFIX, DRAINS_PREFIX):
            self.member.follow(prefix, partial(self._follow, prefix))
        self._store_tick()
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
        self._do(self.replication.configured(self.job_name, view, self.nodes.nodes, self.nodes.draining, now))

    def _read_node(self, node: str) -> None:
        def found(changes: Changes | None) -> None:
            if changes is None or self.core is None:
                return
            entry = next((entry for entry in changes.entries if entry.key == node_key(node)), None)
            if entry is not None:
                self.nodes.take_nodes(Changes(changes.revision, (entry,)))
            else:
                self.nodes.take_nodes(Changes(changes.revision, (), (node_key(node),)))
            self._configure()

        self.member.read(f"node {node}", node_key(node), found)

    def _reread(self, name: str) -> None:
        def found(changes: Changes | None) -> None:
            if changes is not None and self.core is not None:
                self.keys.take_job(name, list(changes.entries))
                self._configure()

        self.member.read("job", f"/jobs/{name}", found)

    # --- clients ----------------------------------------------------------------------------------------------------

    def request(self, connection: int, client: ClientKey, message: Message, body: memoryview, respond: Respond) -> None:
        """A client's request has come; without a process nobody answers."""
        self.gate(self.run, lambda: self._serve(connection, client, message, body, respond))

    def disconnect(self, connection: int) -> None:
        self.gate(self.run, lambda: self.core.disconnected(connection) if self.core is not None else None)

    def _serve(self, connection: int, client: ClientKey, message: Message, body: memoryview, respond: Respond) -> None:
        core, token, now = self.core, _Request(respond), self.clock.now()
        if core is None:
            return
        match message:
            case PushRequest():
                out = core.push(token, connection, client, message, body, now)
            case PullRequest():
                out = core.pull(token, connection, client, message, now)
            case AttachRequest():
                out = self._attach(core, token, connection, client, message, body)
            case _:
                raise TypeError(message)
        self._do(out)

    def _attach(
        self, core: Core, token: _Request, connection: int, client: ClientKey, message: AttachRequest, body: memoryview
    ) -> list[Any]:
        settled = np.frombuffer(body, "<i8").reshape(-1, 2).tolist()
        job = core.jobs.get(message.job)
        before = {index: self._done(job, index, client) for index, _ in settled} if job is not None else {}
        out = core.attach(token, connection, client, message, self.clock.now(), [(i, n) for i, n in settled])
        for index, found in before.items():
            after = self._done(job, index, client)
            if after > found:
                self.invariants.ledger.passed_over(self.name, index, client, found + 1, after)
        return out

    def _done(self, job: Job | None, index: int, client: ClientKey) -> int:
        shard = job.shards.get(index) if job is not None else None
        return shard.memory.sequence(client) if shard is not None else 0

    # --- other servers ----------------------------------------------------------------------------------------------

    def _ask(self, ask: Ask) -> None:
        """Sends a request; its body is read off the arrays a little later, when they are held for the last time."""
        self._orders[ask.order] = ask.peer
        peer, view, incarnation = self.peers[ask.peer], self.view, self.incarnation

        def respond(message: Message, body: bytes, peer_incarnation: int) -> None:
            view.process.gate(view.run, lambda: answered(message, body, peer_incarnation))

        def answered(message: Message, body: bytes, peer_incarnation: int) -> None:
            if self._orders.pop(ask.order, None) is not None:
                records = decode_body(memoryview(body)) if body else []
                self._do(self.replication.answered(ask.order, message, records, peer_incarnation, self.clock.now()))

        def refuse(answer: Refuse) -> None:
            view.process.gate(view.run, lambda: refused(answer))

        def refused(answer: Refuse) -> None:
            if self._orders.pop(ask.order, None) is not None:
                self._do(self.replication.refused(ask.order, answer.code, answer.message, self.clock.now()))

        def broken() -> None:
            view.after(0.0, lambda: self.broken(ask.peer))

        def sent() -> None:
            body = b"".join(encode_body(ask.records)) if ask.records else b""
            for image in ask.images:
                image.release()
            request = PeerRequest(self.name, incarnation, ask.message, body, respond, refuse, broken)
            view.send_reliably(peer.name, lambda: peer.peer_request(request), broken)

        self._soon(bool(ask.images), sent)
        self.view.after(self.clock.true_length_s(ask.deadline_s), lambda: self._failed(ask.order, "no answer in time"))

    def _failed(self, order: int, why: str) -> None:
        if self._orders.pop(order, None) is not None and self.core is not None:
            self._do(self.replication.failed(order, why, self.clock.now()))

    def broken(self, peer: str) -> None:
        """A connection has ended, and nobody will answer over it."""
        for order in [order for order, asked in self._orders.items() if asked == peer]:
            self._failed(order, "the connection is closed")

    def _soon(self, takes_time: bool, action: Callable[[], None]) -> None:
        if takes_time:
            self.view.after(self.world.random.random() * 0.001, action)
        else:
            action()

    def peer_request(self, request: PeerRequest) -> None:
        """A request of another server has come; where there is no process, its connection is refused."""
        if not self.alive or self.core is None:
            request.broken()
            return
        self.gate(self.run, lambda: self._peer(request))

    def _peer(self, request: PeerRequest) -> None:
        if self.core is None:
            return
        request = replace(request, respondent=self.incarnation)
        body = memoryview(request.body)
        records = [CopyRecord(r.copy, [a.copy() for a in r.arrays]) for r in decode_body(body)] if body else []
        peer, incarnation, now = request.peer, request.incarnation, self.clock.now()
        self._do(self.replication.requested(request, peer, incarnation, request.message, records, now))
        for record in records:
            held = owner_of(self, record.copy.shard)
            if isinstance(held, HeldShard) and held.copy is not None:
                version = (held.copy.epoch, held.copy.counter)
                done = done_of(held.copy.memory)
                self.invariants.ledger.holds(self.name, held.index, version, held.arrays[0], done)

    def _reply(self, reply: Reply) -> None:
        request: PeerRequest = reply.token

        def sent() -> None:
            body = b"".join(encode_body(reply.records)) if reply.records else b""
            for image in reply.images:
                image.release()
            self.view.send_reliably(
                request.peer, lambda: request.respond(reply.message, body, request.respondent), request.broken
            )

        self._soon(bool(reply.images), sent)

    # --- instructions -----------------------------------------------------------------------------------------------

    def _do(self, instructions: Sequence[Any]) -> None:
        """Carries out what the cores say, and then looks at what has become of it."""
        for instruction in instructions:
            if self.core is None:
                return
            self._carry_out(instruction)
        self._kick()
        self._stepped()

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case Apply():
                self._apply(instruction)
            case AnswerPush():
                done = [result for result in instruction.message.results if not result.code]
                self._answers(result.shard for result in done)
                self._acknowledges(done)
                instruction.token.respond(instruction.message)
            case AnswerAttach():
                instruction.token.respond(instruction.message)
            case AnswerPull():
                self._answer_pull(instruction)
            case Refuse():
                self._refuse(instruction)
            case Keep() | Free():
                pass
            case Image():
                self._take_image(instruction)
            case Refresh():
                self._reread(instruction.job)
            case Ask():
                self._ask(instruction)
            case Reply():
                self._reply(instruction)
            case Propose():
                self._propose(instruction)
            case ReadNode():
                self._read_node(instruction.node)
            case Build():
                self.view.after(self.world.random.random() * 0.02, lambda: self._build(instruction))
            case Load():
                self.view.after(self.world.random.random() * 0.02, lambda: self._load(instruction))
            case Holds():
                self._hold(instruction)
            case LetGo():
                self._let_go(instruction)
            case Notice():
                self.world.note(self.name, "says", f"bucket {instruction.bucket}:", instruction.text)
            case _:
                raise TypeError(f"unknown instruction {instruction}")

    def _refuse(self, instruction: Refuse) -> None:
        token = instruction.token
        if isinstance(token, PeerRequest):
            self.view.send_reliably(token.peer, lambda: token.refuse(instruction), token.broken)
            return
        token.respond(instruction)

    def _answers(self, shards: Iterable[int]) -> None:
        """Only a primary whose lease holds answers (I1), unless nobody else has a copy; epochs alone are safe, too."""
        if self.lease.valid():
            return
        layout = self.invariants.layout
        for index in {layout.bucket_of_shard[shard] for shard in shards}:
            if len(self.invariants.records[index].in_sync) > 1:
                raise ViolationError(f"an answer without a lease: {self.name}, bucket {index}")

    def _acknowledges(self, results: Sequence[PushResult]) -> None:
        """What is acknowledged has been prepared by every member of the record that we know (I3)."""
        invariants, job = self.invariants, self.job
        if invariants.ledger.acks == "applied" or job is None:
            return
        for result in results:
            index = job.layout.bucket_of_shard[result.shard]
            record, bucket = invariants.records[index], job.buckets.get(index)
            if bucket is None or record.primary != self.name or record.epoch != bucket.epoch:
                continue
            for node in record.in_sync:
                member = self.peers[node]
                held = owner_of(member, result.shard) if member is not self else None
                if not isinstance(held, HeldShard) or not member.lived_since(invariants.record_revisions[index]):
                    continue
                if held.version[1] < result.version:
                    found = f"shard {result.shard} at {result.version}, {node} has {held.version}"
                    raise ViolationError(f"acknowledged, and not prepared by a member: {found}")

    def _answer_pull(self, instruction: AnswerPull) -> None:
        """The arrays are read when they are sent, a moment later."""
        self._answers(part.shard for part in instruction.message.parts if not part.code)

        def sent() -> None:
            arrays = [values.array.copy() for values in instruction.values]
            for values in instruction.values:
                values.release()
            instruction.token.respond(instruction.message, arrays)

        self._soon(True, sent)

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
            self._applier.apply(instruction.job.rule, instruction.batches)
            out = self.core.completed(instruction.job, instruction.batches, self.clock.now())
            for batch in instruction.batches:
                if batch.applied and not batch.shard.bucket.dropped:
                    self._check(batch.shard)
            self._do(out)

        due_s = random.random() * self.apply_s_max
        if random.random() < 0.2:
            self.view.after(due_s / 2, halfway)
        self.view.after(due_s, done)

    def _propose(self, instruction: Propose) -> None:
        self.world.note(self.name, "proposes", instruction.why)

        def answered(reply: ConfigCompareAndSetReply | None) -> None:
            if self.core is None:
                return
            self._do(self.replication.proposed(instruction.order, reply, self.clock.now()))

        self.member.compare_and_set(instruction.changes, answered)

    # --- buckets ----------------------------------------------------------------------------------------------------

    def _build(self, instruction: Build) -> None:
        assert self.core is not None
        job = self.core.jobs[instruction.job]
        contents = {
            index: [
                ShardContent(shard.index, np.zeros(shard.size, np.float32), job.rule.initial_state(shard.size))
                for shard in job.layout.shards_of(job.layout.buckets[index])
            ]
            for index in instruction.buckets
        }
        for index in instruction.buckets:
            self.held.buckets[index] = Holding(0, self._following(), True)
        self._do(self.replication.built(instruction.job, contents, self.clock.now()))

    def _load(self, instruction: Load) -> None:
        assert self.core is not None
        job = self.core.jobs[instruction.job]
        contents = {index: self._found_bucket(job, index) for index in instruction.buckets}
        for index, found in contents.items():
            if found is not None:
                self.held.buckets[index] = self.found.holding[index]
        self._do(self.replication.loaded(instruction.job, contents, self.clock.now()))

    def _found_bucket(self, job: Job, index: int) -> list[ShardContent] | None:
        """What the store was found to hold of a bucket: all of it, or None."""
        holding = self.found.holding.get(index)
        if holding is None:
            return None
        contents: list[ShardContent] = []
        for shard in job.layout.shards_of(job.layout.buckets[index]):
            stored = self.found.shards.get(shard.index)
            if stored is not None and stored.number >= holding.began:
                memory = ClientMemory.restored(stored.memory)
                values = stored.values.copy()
                contents.append(
                    ShardContent(shard.index, values, [], stored.counter, stored.pushes, memory, stored.epoch)
                )
            elif holding.whole:
                contents.append(ShardContent(shard.index, np.zeros(shard.size, np.float32), []))
            else:
                return None
        return contents

    def _hold(self, instruction: Holds) -> None:
        """A copy is held from now on: its shards are kept on disk, and so is that it is."""
        assert self.core is not None
        index = instruction.bucket
        known = self.held.buckets.get(index) or Holding(0, self._following(), False)
        self.held.buckets[index] = Holding(instruction.epoch, known.began, known.whole)
        self._changed_holding()
        for shard in self.owners_of(index):
            if shard.entry is None:
                shard.entry = Entry(shard, RECORD_BYTES)
            shard.entry.owner = shard

    def _let_go(self, instruction: LetGo) -> None:
        assert self.core is not None
        self.held.buckets.pop(instruction.bucket, None)
        self._changed_holding()
        job = self.core.jobs.get(instruction.job)
        if job is not None:
            for one in self.core.forget_left(job):
                self._carry_out(one)

    def _following(self) -> int:
        """Returns the number of the first record that is not under way yet."""
        assert self.core is not None and self.core.flush is not None
        group = self.core.flush.group
        return self._number(self.core.flush.next_sequence + (len(group.items) if group is not None else 0))

    def _number(self, sequence: int) -> int:
        return _run_number(self.run, sequence)

    def _changed_holding(self) -> None:
        assert self.core is not None and self.core.flush is not None
        flush = self.core.flush
        flush.changed(self.held_entry, self.clock.now(), 0)
        flush.wait(Waiter(None), self.held_entry, self.held_entry.changes)  # before any shard that somebody waits for

    # --- the store --------------------------------------------------------------------------------------------------

    def _store_tick(self) -> None:
        if self.core is None:
            return
        self.view.after(STORE_TICK_S, self._store_tick)
        self._begin_group()
        if self.core.acknowledgements is not None and self.core.acknowledgements.held:
            self._do(self.core.acknowledgements.durable((), self.clock.now()))

    def _kick(self) -> None:
        flush = self.core.flush if self.core is not None else None
        if flush is not None and flush.urgent and flush.group is None:
            self._begin_group()

    def _begin_group(self) -> None:
        assert self.core is not None and self.core.flush is not None
        flush = self.core.flush
        group = flush.take(self.clock.now())
        if group is None:
            return
        self._images.clear()
        self._gone.clear()
        for item in group.items:
            owner = item.entry.owner
            if isinstance(owner, Shard):
                for instruction in self.core.image(_Taking(group, item), owner):
                    self._carry_out(instruction)
                continue
            image = self.replication.image(_Taking(group, item), owner) if isinstance(owner, HeldShard) else None
            if image is not None:
                self._images[item.sequence] = image
            elif isinstance(owner, HeldShard):
                self._gone.add(item.sequence)
            flush.taken(item)
        self._submit_if_whole(group)

    def _take_image(self, image: Image) -> None:
        assert self.core is not None and self.core.flush is not None
        taking = image.token
        self.core.flush.taken(taking.item)
        self._images[taking.item.sequence] = image
        self._submit_if_whole(taking.group)

    def _submit_if_whole(self, group: Group) -> None:
        assert self.core is not None and self.core.flush is not None
        wanted = sum(isinstance(item.entry.owner, Shard | HeldShard) for item in group.items)
        if len(self._images) + len(self._gone) != wanted or self.core.flush.group is not group:
            return
        images, self._images = self._images, {}
        self._gone.clear()
        holding = None
        if any(isinstance(item.entry.owner, Held) for item in group.items):
            holding = dict(self.held.buckets)
        self._write(group, images, holding)

    def _write(self, group: Group, images: dict[int, Image], holding: dict[int, Holding] | None) -> None:
        """A sync takes its time; when the process dies meanwhile, what it wrote may be on disk all the same."""
        run, random = self.run, self.world.random
        full = self.disk_full
        survives = random.random() < 0.5
        due_s = 0.0002 + random.random() * self.disk_s_max

        def written() -> Written:
            shards = {
                image.shard.index: StoredShard(
                    _run_number(run, sequence),
                    image.epoch,
                    image.counter,
                    image.pushes,
                    image.memory,
                    image.values.array.copy(),
                )
                for sequence, image in images.items()
            }
            return Written(shards, holding)

        def synced() -> None:
            there = self.run == run and self.alive
            if not full and (there or survives):
                self.disk.write(record if record is not None else written())
            if record is None:
                self.gate(run, finished)

        def finished() -> None:
            assert self.core is not None and self.core.flush is not None
            for image in images.values():
                image.release()
            if full:
                self.core.flush.no_space(self.clock.now())
                waiters = []
            else:
                waiters = self.core.flush.finished([RECORD_BYTES] * len(group.items))
            assert self.core.acknowledgements is not None
            self._do(self.core.acknowledgements.durable(waiters, self.clock.now()))
            self._begin_group()

        record = None
        if not self.sync_first:
            record = written()
            self.view.after(0.0, finished)
        self.world.after(due_s, synced)

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
            self._do(self.replication.tick(self.clock.now()))

    # --- what there is ----------------------------------------------------------------------------------------------

    def _stepped(self) -> None:
        """After every event: who serves what now, and what has become of it."""
        if self.core is None:
            return
        self._set_tick()
        until_s = self._serving()
        for index in until_s:
            if index not in self._served:
                self.world.note(self.name, "serves", "bucket", index)
                self.invariants.began_to_serve(self, index)
        self._served = set(until_s)
        self.invariants.serves(self, until_s)

    def _serving(self) -> dict[int, float]:
        """Returns bucket -> until when, in true time, this server would answer for it."""
        return serving(self)

    @property
    def job(self) -> Job | None:
        return self.core.jobs.get(self.job_name) if self.core is not None else None

    def _check(self, shard: Shard) -> None:
        version = (shard.bucket.epoch, shard.counter)
        self.invariants.ledger.holds(self.name, shard.index, version, shard.values.array, done_of(shard.memory))

    def owners_of(self, index: int) -> list[Shard | HeldShard]:
        """Returns the shards of a bucket, served or held as a copy, as far as they are there."""
        shards = self.invariants.shards_of(index)
        return [found for shard in shards if (found := owner_of(self, shard)) is not None]

    def content_of(self, index: int) -> tuple[np.ndarray[Any, Any], Done] | None:
        """Returns a shard's values and what is in them; None: it is not held."""
        found = owner_of(self, index)
        if isinstance(found, Shard):
            return found.values.array, done_of(found.memory)
        if found is not None and found.copy is not None:
            return found.arrays[0], done_of(found.copy.memory)
        return None

    def done_of(self, index: int) -> Done | None:
        content = self.content_of(index)
        return content[1] if content is not None else None

    def copy(self, index: int) -> HeldCopy | None:
        return self.replication.copies(self.job_name).get(index) if self.core is not None else None

    def has_in_memory(self, index: int) -> bool:
        """Says whether a bucket would be there if all other servers were gone."""
        job, copy = self.job, self.copy(index)
        return job is not None and (index in job.buckets or (copy is not None and copy.complete and not copy.stored))

    def has_in_store(self, index: int) -> bool:
        """Says whether this process has found all of a bucket on its disk."""
        job = self.job
        return job is not None and self._found_bucket(job, index) is not None

    def holds_since_learning(self, index: int) -> bool:
        """Says whether the process that learnt a bucket is the one that is there."""
        return self.core is not None and self.registered_revision < self.invariants.record_revisions_before[index]

    def lived_since(self, revision: int) -> bool:
        """Says whether the process was there before a revision."""
        return self.core is not None and self.registered_revision < revision

    def why_not_serving(self, index: int) -> str:
        return str(self.replication.status()) + f" lease {self.lease.valid()}"


def serving(server: SimServer) -> dict[int, float]:
    """Returns the buckets that a server answers for, and until when in true time."""
    job = server.job
    if job is None or job.failed is not None:
        return {}
    until_s = float("inf")
    if job.leased:
        until_s = server.world.now_s + server.clock.true_delay_s(server.lease.until_s)
    return {index: until_s for index in job.buckets if index not in job.refusing}


def owner_of(server: SimServer, index: int) -> Shard | HeldShard | None:
    """Returns a shard that a server serves, or holds as a copy."""
    job = server.job
    if job is None:
        return None
    if index in job.shards:
        return job.shards[index]
    copy = server.copy(job.layout.bucket_of_shard[index])
    return copy.shards[index] if copy is not None else None


def _run_number(run: int, sequence: int) -> int:
    return run * 1_000_000 + sequence
