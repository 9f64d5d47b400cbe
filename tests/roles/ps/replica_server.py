"""One process of a parameter server's core, whose instructions are carried out by hand; see `replica_cluster`."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from adamctl.config.records import encode, node_key
from adamctl.kernels.rules.make import make_rule
from adamctl.roles.ps.apply.applier import Applier
from adamctl.roles.ps.core.flush import FlushCore
from adamctl.roles.ps.core.instructions import (
    AnswerAccumulate,
    AnswerAttach,
    AnswerPull,
    AnswerPush,
    AnswerVectors,
    Apply,
    Ask,
    Build,
    Compute,
    Free,
    Holds,
    Instruction,
    Keep,
    LetGo,
    Load,
    Notice,
    Propose,
    ReadNode,
    Refresh,
    Refuse,
    Reply,
)
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.roles.ps.core.vector_core import VectorCore
from adamctl.roles.ps.replication.core.held_bucket import HeldCopy
from adamctl.roles.ps.replication.core.replication_core import ReplicationCore
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import AttachRequest, PullRequest, PushPart, PushRequest, PushResult, PushSource

if TYPE_CHECKING:
    from tests.roles.ps.replica_cluster import Cluster

JOB = "job"
CLIENT = ("w", 1)


class Server:
    """One process of a server: `said` is everything its core has said that is not a message."""

    def __init__(self, cluster: Cluster, node: str, incarnation: int) -> None:
        self.cluster, self.node, self.incarnation = cluster, node, incarnation
        self.core = ServerCore(1, flush=FlushCore() if cluster.has_store(node) else None)
        self.lease = True
        self.vectors = VectorCore(self.core)
        self.confirmed_s = inf
        self.alive = True
        self.answers: dict[Any, Instruction] = {}
        self.said: list[Instruction] = []
        self.waiting: list[Apply | Compute] = []
        self.store: dict[int, list[ShardContent]] = {}
        self.applier = Applier()
        self.replication = ReplicationCore(
            self.core,
            node,
            cluster.config_of_cores,
            lambda: self.lease,
            lambda: cluster.now,
            confirmed_s=lambda: self.confirmed_s,
        )
        revision = cluster.config.set(node_key(node), encode(cluster.node_record(node, incarnation)))
        self.replication.registered(incarnation, revision)
        self.job = Job(JOB, cluster.layout, make_rule(cluster.record_of_job.rule))
        self.core.add_job(self.job)

    # --- what its core says -----------------------------------------------------------------------------------------

    def take(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if not self.alive:
                return
            self._take(instruction)

    def _take(self, instruction: Instruction) -> None:
        cluster = self.cluster
        if isinstance(instruction, Apply | Compute):
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
            cluster.later(lambda: self.load(instruction))
        elif isinstance(instruction, Refuse) and callable(instruction.token):
            instruction.token(None, [], instruction.code)
        elif isinstance(instruction, (AnswerAccumulate, AnswerAttach, AnswerPull, AnswerPush, AnswerVectors, Refuse)):
            self.answers[instruction.token] = instruction
        else:
            assert isinstance(instruction, (Holds, LetGo, Notice, Keep, Free)), instruction
            self.said.append(instruction)
            if isinstance(instruction, Holds) and cluster.record_of_job.replication == 1:
                cluster.later(self.tell_served)

    def apply(self) -> None:
        """Carries out the batches that wait."""
        waiting, self.waiting = self.waiting, []
        for instruction in waiting:
            self.applier.carry_out(instruction)
            if isinstance(instruction, Compute):
                self.take(self.vectors.completed(instruction.job, instruction.batches))
            else:
                self.take(self.core.completed(instruction.job, instruction.batches))

    def build(self, buckets: Iterable[int]) -> None:
        self.tell_served()
        self.take(self.replication.built(JOB, self.as_begun(buckets), self.cluster.now))

    def load(self, instruction: Load) -> None:
        found: dict[int, list[ShardContent] | None] = {bucket: self.store.get(bucket) for bucket in instruction.buckets}
        if instruction.initial:
            self.tell_served()
            found |= self.as_begun(instruction.buckets)
        self.take(self.replication.loaded(JOB, found, self.cluster.now))

    def tell_served(self) -> None:
        if self.node not in self.cluster.served:
            self.cluster.served.add(self.node)
            if self.cluster.record_of_job.replication == 1:  # whoever serves alone waits until that is known
                self.cluster.configure()

    def as_begun(self, buckets: Iterable[int]) -> dict[int, list[ShardContent]]:
        layout, rule = self.cluster.layout, self.job.rule
        return {
            bucket: [
                ShardContent(s.index, np.zeros(s.size, np.float32), rule.initial_state(s.size))
                for s in layout.shards_of(layout.buckets[bucket])
            ]
            for bucket in buckets
        }

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
        client: tuple[str, int] = CLIENT,
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
        self.take(self.core.push(token, 1, client, request, memoryview(body), self.cluster.now))

    def pushed(self, sequence: int, value: float = 1.0, shard: int = 0) -> int | None:
        """Pushes, lets everything come to rest, and returns the code of the answer."""
        self.push(("p", sequence), [(shard, sequence, value)])
        self.cluster.run()
        return self.code(("p", sequence))

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


def copied(records: Iterable[CopyRecord]) -> list[CopyRecord]:
    """As they are after a way through a body: in memory of their own."""
    return [CopyRecord(record.copy, [np.array(array) for array in record.arrays]) for record in records]
