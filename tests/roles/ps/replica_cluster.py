"""A few parameter servers' cores with copies of one job's buckets, driven by hand: messages in order, unless held back.

The configuration service is a dictionary; a server's death is its node key's. Nothing happens but what a test asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from adamctl.config.records import (
    REPLICATION_MAX,
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
from adamctl.model.layout import Bucket, ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.core.instructions import Ask, Propose
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.roles.ps.replication.core.bucket_group import ShardReplica
from adamctl.roles.ps.replication.core.held_bucket import HeldCopy
from adamctl.roles.ps.replication.core.node_keys import NodeView
from adamctl.roles.ps.replication.core.outbox import ReplicationConfig
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply, Message
from tests.roles.ps.ps_cluster import make_tensors
from tests.roles.ps.replica_server import JOB, Server, copied

BORN = 1
ONE = ((1, 32),)
"""Shapes of a model that is one shard."""
MANY = ((64, 16),)
"""Of one with many."""


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


class Cluster:
    """Servers, what is on its way between them, and the records.

    Attributes:
        hold: which messages are kept back: (from, to, message) -> bool; replies as well.
        held: those, to be delivered by `deliver_held`.
        applies: batches are carried out as soon as their turn comes.
        proposals: compare-and-sets that were made: (server, record, done).
        domain_of: server -> its failure domain; one that is missing is on the one host.
        served: servers that have served buckets, or were about to, as everybody can know.
        without_store: servers that keep nothing on a disk; all others do if what is acknowledged is to be durable.
        propose_hook: called before one is; may return False: nobody knows what became of it.
    """

    def __init__(
        self,
        nodes: str = "abc",
        *,
        replication: int = 3,
        acks: Acks = "replicated",
        min_in_sync: int = 1,
        rule: str | RuleConfig = "add",
        shapes: tuple[tuple[int, ...], ...] = ONE,
        spare: str = "",
        without_store: str = "",
        one_bucket: bool = True,
        start: bool = True,
        domain_of: Mapping[str, str] | None = None,
        **config: float,
    ) -> None:
        layout_record = LayoutRecord(make_tensors(shapes), 1)
        cut = layout_record.layout()
        whole = Bucket(0, 0, len(cut.shards), sum(bucket.size_bytes for bucket in cut.buckets))
        self.layout = ParameterLayout(cut.tensors, cut.shards, (whole,)) if one_bucket else cut
        self.acks, self.without_store = acks, without_store
        self.domain_of = domain_of or {}
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
        wanted = min(replication, REPLICATION_MAX)  # a bucket may have a member more for a while
        self.served: set[str] = set()
        described = rule if isinstance(rule, RuleConfig) else RuleConfig(rule)
        self.record_of_job = JobRecord("running", self.layout.hash, described, 3, "", "", acks, wanted, min_in_sync)
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
        stores, domain = self.has_store(node), self.domain_of.get(node, "")
        return NodeRecord(
            node, "ps", incarnation, (f"memory://{node}",), "host", 1, stores=stores, failure_domain=domain
        )

    def has_store(self, node: str) -> bool:
        return self.acks == "durable" and node not in self.without_store

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
        return JobView(self.record_of_job, self.layout, buckets, BORN, revisions, frozenset(self.served))

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
                    source.take(source.replication.refused(ask.order, "refused", self.now))

            self._deliver(ask.peer, source.node, message, arrive)

        def arrive() -> None:
            target = self.servers[ask.peer]
            if target.alive:
                request = target.replication.requested(answered, source.node, ask.message, records, self.now)
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


def check_bucket(core: ServerCore, job: str, bucket: int, copies: Iterable[HeldCopy]) -> None:
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
            assert isinstance(shard.replica, ShardReplica)
            committed = shard.replica.committed
            assert copy.committed <= committed <= copy.counter, (index, copy.committed, committed, copy.counter)
            if copy.counter == shard.counter and shard.batch is None:
                arrays = (shard.values.array, *shard.state.arrays)
                for mine, theirs in zip(arrays, held.shards[index].arrays, strict=True):
                    assert mine.tobytes() == theirs.tobytes(), (index, copy.epoch, copy.counter)
