"""A server's core with a job of vectors, driven by hand: commands in, work carried out when asked to."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any

import numpy as np

from adamctl.kernels.rules.make import make_rule
from adamctl.model.commands import ACCUMULATOR, Command, Reduce, Set
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.roles.ps.apply.vector_work import VectorApplier
from adamctl.roles.ps.core.instructions import (
    AnswerAccumulate,
    AnswerPull,
    AnswerVectors,
    Apply,
    Compute,
    Instruction,
    Refuse,
)
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.vector_core import VectorCore
from adamctl.wire.codec import encode_commands
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    AccumulateRequest,
    AttachRequest,
    BucketVectors,
    CommitRequest,
    EvaluateRequest,
    PullRequest,
    RoundRequest,
)
from tests.roles.ps.ps_cluster import make_layout

JOB, OK = "job", int(ErrorCode.OK)
RULE = RuleConfig(VECTORS, kept=("g", "s0", "y0"), scratch=("t", "d", "h"))
READ_SUM = Set("h", ((1.0, ACCUMULATOR),))
COMMIT = (
    Set("s0", ((1.0, "t"), (-1.0, "x"))),
    Set("y0", ((1.0, "h"), (-1.0, "g"))),
    Set("x", ((1.0, "t"),)),
    Set("g", ((1.0, "h"),)),
)


class VectorHarness:
    """A core with one job whose values are its shards' numbers, and a connection (number 1) that has attached.

    Attributes:
        answers: token -> what the core said to it, in order.
        waiting: work not yet carried out.
        others: all other instructions.
    """

    def __init__(self, layout: ParameterLayout | None = None, threads: int = 1, **core: Any) -> None:
        self.layout = layout or make_layout(servers=2)
        self.core = ServerCore(threads, **core)
        self.vectors = VectorCore(self.core)
        self.applier = VectorApplier()
        self.answers: dict[Any, list[Instruction]] = {}
        self.waiting: list[Compute] = []
        self.others: list[Instruction] = []
        self.job = Job(JOB, self.layout, make_rule(RULE))
        self.core.add_job(self.job)
        for bucket in range(len(self.layout.buckets)):
            self.serve(bucket, 1)
        self.core.attach("attach", 1, ("w", 1), AttachRequest(JOB, self.layout.hash), 0.0)

    def serve(self, bucket: int, epoch: int) -> None:
        """As the replication core does with a bucket that is made, or was taken over: nothing but values is there."""
        self.job.begin(bucket, epoch)
        described = self.layout.buckets[bucket]
        contents = [
            ShardContent(s.index, np.full(s.size, s.index, np.float32), self.job.rule.initial_state(s.size))
            for s in self.layout.shards_of(described)
        ]
        self.job.install(described, contents, self.core.threads)

    def take_over(self, bucket: int, epoch: int) -> None:
        """Another server takes a bucket over with what was kept, and plays this one from now on."""
        described = self.layout.buckets[bucket]
        contents = [
            ShardContent(s.index, s.values.array, s.state.arrays, s.counter, s.pushes, s.memory)
            for s in (self.job.shards[i] for i in range(described.shard_start, described.shard_stop))
        ]
        self.job.drop(bucket)
        self.job.begin(bucket, epoch)
        self.job.install(described, contents, self.core.threads)

    def take(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Compute):
                self.waiting.append(instruction)
            elif isinstance(instruction, AnswerAccumulate | AnswerVectors | AnswerPull | Refuse):
                self.answers.setdefault(instruction.token, []).append(instruction)
            else:
                assert not isinstance(instruction, Apply)
                self.others.append(instruction)

    def work(self, count: int = -1) -> None:
        """Carries out waiting work, also what follows from it; or only so many instructions."""
        while self.waiting and count:
            count -= 1
            one = self.waiting.pop(0)
            self.applier.carry_out(one.batches)
            self.take(self.vectors.completed(one.job, one.batches))

    def epochs(self) -> dict[int, int]:
        return {index: self.job.buckets[index].epoch for index in sorted(self.job.buckets)}

    def last(self, token: Any) -> Instruction:
        return self.answers[token][-1]

    def answered(self, token: Any) -> bool:
        return token in self.answers

    # --- requests -----------------------------------------------------------------------------------------------------

    def evaluate(
        self, token: Any, evaluation: int, at: str = "x", *, bits: int = 20, bundles: int = 2, do: bool = True,
        epochs: dict[int, int] | None = None, last_round: int = -1,
    ) -> list[BucketVectors]:  # fmt: skip
        request = EvaluateRequest(JOB, epochs or self.epochs(), evaluation, at, bits, bundles, last_round)
        self.take(self.vectors.evaluate(token, 1, request, 0.0))
        return self.results(token) if do else []

    def round(
        self, token: Any, number: int, commands: Sequence[Command] | bytes, evaluation: int = 0, *, do: bool = True,
        epochs: dict[int, int] | None = None,
    ) -> list[BucketVectors]:  # fmt: skip
        body = commands if isinstance(commands, bytes) else encode_commands(commands)
        request = RoundRequest(JOB, epochs or self.epochs(), number, evaluation)
        self.take(self.vectors.round(token, 1, request, body, 0.0))
        return self.results(token) if do else []

    def commit(
        self, token: Any, number: int, commands: Sequence[Command] = COMMIT, evaluation: int = 0, *, do: bool = True,
        anew: bool = False, epochs: dict[int, int] | None = None, last_round: int = -1,
    ) -> list[BucketVectors]:  # fmt: skip
        request = CommitRequest(JOB, epochs or self.epochs(), number, evaluation, anew, last_round)
        self.take(self.vectors.commit(token, 1, request, encode_commands(commands), 0.0))
        return self.results(token) if do else []

    def add(
        self, token: Any, evaluation: int, bundle: int, value: float, weight: float = 1.0, *, do: bool = True,
        shards: Sequence[int] | None = None, epochs: dict[int, int] | None = None,
    ) -> list[int]:  # fmt: skip
        """Sends a bundle's gradient, the same in all elements; returns the code of each shard."""
        indices = tuple(range(len(self.layout.shards)) if shards is None else shards)
        body, offsets = b"", []
        for index in indices:
            offsets.append(len(body))
            body += np.full(self.layout.shards[index].size, value, np.float32).tobytes()
        request = AccumulateRequest(JOB, epochs or self.epochs(), evaluation, bundle, weight, indices, tuple(offsets))
        self.take(self.vectors.accumulate(token, 1, request, memoryview(body), 0.0))
        return self.codes(token) if do else []

    def codes(self, token: Any) -> list[int]:
        """The code of each shard for a bundle; the work is done first."""
        self.work()
        answer = self.last(token)
        assert isinstance(answer, AnswerAccumulate), answer
        return [result.code for result in answer.message.results]

    def results(self, token: Any) -> list[BucketVectors]:
        """What each bucket said; the work is done first."""
        self.work()
        answer = self.last(token)
        assert isinstance(answer, AnswerVectors), answer
        return list(answer.message.results)

    def found(self, token: Any) -> list[float]:
        """The numbers of a round, one for each reduction."""
        answer = self.last(token)
        assert isinstance(answer, AnswerVectors), answer
        numbers, out = list(answer.numbers), []
        for length in answer.message.lengths:
            out.append(fsum(numbers[:length]))
            del numbers[:length]
        return out

    def pull(self, token: Any, vector: str, evaluation: int) -> list[tuple[int, float]]:
        """Returns the code and first element of each shard."""
        request = PullRequest(JOB, self.epochs(), tuple(sorted(self.job.shards)), vector=vector, evaluation=evaluation)
        self.take(self.core.pull(token, 1, ("w", 1), request, 0.0))
        answer = self.last(token)
        assert isinstance(answer, AnswerPull), answer
        values = iter(answer.values)
        found = [(part.code, 0.0 if part.code else float(next(values).array[0])) for part in answer.message.parts]
        for one in answer.values:
            one.release()
        return found

    # --- what is there ------------------------------------------------------------------------------------------------

    def shard(self, index: int) -> Shard:
        return self.job.shards[index]

    def value(self, name: str, index: int = 0) -> float:
        """The one value of all elements of a vector in a shard."""
        shard = self.shard(index)
        assert shard.vectors is not None
        if name == "x":
            array = shard.values.array
        elif name in shard.vectors.names:
            array = shard.state.arrays[shard.vectors.names[name]]
        else:
            array = shard.vectors.scratch[name].array
        found = set(array.tolist())
        assert len(found) == 1, found
        return found.pop()

    def whole(self, name: str) -> list[float]:
        return [self.value(name, index) for index in sorted(self.job.shards)]

    @property
    def size(self) -> int:
        return sum(shard.size for shard in self.layout.shards)


