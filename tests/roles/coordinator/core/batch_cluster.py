"""Servers and workers of a batch algorithm in memory, under one seed: buckets are lost, messages come in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from random import Random
from typing import Any

import numpy as np

from adamctl.kernels.numeric.accumulate import Accumulator, accumulate
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.model.commands import ACCUMULATOR, PARAMETERS, Command, Parts, inputs_of
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.vectors import Program
from adamctl.roles.coordinator.core.batch_orders import CarryOut, CommitVectors, OpenEvaluation, Order, Task
from adamctl.roles.coordinator.core.batch_run import BatchRun
from adamctl.roles.coordinator.core.bundles import Bundle, WorkerKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BucketVectors

Part = Callable[[Bundle, np.ndarray[Any, Any]], tuple[float, np.ndarray[Any, Any]]]
"""Takes a bundle and parameters; returns the summed loss of its examples, and the gradient of their mean."""


class FakeBucket:
    """One bucket with one shard, as docs/decisions/0032 has it: what is kept, and what a takeover destroys."""

    def __init__(self, number: int, x: np.ndarray[Any, Any], kept: Sequence[str]) -> None:
        self.number, self.epoch = number, 1
        self.kept = {PARAMETERS: x.copy(), **{name: np.zeros_like(x) for name in kept if name != PARAMETERS}}
        self.commit = 0
        self.before = self.commit, self.kept
        self.take_over()

    def take_over(self, back: bool = False) -> None:
        """Another process serves it; `back`: from a store that has not had the last commit."""
        if back:
            self.commit, self.kept = self.before
        self.epoch += 1
        self.scratch: dict[str, np.ndarray[Any, Any]] = {}
        self.evaluation, self.bundles, self.at, self.refused = 0, 0, "", 0
        self.counted: set[int] = set()
        self.round = 0
        self.found: list[list[float]] = []

    def open(self, order: OpenEvaluation) -> BucketVectors:
        if order.evaluation < self.evaluation:
            return self.result(ErrorCode.STALE_EVALUATION)
        if order.last_round < self.round:
            return self.result(ErrorCode.STALE_ROUND)
        if order.at not in self.kept | self.scratch:
            return self.result(ErrorCode.NO_VECTOR)
        if order.evaluation == self.evaluation:
            self.at = order.at if order.at in self.scratch else self.at
            return self.result(0)
        self.evaluation, self.at, self.bundles = order.evaluation, order.at, order.bundles
        self.sum = Accumulator(np.zeros(self.kept[PARAMETERS].size, np.int64), order.fraction_bits)
        self.counted, self.refused = set(), 0
        return self.result(0)

    def carry_out(self, order: CarryOut) -> tuple[BucketVectors, list[list[Parts]]]:
        if order.after >= 0 and order.after != self.commit:
            return self.result(ErrorCode.SEQUENCE_GAP), []
        assert order.number != self.round or not self.found, "a round's number was used again"
        if order.number < self.round:
            return self.result(ErrorCode.STALE_ROUND), []
        prepared, code = self.prepared(order.commands, order.evaluation)
        if code:
            return self.result(code), []
        assert not prepared.writes & set(self.kept), "a round wrote what is kept"
        for name in prepared.writes:
            self.scratch.setdefault(name, np.zeros_like(self.kept[PARAMETERS]))
            if name == self.at:
                self.at = ""
        self.round, totals = order.number, prepared.new_totals()
        prepared.run(self.kept | self.scratch, 1, totals, self.sum if order.evaluation else None)
        return self.result(0), [[parts] for parts in totals.parts()]

    def keep(self, order: CommitVectors) -> BucketVectors:
        if order.number == self.commit:
            return self.result(0)
        if order.number != self.commit + 1 and not order.anew:
            return self.result(ErrorCode.SEQUENCE_GAP)
        if order.last_round < self.round:
            return self.result(ErrorCode.STALE_ROUND)
        prepared, code = self.prepared(order.commands, order.evaluation)
        if code:
            return self.result(code)
        self.before = self.commit, {name: values.copy() for name, values in self.kept.items()}
        self.at = "" if self.at in prepared.writes else self.at
        prepared.run(self.kept | self.scratch, 1, prepared.new_totals(), self.sum if order.evaluation else None)
        self.commit = order.number
        return self.result(0)

    def prepared(self, commands: Sequence[Command], evaluation: int) -> tuple[PreparedRound, int]:
        prepared = PreparedRound(commands, "numpy")
        if set(inputs_of(commands)) - {ACCUMULATOR} - set(self.kept) - set(self.scratch):
            return prepared, ErrorCode.NO_VECTOR
        if prepared.reads_accumulator:
            if evaluation != self.evaluation or len(self.counted) < self.bundles:
                return prepared, ErrorCode.NOT_READY
            assert not self.refused, "the sum of a refused evaluation was read"
        return prepared, 0

    def push(self, evaluation: int, bundle: int, weight: float, part: np.ndarray[Any, Any]) -> int:
        if evaluation < self.evaluation or bundle in self.counted:
            return 0
        if evaluation > self.evaluation:
            return ErrorCode.NOT_READY
        if accumulate(self.sum, part, weight, self.bundles, "numpy") is not None:
            self.refused = ErrorCode.OUT_OF_RANGE if np.isfinite(part).all() else ErrorCode.NOT_FINITE
            return self.refused
        self.counted.add(bundle)
        return 0

    def result(self, code: int) -> BucketVectors:
        missing = self.bundles - len(self.counted)
        return BucketVectors(
            self.number, code, self.epoch, self.commit, self.round, self.evaluation, missing, self.at,
            tuple(self.scratch), "", self.commit,
        )  # fmt: skip


class BatchCluster:
    """A run over some buckets and workers."""

    def __init__(
        self, program: Program, settings: Any, part: Part, x: np.ndarray[Any, Any], examples: int, *, seed: int = 0,
        buckets: int = 2, workers: int = 2, bundles: int = 4, faults: float = 0.0, budget: int | None = None,
        weight_decay: float = 0.0, rolls_back: bool = False, false_alarms: float = 0.0,
    ) -> None:  # fmt: skip
        """
        Args:
            faults: share of events that are faults: a bucket is taken over, a worker dies and another one comes.
            false_alarms: share of events in which a bucket that has lost nothing is said to be lost.
            rolls_back: a takeover also takes the bucket a commit back.
        """
        self.random, self.faults, self.rolls_back = Random(seed), faults, rolls_back
        self.false_alarms = false_alarms
        self.part, self.examples = part, examples

        def start(progress: Progress | None) -> Execution:
            return Execution(program, settings, weight_decay, budget, progress)

        kept = start(None).kept
        cuts = np.linspace(0, x.size, buckets + 1).astype(int)
        self.buckets = [FakeBucket(n, x[cuts[n] : cuts[n + 1]], kept) for n in range(buckets)]
        edges = np.linspace(0, examples, bundles + 1).astype(int)
        self.run = BatchRun(start, None, [Bundle(n, int(edges[n]), int(edges[n + 1])) for n in range(bundles)], buckets)
        self.workers: list[WorkerKey] = [(f"worker-{n}", 1) for n in range(workers)]
        self.cuts, self.now_s = cuts, 0.0
        self.tasks: dict[WorkerKey, tuple[Task, np.ndarray[Any, Any] | None, set[int]]] = {}
        self.events = 0
        self.points: dict[int, np.ndarray[Any, Any]] = {}  # by evaluation

    @property
    def x(self) -> np.ndarray[Any, Any]:
        return np.concatenate([bucket.kept[PARAMETERS] for bucket in self.buckets])

    def to_the_end(self, events_most: int = 200_000) -> str:
        for worker in self.workers:
            self.run.join(worker)
        self.run.begin()
        waiting: list[Order] = []
        while self.run.execution.stop_reason is None:
            self.events += 1
            assert self.events < events_most, "the run does not end"
            self.now_s += self.random.random()
            waiting += self.run.take_orders()
            if self.random.random() < self.faults:
                self.fault()
            elif self.false_alarms and self.random.random() < self.false_alarms:
                self.run.lost([self.random.randrange(len(self.buckets))])
            elif waiting and self.random.random() < 0.5:
                self.answer(waiting.pop(self.random.randrange(len(waiting))))
            else:
                self.work(self.random.choice(self.workers))
        return self.run.execution.stop_reason

    def answer(self, order: Order) -> None:
        results: list[BucketVectors] = []
        parts: list[list[Parts]] = []
        for number in order.buckets:
            bucket = self.buckets[number]
            match order:
                case OpenEvaluation():
                    results.append(bucket.open(order))
                case CarryOut():
                    result, found = bucket.carry_out(order)
                    results.append(result)
                    parts = (
                        found if not parts else [a + b for a, b in zip(parts, found, strict=True)] if found else parts
                    )
                case CommitVectors():
                    results.append(bucket.keep(order))
        self.run.answered(order.order, results, parts)

    def work(self, worker: WorkerKey) -> None:
        """Takes a bundle, pulls the parameters, pushes the gradient to one bucket after the other, or reports it."""
        if worker not in self.tasks:
            task = self.run.take(worker, self.now_s)
            if task is not None:
                self.tasks[worker] = task, None, set(range(len(self.buckets)))
            return
        task, point, left = self.tasks[worker]
        evaluation = task.given.evaluation
        if point is None:
            stale = [b.number for b in self.buckets if b.evaluation != evaluation or b.at != task.at]
            if stale:
                del self.tasks[worker]
                self.run.lost([n for n in stale if self.buckets[n].evaluation <= evaluation])
                return
            pieces = [(b.kept | b.scratch)[task.at] for b in self.buckets]
            point = np.concatenate(pieces)
            assert np.array_equal(self.points.setdefault(evaluation, point), point), "two points of one evaluation"
            self.tasks[worker] = task, point, left
            return
        bundle = task.given.bundle
        loss, gradient = self.part(bundle, point)
        if left:
            number = left.pop()
            weight = bundle.examples / self.examples
            piece = np.ascontiguousarray(gradient[self.cuts[number] : self.cuts[number + 1]], np.float32)
            code = self.buckets[number].push(evaluation, bundle.number, weight, piece)
            if code == ErrorCode.NOT_READY:
                del self.tasks[worker]
                self.run.lost([number])
            elif code:
                del self.tasks[worker]
                self.run.bundle_done(worker, task.given, loss, code, self.now_s)
            return
        del self.tasks[worker]
        self.run.bundle_done(worker, task.given, loss, 0, self.now_s)

    def fault(self) -> None:
        if self.random.random() < 0.5:
            bucket = self.random.choice(self.buckets)
            bucket.take_over(self.rolls_back and self.random.random() < 0.5)
            if self.random.random() < 0.5:
                self.run.lost([bucket.number])  # else it is found out
            return
        place = self.random.randrange(len(self.workers))
        old = self.workers[place]
        self.tasks.pop(old, None)
        self.run.lose(old)
        self.workers[place] = old[0], old[1] + 1
        self.run.join(self.workers[place])


def quadratic(size: int, examples: int) -> tuple[Part, np.ndarray[Any, Any]]:
    """Returns a sum of squares over examples, one row of a matrix each, and where to begin."""
    generator = np.random.default_rng(size)
    rows = generator.standard_normal((examples, size)).astype(np.float32)
    wanted = generator.standard_normal(size).astype(np.float32)
    targets = rows @ wanted

    def part(bundle: Bundle, x: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        chosen = slice(bundle.start, bundle.stop)
        errors = rows[chosen] @ x - targets[chosen]
        return float(fsum((errors.astype(np.float64) ** 2).tolist())) / 2, errors @ rows[chosen] / len(errors)

    return part, np.zeros(size, np.float32)
