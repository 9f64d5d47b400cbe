"""Parameter servers of a simulated batch run: processes with the real core, and what their copies and stores have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from adamctl.kernels.rules.make import make_rule
from adamctl.model.commands import ACCUMULATOR, inputs_of
from adamctl.model.layout import Bucket, ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.apply.vector_work import VectorApplier
from adamctl.roles.ps.core.exactly_once import ClientMemory
from adamctl.roles.ps.core.instructions import (
    AnswerAccumulate,
    AnswerPull,
    AnswerVectors,
    Compute,
    Instruction,
    Keep,
    Refuse,
)
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.vector_core import VectorCore
from adamctl.roles.ps.core.vector_requests import Addition, Commands, Commit, Opening, VectorBatch, VectorRequest
from adamctl.wire.messages import AttachRequest
from tests.roles.ps.ps_cluster import make_layout
from tests.sim.engine import ViolationError

if TYPE_CHECKING:
    from tests.sim.sandblaster.cluster import Cluster

JOB = "job"
SHAPES = ((5, 3), (5,), (2, 5), (2,))
Reply: TypeAlias = Callable[[Any], None]
Call: TypeAlias = "Callable[[SimServer, int, int], list[Instruction]]"
"""Hands a request to a server's core, under a token, as from a connection."""


def make_buckets(shards_each: int) -> ParameterLayout:
    """Returns a layout whose buckets have several shards."""
    layout = make_layout(SHAPES)
    starts = range(0, len(layout.shards), shards_each)
    edges = [(start, min(start + shards_each, len(layout.shards))) for start in starts]
    buckets = tuple(
        Bucket(n, start, stop, sum(4 * shard.size for shard in layout.shards[start:stop]))
        for n, (start, stop) in enumerate(edges)
    )
    return replace(layout, buckets=buckets)


@dataclass(frozen=True)
class Kept:
    """What of a shard outlives the process that serves it."""

    values: np.ndarray[Any, Any]
    state: tuple[np.ndarray[Any, Any], ...]
    counter: int
    commit: int

    @classmethod
    def of(cls, shard: Shard) -> Kept:
        state = tuple(array.copy() for array in shard.state.arrays)
        return cls(shard.values.array.copy(), state, shard.counter, shard.memory.commit)

    def content(self, index: int) -> ShardContent:
        memory = ClientMemory()
        memory.commit = self.commit
        return ShardContent(index, self.values.copy(), [one.copy() for one in self.state], self.counter, 0, memory)


@dataclass
class _Held:
    """An answer to a commit that waits for copies: of shards, up to a counter."""

    needs: dict[int, int]
    deliver: Callable[[], None]


