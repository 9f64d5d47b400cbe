"""A few parameter servers' cores with copies of one job's buckets, driven by hand: messages in order, unless held back.

The configuration service is a dictionary; a server's death is its node key's. Nothing happens but what a test asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from adamctl.config.records import (
    Acks,
    BucketRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    decode,
    encode,
    node_key,
)
from adamctl.kernels.rules.make import make_rule
from adamctl.model.layout import Bucket, ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.apply import Applier
from adamctl.roles.ps.core import Core
from adamctl.roles.ps.core_copies import HeldCopy
from adamctl.roles.ps.core_instructions import (
    AnswerAttach,
    AnswerPull,
    AnswerPush,
    Apply,
    Free,
    Instruction,
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
    NodeView,
    Notice,
    Propose,
    ReadNode,
    ReplicationConfig,
    Reply,
)
from adamctl.roles.ps.following import JobView
from adamctl.roles.ps.replica_body import CopyRecord
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import (
    AttachRequest,
    ConfigChanges,
    ConfigCompareAndSetReply,
    Message,
    PullRequest,
    PushPart,
    PushRequest,
    PushResult,
    PushSource,
)
from tests.roles.ps.ps_cluster import make_tensors

JOB = "job"
CLIENT = ("w", 1)
BORN = 1
ONE = ((1, 32),)
"""Shapes of a model that is one shard."""


class Config:
    """Keys with revisions, and compare-and-set."""

    def __init__(self) -> None:
        self.revision = BORN
        self.keys: dict[str, tuple[bytes, int]] = {}

    def set(self, key: str, value: bytes | None) -> int:
        self.revision += 1
        if value is None:
            self.keys.pop(key, None)
        else:
            self.keys[key] = (value, self.revision)
        return self.revision

    def change(self, changes: ConfigChanges) -> ConfigCompareAndSetReply:
        conflicts = tuple(
            key for key, revision in changes.conditions.items() if self.keys.get(key, (b"", 0))[1] != revision
        )
        if not conflicts:
            self.revision += 1
            self.keys |= {key: (value, self.revision) for key, value in changes.puts.items()}
        return ConfigCompareAndSetReply(self.revision, conflicts)


class Server:
    """One process of a server: `said` is everything its core has said that is not a message."""

    def __init__(self, cluster: Cluster, node: str, incarnation: int) -> None:
        self.cluster, self.node, self.incarnation = cluster, node, incarnation
        self.core = Core(1)
        self.lease = True
        self.alive = True
        self.answers: dict[Any, Instruction] = {}
        self.said: list[Instruction] = []
        self.waiting: list[Apply] = []
        self.store: dict[int, list[ShardContent]] = {}
        self.applier = Applier()
        self.replication = ReplicationCore(
            self.core, node, cluster.config_of_cores, lambda: self.lease, lambda: cluster.now
        )
        revision = cluster.config.set(node_key(node), encode(cluster.node_record(node, incarnation)))
        self.replication.registered(incarnation, revision)
        self.job = Job(JOB, cluster.layout, make_rule(RuleConfig(cluster.rule)))
        self.core.add_job(self.job)

    # --- what its core says -----------------------------------------------------------------------------------------

    def take(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if not self.alive:
                return
            self._take(instruction)

    def _take(self, instruction: Instruction) -> None:
        cluster = self.cluster
        if isinstance(instruction, Apply):
            self.waiting.append(instruction)
            if cluster.applies:
                cluster.later(self.apply)
        elif isinstance(instruction, Ask):
            cluster.send(self, instruction)
        elif isinstance(instruction, Reply):
            instruction.token(instruction.message, copied(instruction.records), 0)
            for image in instruction.images:
                image.release()
        elif isinstance(instruction, Propose):
            cluster.propose(self, instruction)
        elif isinstance(instruction, (Refresh, ReadNode)):
            self.said.append(instruction)
            cluster.later(self.configure)
        elif isinstance(instruction, Build):
            cluster.later(lambda: self.build(instruction.buckets))
        elif isinstance(instruction, Load):
            found = {bucket: self.store.get(bucket) for bucket in instruction.buckets}
            cluster.later(lambda: self.take(self.replication.loaded(JOB, found, cluster.now)))
        elif isinstance(instruction, Refuse) and callable(instruction.token):
            instruction.token(None, [], instruction.code)
        elif isinstance(instruction, (AnswerPush, AnswerPull, AnswerAttach, Refuse)):
            self.answers[instruction.token] = instruction
        else:
            assert isinstance(instruction, (Holds, LetGo, Notice, Keep, Free)), instruction
            self.said.append(instruction)

    def apply(self) -> None:
        """Carries out the batches that wait."""
        waiting, self.waiting = self.waiting, []
        for instruction in waiting:
            self.applier.apply(self.job.rule, instruction.batches)
            self.take(self.core.completed(instruction.job, instruction.batches))

    def build(self, buckets: Iterable[int]) -> None:
        layout, rule = self.cluster.layout, self.job.rule
        contents = {
            bucket: [
                ShardContent(s.index, np.zeros(s.size, np.float32), rule.initial_state(s.size))
                for s in layout.shards_of(layout.buckets[bucket])
            ]
            for bucket in buckets
        }
        self.take(self.replication.built(JOB, contents, self.cluster.now))

    def configure(self) -> None:
        if self.alive:
            cluster = self.cluster
            view, nodes = cluster.view(), cluster.nodes()
            self.take(self.replication.configured(JOB, view, nodes, cluster.draining, cluster.now))

    # --- clients ----------------------------------------------------------------------------------------------------

    def attach(self, settled: Iterable[tuple[int, int]] = ()) -> Instruction:
        request = AttachRequest(JOB, self.cluster.layout.hash)
        self.take(self.core.attach("attach", 1, CLIENT, request, self.cluster.now, settled))
        return self.answers["attach"]

    def push(
        self,
        token: Any,
        parts: Iterable[tuple[int, int, float]],
        epoch: int | None = None,
        kind: int = UpdateKind.DELTA,
        place: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Pushes (shard, sequence, value): a constant to add. `place`: step, part, parts."""
        sources, wire_parts, body = [], [], b""
        layout = self.cluster.layout
        for shard, sequence, value in parts:
            s = layout.shards[shard]
            wire_parts.append(PushPart(shard, sequence, len(sources)))
            sources.append(PushSource(kind, s.tensor, s.row_start, s.row_stop, len(body)))
            body += np.full(s.size, value, np.float32).tobytes()
        epochs = self.epochs([part.shard for part in wire_parts], epoch)
        request = PushRequest(JOB, epochs, 1.0, 1, 1, tuple(sources), tuple(wire_parts), *place)
        self.take(self.core.push(token, 1, CLIENT, request, memoryview(body), self.cluster.now))

    def epochs(self, shards: Iterable[int], epoch: int | None = None) -> dict[int, int]:
        buckets = {self.cluster.layout.bucket_of_shard[shard] for shard in shards}
        return {bucket: self.cluster.record(bucket).epoch if epoch is None else epoch for bucket in buckets}

    def pull(self, token: Any, shards: list[int]) -> Instruction | None:
        request = PullRequest(JOB, self.epochs(shards), tuple(shards))
        self.take(self.core.pull(token, 1, CLIENT, request, self.cluster.now))
        return self.answers.get(token)

    def results(self, token: Any) -> list[PushResult]:
        answer = self.answers[token]
        assert isinstance(answer, AnswerPush), answer
        return list(answer.message.results)

    def code(self, token: Any) -> int | None:
        """Returns the code of an answer, of a push that of its first part; None: there is no answer yet."""
        answer = self.answers.get(token)
        if isinstance(answer, Refuse):
            return answer.code
        return None if answer is None else self.results(token)[0].code

    # --- what it holds ----------------------------------------------------------------------------------------------

    def serves(self, bucket: int = 0) -> bool:
        return self.alive and bucket in self.job.buckets

    def held(self, bucket: int = 0) -> HeldCopy | None:
        return self.replication.copies(JOB).get(bucket)

    def value(self, shard: int) -> float:
        """Returns the one value that all elements of a shard have here."""
        held = self.held(self.cluster.layout.bucket_of_shard[shard])
        array = self.job.shards[shard].values.array if held is None else held.shards[shard].arrays[0]
        values = set(array.tolist())
        assert len(values) == 1, values
        return float(values.pop())


