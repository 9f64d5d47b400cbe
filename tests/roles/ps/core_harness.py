"""Drives the core of a parameter server by hand: requests in, instructions kept, batches applied when asked to."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.rules.make import make_rule
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.apply.applier import Applier
from adamctl.roles.ps.core.instructions import (
    AnswerAttach,
    AnswerPull,
    AnswerPush,
    Apply,
    GiveImage,
    Instruction,
    Keep,
    Refuse,
)
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import AttachRequest, PullRequest, PushPart, PushRequest, PushSource
from tests.roles.ps.ps_cluster import make_layout

JOB = "job"


class Harness:
    """A core with one job, all values zero, and one attached connection (number 1).

    Attributes:
        answers: token -> what the core said to it, in order.
        waiting: Apply instructions not yet carried out.
        sent: token -> the parts of its push.
    """

    def __init__(self, rule: str = "add", layout: ParameterLayout | None = None, threads: int = 1, **core: Any) -> None:
        self.layout = layout or make_layout()
        self.core = ServerCore(threads, **core)
        self.job = Job(JOB, self.layout, make_rule(RuleConfig(rule)))
        self.answers: dict[Any, list[Instruction]] = {}
        self.waiting: list[Apply] = []
        self.others: list[Instruction] = []
        self.sent: dict[Any, list[tuple[int, int, float]]] = {}
        self.applier = Applier()
        self.core.add_job(self.job)
        buckets = range(len(self.layout.buckets))
        for bucket in buckets:
            self.job.begin(bucket, 1)
            described = self.layout.buckets[bucket]
            contents = [
                ShardContent(s.index, np.zeros(s.size, np.float32), self.job.rule.initial_state(s.size))
                for s in self.layout.shards_of(described)
            ]
            self.job.install(described, contents, threads)
        self.attach(1)

    def raise_epochs(self, epoch: int, *buckets: int) -> None:
        """As the replication core does for buckets (all if none are named) that stay here."""
        for bucket in buckets or range(len(self.layout.buckets)):
            self.job.epochs[bucket] = self.job.buckets[bucket].epoch = epoch

    def move(self, epoch: int, *buckets: int) -> None:
        """As the replication core does for buckets (all if none are named) that are served elsewhere from now on."""
        for bucket in buckets or range(len(self.layout.buckets)):
            self.job.epochs[bucket] = epoch
            self.job.drop(bucket)

    def attach(self, connection: int, layout_hash: str | None = None, now: float = 0.0) -> Instruction:
        request = AttachRequest(JOB, layout_hash or self.layout.hash)
        self.take(self.core.attach("attach", connection, ("w", 1), request, now))
        return self.answers["attach"][-1]

    def take(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Apply):
                self.waiting.append(instruction)
            elif isinstance(instruction, (AnswerAttach, AnswerPush, AnswerPull, Refuse, Keep)):
                self.answers.setdefault(instruction.token, []).append(instruction)
            elif isinstance(instruction, GiveImage):
                instruction.take(instruction.image)
            else:
                self.others.append(instruction)

    def apply(self, count: int | None = None) -> None:
        """Carries out waiting instructions, also those that follow from them; with `count`, only so many."""
        while self.waiting and count != 0:
            instruction = self.waiting.pop(0)
            self.applier.apply(self.job.rule, instruction.batches)
            self.take(self.core.completed(instruction.job, instruction.batches))
            count = None if count is None else count - 1

    def epochs(self, epoch: int = 1) -> dict[int, int]:
        return dict.fromkeys(range(len(self.layout.buckets)), epoch)

    def push(
        self,
        token: Any,
        parts: list[tuple[int, int, float]],
        *,
        client: tuple[str, int] = ("w", 1),
        base: tuple[int, int] = (0, 0),
        kind: int = UpdateKind.DELTA,
        epoch: int = 1,
        connection: int = 1,
        place: tuple[int, int, int] | tuple[()] = (),
        **changes: Any,
    ) -> None:
        """Pushes (shard, sequence, value) parts, each a constant; `changes` go into every source's header.

        `place`: step, part and parts, of which step it is a part."""
        sources, wire_parts, body = [], [], b""
        self.sent[token] = parts
        for shard, sequence, value in parts:
            s = self.layout.shards[shard] if 0 <= shard < len(self.layout.shards) else self.layout.shards[0]
            fields = {"tensor": s.tensor, "row_start": s.row_start, "row_stop": s.row_stop, "offset": len(body)}
            wire_parts.append(PushPart(shard, sequence, len(sources), *base))
            sources.append(PushSource(**{"kind": kind, **fields, **changes}))
            body += np.full(s.size, value, np.float32).tobytes()
        request = PushRequest(JOB, self.epochs(epoch), 1.0, 1, 1, tuple(sources), tuple(wire_parts), *place)
        self.take(self.core.push(token, connection, client, request, memoryview(body), 0.0))

    def pull(self, token: Any, shards: list[int], client: tuple[str, int] = ("w", 1), epoch: int = 1) -> None:
        request = PullRequest(JOB, self.epochs(epoch), tuple(shards))
        self.take(self.core.pull(token, 1, client, request, 0.0))

    def results(self, token: Any) -> list[tuple[int, int]]:
        """Returns (code, staleness) of each part of an answered push."""
        answer = self.answers[token][-1]
        assert isinstance(answer, AnswerPush), answer
        return [(result.code, result.staleness) for result in answer.message.results]

    def versions(self, token: Any) -> list[int]:
        """Returns the version that each part of an answered push tells."""
        answer = self.answers[token][-1]
        assert isinstance(answer, AnswerPush), answer
        return [result.version for result in answer.message.results]

    def ages(self, token: Any) -> list[int]:
        """Returns the age of each part of an answered push."""
        answer = self.answers[token][-1]
        assert isinstance(answer, AnswerPush), answer
        return [result.age for result in answer.message.results]

    def answered(self, token: Any) -> bool:
        return any(not isinstance(answer, Keep) for answer in self.answers.get(token, []))

    def value(self, shard: int) -> float:
        """Returns the one value that all elements of a shard have."""
        values = set(self.job.shards[shard].values.array.tolist())
        assert len(values) == 1, values
        return values.pop()
