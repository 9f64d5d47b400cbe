"""The coordinator of a simulated batch run: the real core, and what its shell does, without a loop (`BatchService`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from adamctl.model.commands import Parts, Reduce
from adamctl.optimizers.execution import Answer, Execution, Progress
from adamctl.optimizers.vectors import Evaluate
from adamctl.roles.coordinator.core.batch_orders import CarryOut, CommitVectors, OpenEvaluation, Order
from adamctl.roles.coordinator.core.batch_run import BatchRun
from adamctl.roles.coordinator.core.bundles import Given, WorkerKey
from adamctl.roles.ps.client.vector_client import AGAIN
from adamctl.wire.codec import encode_commands
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    BucketVectors,
    BundleName,
    BundleTask,
    CommitRequest,
    EvaluateRequest,
    NextBundlesReply,
    NextBundlesRequest,
    RoundRequest,
)
from tests.sim.engine import ViolationError
from tests.sim.sandblaster.cluster import Ask
from tests.sim.sandblaster.servers import JOB, Call

if TYPE_CHECKING:
    from tests.sim.sandblaster.scenario import SandblasterScenario

CHECK_S, POLL_S = 0.5, 0.05


class CheckedExecution(Execution):
    """Compares each loss with that of the undisturbed run."""

    expected: list[float]

    def answer(self, value: Answer) -> None:
        if isinstance(self.request, Evaluate) and self.expected:
            number = self.evaluations
            if number >= len(self.expected) or value != self.expected[number]:
                known = self.expected[number : number + 1]
                raise ViolationError(f"a loss is not that of the undisturbed run: {value} of {number}, {known}")
        super().answer(value)


class SimCoordinator:
    """One process."""

    def __init__(self, scenario: SandblasterScenario, progress: Progress | None, commit: int, evaluations: int) -> None:
        self.scenario, self.cluster, self.world = scenario, scenario.cluster, scenario.world
        problem, self.alive = scenario.problem, True
        self.run = BatchRun(
            self._start, progress, problem.bundles, len(self.cluster.buckets), commit=commit, evaluations=evaluations
        )
        self._committed = self.run.execution.committed
        self._workers: set[WorkerKey] = set()
        self._cancelled: dict[WorkerKey, list[BundleName]] = {}
        self._epochs: dict[int, int] = {}

    def _start(self, progress: Progress | None) -> Execution:
        execution = self.scenario.problem.execution(progress, CheckedExecution)
        assert isinstance(execution, CheckedExecution)
        dropped = self.scenario.mixed or (hasattr(self, "run") and self.run.restarts)
        execution.expected = [] if dropped else self.scenario.truth.losses
        return execution

    def begin(self) -> None:
        self.run.begin()
        self._advance()
        self.world.after(CHECK_S, self._check)

    def _lives(self) -> bool:
        return self.alive

    def _advance(self) -> None:
        if self.run.restarts and not self.scenario.mixed:
            self.scenario.history_dropped()
        if self.run.execution.committed != self._committed:
            self._committed = self.run.execution.committed
            self.scenario.committed(self)
        self.cluster.history = self.run.restarts
        for order in self.run.take_orders():
            if isinstance(order, CommitVectors):
                self.cluster.histories[order.number] = self.run.restarts
            self.world.note("coord", "orders", order)
            _Carried(self, order)

    def answered(self, order: Order, results: dict[int, BucketVectors], parts: list[list[Parts]]) -> None:
        for bucket, result in results.items():
            self._epochs[bucket] = max(result.epoch, self._epochs.get(bucket, 0))
        self.run.answered(order.order, [results[bucket] for bucket in order.buckets], parts)
        self._advance()

    def _check(self) -> None:
        """Asks whether servers still have the evaluation that workers are at."""
        if not self.alive or self.run.execution.stop_reason is not None:
            return
        order = self.run.opened()
        if order is not None:
            _Carried(self, order, self.stage())
        self.world.after(CHECK_S, self._check)

    def stage(self) -> tuple[int, int]:
        """Returns number and attempt of the evaluation that workers are at; zeros for none."""
        now = self.run.book.evaluation
        return (0, 0) if self.run.opened() is None or now is None else (now.number, now.attempt)

    def checked(self, stage: tuple[int, int], results: dict[int, BucketVectors]) -> None:
        lost = [
            bucket
            for bucket, result in results.items()
            if result.code == ErrorCode.NO_VECTOR or result.epoch > self._epochs.get(bucket, result.epoch)
        ]
        if lost and self.stage() == stage:
            self._epochs |= {bucket: results[bucket].epoch for bucket in lost}
            self.run.lost(lost)
            self._advance()

    def said_to_be_lost(self, buckets: list[int]) -> None:
        if self.run.opened() is not None:
            self.run.lost(buckets)
            self._advance()

    # --- workers ------------------------------------------------------------------------------------------------------

    def lose(self, worker: WorkerKey) -> None:
        if self.alive:
            self._workers.discard(worker)
            self._cancelled.pop(worker, None)
            self.run.lose(worker)

    def next_bundles(self, message: NextBundlesRequest, reply: Any, tries: int = 3) -> None:
        """Answers when there is something to say, or after a while."""
        if not self.alive:
            return
        worker, now_s, book = (message.node, message.incarnation), self.world.now_s, self.run.book
        if worker not in self._workers:
            self._workers.add(worker)
            self.run.join(worker)
        for one in message.reports:
            given = Given(one.name.evaluation, one.name.attempt, book.bundles[one.name.bundle])
            counted = self.run.bundle_done(worker, given, one.loss_sum, one.code, now_s, message.lost_buckets)
            for loser in counted.losers:
                self._cancelled.setdefault(loser, []).append(one.name)
        self._advance()
        over, tasks = self.run.execution.stop_reason is not None, []
        while not over and len(tasks) < message.wanted and (task := self.run.take(worker, now_s)) is not None:
            given = task.given
            name = BundleName(given.evaluation, given.attempt, given.bundle.number)
            weight = given.bundle.examples / book.bundles[-1].stop
            tasks.append(BundleTask(name, given.bundle.start, given.bundle.stop, weight, task.at))
        cancelled = tuple(self._cancelled.pop(worker, ()))
        if tasks or cancelled or over or not tries:
            ahead = tuple((bundle.start, bundle.stop) for bundle in book.first_of(worker, 2))
            reply(NextBundlesReply(tuple(tasks), cancelled, ahead, ended=over))
            return
        bare = NextBundlesRequest(message.node, message.incarnation, message.wanted, 0.0)
        self.world.after(POLL_S, partial(self.next_bundles, bare, reply, tries - 1))


class _Carried:
    """An order on its way through the servers; with a stage it only asks whether they still have the evaluation."""

    def __init__(self, coordinator: SimCoordinator, order: Order, stage: tuple[int, int] | None = None) -> None:
        self._coordinator, self._order, self._stage = coordinator, order, stage
        self._results: dict[int, BucketVectors] = {}
        commands = () if isinstance(order, OpenEvaluation) else order.commands
        reductions = sum(isinstance(command, Reduce) for command in commands)
        self._parts: list[list[Parts]] = [[] for _ in range(reductions if isinstance(order, CarryOut) else 0)]
        Ask(
            coordinator.cluster, "coordinator", order.buckets, self._make, self._take, self._done, coordinator._lives
        )  # fmt: skip

    def _make(self, epochs: dict[int, int]) -> tuple[Call, type]:
        now_s = self._coordinator.world.now_s
        match self._order:
            case OpenEvaluation(_, _, evaluation, at, bits, bundles, last_round):
                opens = EvaluateRequest(JOB, epochs, evaluation, at, bits, bundles, last_round)
                return lambda server, token, wire: server.vectors.evaluate(token, wire, opens, now_s), type(opens)
            case CarryOut(_, _, number, commands, evaluation, after):
                asks, body = RoundRequest(JOB, epochs, number, evaluation, after), encode_commands(commands)
                return lambda server, token, wire: server.vectors.round(token, wire, asks, body, now_s), type(asks)
            case CommitVectors(_, _, number, commands, evaluation, anew, last_round):
                keeps = CommitRequest(JOB, epochs, number, evaluation, anew, last_round)
                body = encode_commands(commands)
                return lambda server, token, wire: server.vectors.commit(token, wire, keeps, body, now_s), type(keeps)

    def _take(self, answer: Any, asked: set[int]) -> set[int]:
        message, numbers = answer
        left = iter(numbers)
        for known, length in zip(self._parts, message.lengths, strict=True):
            known.append(Parts(tuple(next(left) for _ in range(length))))
        found = {one.bucket: one for one in message.results if one.code not in AGAIN}
        self._results |= found
        return set(found)

    def _done(self) -> None:
        if self._stage is not None:
            self._coordinator.checked(self._stage, self._results)
        else:
            self._coordinator.answered(self._order, self._results, self._parts)