class SimServer:
    """One process. Each piece of work on a shard takes its own time, as if each had a thread."""

    def __init__(self, cluster: Cluster, name: str, rule: RuleConfig) -> None:
        self.cluster, self.world, self.name, self.alive = cluster, cluster.world, name, True
        self.core = ServerCore(1)
        self.vectors = VectorCore(self.core)
        self.job = Job(JOB, cluster.layout, make_rule(rule))
        self.core.add_job(self.job)
        self._applier = VectorApplier()
        self._replies: dict[int, tuple[Reply, bool]] = {}
        self._held: list[_Held] = []
        self._tokens = 0
        self._connections: dict[str, int] = {}
        self._sums: dict[int, tuple[Shard, int, list[int]]] = {}  # id -> shard, evaluation, bundles that were added

    def serve(self, bucket: int, epoch: int, kept: Mapping[int, Kept]) -> None:
        self.job.begin(bucket, epoch)
        described = self.cluster.layout.buckets[bucket]
        shards = range(described.shard_start, described.shard_stop)
        self.job.install(described, [kept[index].content(index) for index in shards], 1)

    def kill(self) -> None:
        self.alive = False
        self.world.note(self.name, "dies")

    def receive(self, client: str, call: Call, reply: Reply, is_commit: bool) -> None:
        if not self.alive:
            return
        if client not in self._connections:
            self._connections[client] = len(self._connections) + 1
            attach = AttachRequest(JOB, self.job.layout.hash)
            self.core.attach("attach", self._connections[client], (client, 1), attach, self.world.now_s)
        self._tokens += 1
        self._replies[self._tokens] = reply, is_commit
        self._take(call(self, self._tokens, self._connections[client]))

    def _take(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case Compute(batches=batches):
                    for batch in batches:
                        self.world.after(self.cluster.work_s(), lambda batch=batch: self._work(batch))  # type: ignore[misc]
                case AnswerPull(token=token, message=message, values=values):
                    pieces = [value.array.copy() for value in values]
                    for value in values:
                        value.release()
                    self._answer(token, (message, pieces))
                case AnswerVectors(token=token, message=message, numbers=numbers):
                    self._answer(token, (message, list(numbers)))
                case AnswerAccumulate(token=token, message=message):
                    self._answer(token, (message, []))
                case Refuse(token=token):
                    self._replies.pop(token, None)  # it is asked again
                case Keep():
                    pass
                case _:
                    raise ViolationError(f"an instruction that nobody expects: {type(one).__name__}")

    def _answer(self, token: Any, answer: Any) -> None:
        reply, is_commit = self._replies.pop(token)
        if not is_commit:
            reply(answer)
            return
        changed = [one.bucket for one in answer[0].results if not one.code]
        needs = {shard.index: shard.counter for shard in self.job.shards.values() if shard.bucket.index in set(changed)}
        self._held.append(_Held(needs, lambda: reply(answer)))
        self.copies_have()

    def copies_have(self) -> None:
        """Answers commits that all copies have."""
        if not self.alive:
            return
        for held in list(self._held):
            if all(self.cluster.copies_have(self.name, shard, counter) for shard, counter in held.needs.items()):
                self._held.remove(held)
                held.deliver()

    # --- work ---------------------------------------------------------------------------------------------------------

    def _work(self, batch: VectorBatch) -> None:
        if not self.alive:
            return
        request, shard = batch.request, batch.shard
        self._applier.carry_out([batch])
        self._note(batch, request)
        took = self.cluster.trapped(self, type(request).__name__)
        if took:  # it dies with the work done, and unsaid
            self.kill()
            return
        self._take(self.vectors.completed(self.job, [batch], self.world.now_s))
        if isinstance(request, Commit) and not batch.code and not shard.bucket.dropped:
            self.cluster.ship(self, shard)

    def _note(self, batch: VectorBatch, request: VectorRequest) -> None:
        shard, cluster = batch.shard, self.cluster
        if isinstance(request, Commit) and not batch.code and cluster.histories[request.number] != cluster.history:
            raise ViolationError(f"a commit of a history that was dropped: {request.number} in shard {shard.index}")
        if isinstance(request, Opening):
            self._sums[id(shard)] = shard, request.evaluation, []
        elif isinstance(request, Addition) and not batch.code:
            _, evaluation, bundles = self._sums[id(shard)]
            if request.evaluation != evaluation:
                raise ViolationError(f"a gradient of another evaluation: {request.evaluation} in {evaluation}")
            bundles.append(request.bundle)
            if bundles.count(request.bundle) > 1:
                raise ViolationError(
                    f"a bundle is counted twice: {request.bundle} of {evaluation} in shard {shard.index}"
                )
        elif isinstance(request, Commands) and not batch.code and ACCUMULATOR in inputs_of(request.prepared.commands):
            _, evaluation, bundles = self._sums[id(shard)]
            if request.evaluation != evaluation or sorted(bundles) != list(range(len(self.cluster.problem.bundles))):
                what = f"{request.evaluation} of {evaluation}, {bundles}"
                raise ViolationError(f"a sum is read that is not whole: {what}")