def dot(first: str, second: str) -> Reduce:
    return Reduce("dot", ((first,), (second,)))


def codes(results: list) -> set[int]:
    return {result.code for result in results}


def two(results: list) -> dict[int, int]:
    """The codes of the first two buckets, of many."""
    return {result.bucket: result.code for result in results[:2]}


def step(h: VectorHarness, number: int, value: float) -> None:
    """One iteration: a trial point, its gradient, a commit."""
    assert codes(h.round(f"t{number}", 2 * number - 1, [Set("t", ((1.0, "x"), (0.5, "g"))), Set("t")])) == {OK}
    assert codes(h.evaluate(f"e{number}", number, "t")) == {OK}
    h.add(f"a{number}", number, 0, value, 0.75)
    h.add(f"b{number}", number, 1, value, 0.25)
    assert codes(h.round(f"h{number}", 2 * number, [READ_SUM], number)) == {OK}
    assert codes(h.commit(f"c{number}", number)) == {OK}


def everything(h: VectorHarness) -> list[object]:
    """All that shards have."""
    out: list[object] = []
    for shard in h.job.shards.values():
        vectors = shard.vectors
        assert vectors is not None and shard.batch is None and not vectors.queue
        out += [shard.counter, shard.memory.commit, vectors.round, vectors.evaluation, vectors.missing, vectors.at]
        out += [array.tobytes() for array in (shard.values.array, *shard.state.arrays)]
        out += [(name, one.array.tobytes()) for name, one in sorted(vectors.scratch.items())]
        out.append(None if vectors.accumulator is None else vectors.accumulator.tobytes())
    return out