class Cluster:
    """Servers, what is on its way between them, and the records.

    Attributes:
        hold: which messages are kept back: (from, to, message) -> bool; replies as well.
        held: those, to be delivered by `deliver_held`.
        applies: batches are carried out as soon as their turn comes.
        proposals: compare-and-sets that were made: (server, record, done).
        propose_hook: called before one is; may return False: nobody knows what became of it.
    """

    def __init__(
        self,
        nodes: str = "abc",
        *,
        replication: int = 3,
        acks: Acks = "replicated",
        min_in_sync: int = 1,
        rule: str = "add",
        shapes: tuple[tuple[int, ...], ...] = ONE,
        spare: str = "",
        one_bucket: bool = True,
        start: bool = True,
        **config: float,
    ) -> None:
        layout_record = LayoutRecord(make_tensors(shapes), 1)
        cut = layout_record.layout()
        whole = Bucket(0, 0, len(cut.shards), sum(bucket.size_bytes for bucket in cut.buckets))
        self.layout = ParameterLayout(cut.tensors, cut.shards, (whole,)) if one_bucket else cut
        self.rule = rule
        self.now = 100.0
        self.config_of_cores = ReplicationConfig.of_lease(4.0, **config)
        self.config = Config()
        self.draining: frozenset[str] = frozenset()
        self.hold: Callable[[str, str, Message | None], bool] = lambda source, target, message: False
        self.held: list[Callable[[], None]] = []
        self.applies = True
        self.proposals: list[tuple[str, BucketRecord, bool]] = []
        self.propose_hook: Callable[[Server, BucketRecord], bool] = lambda server, record: True
        self._queue: deque[Callable[[], None]] = deque()
        self._incarnations = 10
        self.servers: dict[str, Server] = {}
        self.record_of_job = JobRecord(
            "running", self.layout.hash, RuleConfig(rule), 3, "", "", acks, replication, min_in_sync
        )
        for node in nodes + spare:
            self.start(node)
        for bucket in range(len(self.layout.buckets)):
            members = tuple(nodes[:replication])
            self.config.set(bucket_key(JOB, bucket), encode(BucketRecord(1, members[0], members)))
        if start:
            self.configure()
            self.run()
            for server in self.servers.values():
                server.attach()

    def __getitem__(self, node: str) -> Server:
        return self.servers[node]

    def start(self, node: str) -> Server:
        """Starts a process; one of that name must be dead."""
        self._incarnations += 1
        self.servers[node] = Server(self, node, self._incarnations)
        return self.servers[node]

    def kill(self, node: str, reported: bool = True) -> None:
        """Ends a process; `reported`: its node key goes at once."""
        self.servers[node].alive = False
        if reported:
            self.config.set(node_key(node), None)

    # --- records ----------------------------------------------------------------------------------------------------

    def node_record(self, node: str, incarnation: int) -> NodeRecord:
        return NodeRecord(node, "ps", incarnation, (f"memory://{node}",), "host", 1)

    def nodes(self) -> dict[str, NodeView]:
        found = {}
        for key, (value, revision) in self.config.keys.items():
            if key.startswith(node_key("")):
                record = decode(value, NodeRecord)
                found[record.node] = NodeView(record, revision)
        return found

    def record(self, bucket: int = 0) -> BucketRecord:
        return decode(self.config.keys[bucket_key(JOB, bucket)][0], BucketRecord)

    def view(self) -> JobView:
        buckets = {index: self.record(index) for index in range(len(self.layout.buckets))}
        revisions = {index: self.config.keys[bucket_key(JOB, index)][1] for index in buckets}
        return JobView(self.record_of_job, self.layout, buckets, BORN, revisions, frozenset())

    def configure(self, *nodes: str) -> None:
        """Tells servers (all of them if none are named) what the records are now."""
        for node in nodes or tuple(self.servers):
            self.servers[node].configure()

    def propose(self, server: Server, instruction: Propose) -> None:
        records = [decode(value, BucketRecord) for value in instruction.changes.puts.values()]

        def change() -> None:
            known = [self.propose_hook(server, record) for record in records]
            if not all(known):
                self.proposals += [(server.node, record, False) for record in records]
                server.take(server.replication.proposed(instruction.order, None, self.now))
                return
            reply = self.config.change(instruction.changes)
            self.proposals += [(server.node, record, not reply.conflicts) for record in records]
            if server.alive:
                server.take(server.replication.proposed(instruction.order, reply, self.now))
            self.configure()

        self.later(change)

    # --- messages ---------------------------------------------------------------------------------------------------

    def later(self, action: Callable[[], None]) -> None:
        self._queue.append(action)

    def send(self, source: Server, ask: Ask) -> None:
        records = copied(ask.records)
        for image in ask.images:
            image.release()

        def answered(message: Message | None, found: list[CopyRecord], code: int) -> None:
            def arrive() -> None:
                if source.alive and message is not None:
                    source.take(source.replication.answered(ask.order, message, found, 0, self.now))
                elif source.alive:
                    source.take(source.replication.refused(ask.order, code, "refused", self.now))

            self._deliver(ask.peer, source.node, message, arrive)

        def arrive() -> None:
            target = self.servers[ask.peer]
            if target.alive:
                request = target.replication.requested(
                    answered, source.node, source.incarnation, ask.message, records, self.now
                )
                target.take(request)
            elif source.alive:
                source.take(source.replication.failed(ask.order, "no connection", self.now))

        self._deliver(source.node, ask.peer, ask.message, arrive)

    def _deliver(self, source: str, target: str, message: Message | None, arrive: Callable[[], None]) -> None:
        if self.hold(source, target, message):
            self.held.append(arrive)
        else:
            self.later(arrive)

    def deliver_held(self) -> None:
        """Lets through what was kept back, and keeps nothing back any more."""
        self.hold = lambda source, target, message: False
        held, self.held = self.held, []
        self._queue.extend(held)
        self.run()

    def hold_all(self, *pairs: tuple[str, str]) -> None:
        """Keeps back everything from one server to another, for each pair."""
        self.hold = lambda source, target, message: (source, target) in pairs

    def run(self, most: int = 10_000) -> None:
        """Does everything that is due now."""
        while self._queue:
            most -= 1
            assert most, "it goes on for ever"
            self._queue.popleft()()

    def step(self, most: int = 1) -> None:
        """Does only so much of what is due now."""
        for _ in range(most):
            if self._queue:
                self._queue.popleft()()

    def pass_time(self, seconds: float, most: int = 400) -> None:
        """Lets time pass, with every tick that is due; whoever is asked for a tick too often is caught."""
        until = self.now + seconds
        while self.now < until:
            most -= 1
            assert most, "ticks without end"
            due = [s.replication.next_deadline_s(self.now) for s in self.servers.values() if s.alive]
            self.now = min(max(min(due, default=until), self.now + 0.01), until)
            for server in self.servers.values():
                if server.alive:
                    server.take(server.replication.tick(self.now))
            self.run()

    # --- invariants -------------------------------------------------------------------------------------------------

    def primary(self, bucket: int = 0) -> Server:
        (found,) = [server for server in self.servers.values() if server.serves(bucket)]
        return found

    def check(self) -> None:
        """Asserts I1, I3 and I6 of every bucket as it is now."""
        for bucket in range(len(self.layout.buckets)):
            record = self.record(bucket)
            server = self.servers[record.primary]
            if server.serves(bucket):
                others = [self.servers[node] for node in record.in_sync if node != record.primary]
                held = [s.held(bucket) for s in others if s.alive]
                check_bucket(server.core, JOB, bucket, [copy for copy in held if copy is not None])


def check_bucket(core: Core, job: str, bucket: int, copies: Iterable[HeldCopy]) -> None:
    """Asserts that committed(copy) <= committed(primary) <= prepared(copy), and that equal versions are equal bytes.

    Args:
        core: of the server that serves the bucket, without a batch under way.
        copies: what the other in-sync members hold.
    """
    served = core.jobs[job]
    described = served.layout.buckets[bucket]
    for held in copies:
        for index in range(described.shard_start, described.shard_stop):
            shard, copy = served.shards[index], held.shards[index].copy
            assert copy is not None, (bucket, index)
            assert shard.replica is not None
            committed = shard.replica.committed
            assert copy.committed <= committed <= copy.counter, (index, copy.committed, committed, copy.counter)
            if copy.counter == shard.counter and shard.batch is None:
                arrays = (shard.values.array, *shard.state.arrays)
                for mine, theirs in zip(arrays, held.shards[index].arrays, strict=True):
                    assert mine.tobytes() == theirs.tobytes(), (index, copy.epoch, copy.counter)


def copied(records: Iterable[CopyRecord]) -> list[CopyRecord]:
    """As they are after a way through a body: in memory of their own."""
    return [CopyRecord(record.copy, [np.array(array) for array in record.arrays]) for record in records]
