"""Carries out a batch algorithm's run: its orders on parameter servers, its bundles at workers. All on the event loop.

Orders go out together and are repeated by the client until every bucket has answered. While workers evaluate, servers
are asked from time to time whether they still have the evaluation: who took a bucket over has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from adamctl.errors import AdamctlError, RunFailedError
from adamctl.optimizers.execution import Progress
from adamctl.roles.coordinator.core.batch_job import BatchJob, Phase
from adamctl.roles.coordinator.core.batch_orders import CarryOut, CommitVectors, OpenEvaluation, Order, Task
from adamctl.roles.coordinator.core.bundles import Given, WorkerKey
from adamctl.roles.ps.client.vector_client import VectorAnswer, VectorClient
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BundleName, BundleReport, BundleTask, NextBundlesReply, NextBundlesRequest

CHECK_S: Final = 0.5
AHEAD: Final = 4
"""Bundles that a worker is told to read before an evaluation begins."""
WAIT_S_MAX: Final = 60.0
FAILURES_MAX: Final = 5
"""How often servers may fail in what they are told to do, between two commits."""
FAILED_PAUSE_S: Final = 0.2


class _Parked:
    """A request that waits for bundles or news."""

    def __init__(self, wanted: int, until_s: float) -> None:
        self.wanted, self.until_s = wanted, until_s
        self.reply: asyncio.Future[NextBundlesReply] = asyncio.get_running_loop().create_future()


class BatchService:
    """One run.

    Attributes:
        run: its state.
        draining: workers are given nothing more.
    """

    def __init__(
        self,
        job: BatchJob,
        vectors: VectorClient,
        on_commit: Callable[[Progress], None] = lambda progress: None,
        on_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        on_commit: is shown what a commit says, once all servers have it.
        on_moved: called after a commit has begun or is done, and when the program has stopped.
        """
        self.run, self.draining = job.run, False
        self._job, self._vectors, self._on_commit, self._on_moved = job, vectors, on_commit, on_moved
        self._held = False
        self._examples = job.examples
        self._workers: set[WorkerKey] = set()
        self._parked: dict[WorkerKey, _Parked] = {}
        self._cancelled: dict[WorkerKey, list[BundleName]] = {}
        self._given: dict[WorkerKey, set[BundleName]] = {}
        self._at_work: set[asyncio.Task[None]] = set()
        self._epochs: dict[int, int] = {}
        self._committed = self.run.execution.committed
        self._seen = self._state()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._failures = 0
        self._loop = asyncio.get_running_loop()

    async def carry_out(self) -> str:
        """Runs the program to its end; returns why it stopped.

        Raises:
            RunFailedError: servers do not answer, or refuse what cannot be refused.
        """
        checking = self._loop.create_task(self._check())
        try:
            self._do(self.run.begin)
            await self._ended.wait()
        finally:
            for task in (checking, *self._at_work):
                task.cancel()
            await asyncio.gather(checking, *self._at_work, return_exceptions=True)
            self._serve()
        if self._failure is not None:
            raise RunFailedError(f"the vectors of the run: {self._failure}") from self._failure
        return self.run.execution.stop_reason or ""

    def hold(self, held: bool, draining: bool) -> None:
        """Has the program wait where it is, or go on.

        Workers finish the present evaluation meanwhile, unless they are `draining`. What is held may be in the middle
        of an iteration, never of a commit.
        """
        if (held, draining) == (self._held, self.draining):
            return
        self._held, self.draining = held, draining
        self._loop.call_soon(self._do, lambda: None)

    # --- workers ----------------------------------------------------------------------------------------------------

    async def next_bundles(self, message: NextBundlesRequest) -> NextBundlesReply:
        """Answers a worker: when there are bundles for it, or news, or the time it waits is over."""
        worker = message.node, message.incarnation
        if worker not in self._workers:
            self._workers.add(worker)
            self.run.join(worker)
        former = self._parked.pop(worker, None)
        if former is not None:
            self._reply(worker, former, [])
        self._do(lambda: self._take_all(worker, message))
        if message.leaving:
            self.lose(worker)
            return NextBundlesReply(drain=self.draining)
        wait_s = min(max(message.wait_s, 0.0), WAIT_S_MAX)
        parked = self._parked[worker] = _Parked(message.wanted, self._loop.time() + wait_s)
        timer = self._loop.call_at(parked.until_s, self._do, lambda: None)
        try:
            self._serve()
            return await parked.reply
        finally:
            timer.cancel()
            if self._parked.get(worker) is parked:
                del self._parked[worker]

    def lose(self, worker: WorkerKey) -> None:
        """A worker is gone. A request of its that waits is handed nothing: nobody may be there to do it."""
        parked = self._parked.pop(worker, None)
        if parked is not None:
            self._reply(worker, parked, [])
        self._workers.discard(worker)
        self._cancelled.pop(worker, None)
        self._given.pop(worker, None)
        self._do(lambda: self.run.lose(worker))

    def _take_all(self, worker: WorkerKey, message: NextBundlesRequest) -> None:
        for report in message.reports:
            self._take(worker, report, message.lost_buckets)

    def _take(self, worker: WorkerKey, report: BundleReport, lost: tuple[int, ...]) -> None:
        name, bundles = report.name, self.run.book.bundles
        if not 0 <= name.bundle < len(bundles):
            return
        given = Given(name.evaluation, name.attempt, bundles[name.bundle])
        self._given.get(worker, set()).discard(name)
        known = tuple(bucket for bucket in lost if 0 <= bucket < self.run.buckets)
        counted = self.run.bundle_done(worker, given, report.loss_sum, report.code, self._loop.time(), known)
        for loser in counted.losers:
            self._cancel(loser, name)

    def _cancel(self, worker: WorkerKey, name: BundleName) -> None:
        if name in self._given.get(worker, set()):
            self._given[worker].discard(name)
            self._cancelled.setdefault(worker, []).append(name)

    def _cancel_former(self) -> None:
        """Cancels bundles of evaluations, and of attempts, that are over."""
        stage = self._stage()
        for worker, names in self._given.items():
            for name in [name for name in names if (name.evaluation, name.attempt) != stage]:
                self._cancel(worker, name)

    def _stage(self) -> tuple[int, int] | None:
        """Returns number and attempt of the evaluation that workers are at."""
        opened, now = self.run.opened(), self.run.book.evaluation
        return None if opened is None or now is None else (now.number, now.attempt)

    def _serve(self) -> None:
        """Answers parked requests for which there is something, in the order in which they came."""
        self._cancel_former()
        now_s = self._loop.time()
        over = self.run.execution.stop_reason is not None
        for worker, parked in list(self._parked.items()):
            tasks: list[Task] = []
            while not self.draining and not over and self._failure is None and len(tasks) < parked.wanted:
                task = self.run.take(worker, now_s)
                if task is None:
                    break
                tasks.append(task)
            if tasks or over or self._failure is not None or self._cancelled.get(worker) or now_s >= parked.until_s:
                del self._parked[worker]
                self._reply(worker, parked, tasks)

    def _reply(self, worker: WorkerKey, parked: _Parked, tasks: list[Task]) -> None:
        stopped = self.run.execution.stop_reason
        reply = NextBundlesReply(
            tuple(self._named(task) for task in tasks),
            tuple(self._cancelled.pop(worker, ())),
            tuple((bundle.start, bundle.stop) for bundle in self.run.book.first_of(worker, AHEAD)),
            self.draining or self._failure is not None,
            stopped is not None,
            stopped or str(self._failure or ""),
        )
        self._given.setdefault(worker, set()).update(task.name for task in reply.tasks)
        if not parked.reply.done():
            parked.reply.set_result(reply)

    def _named(self, task: Task) -> BundleTask:
        bundle = task.given.bundle
        name = BundleName(task.given.evaluation, task.given.attempt, bundle.number)
        return BundleTask(name, bundle.start, bundle.stop, bundle.examples / self._examples, task.at)

    # --- servers ----------------------------------------------------------------------------------------------------

    def _do(self, what: Callable[[], object]) -> None:
        """Takes an event, and carries out what follows from it."""
        try:
            what()
        except Exception as error:  # a program of another package may raise anything
            self._fail(error)
            return
        if self.run.execution.committed != self._committed:
            self._committed, self._failures = self.run.execution.committed, 0
            try:
                self._on_commit(self._committed)
            except Exception as error:
                self._fail(error)
        self._tell()
        for order in [] if self._held else self.run.take_orders():
            task = self._loop.create_task(self._carry(order))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)
        self._tell()
        self._serve()
        self._job.phases.enter(self._phase(), self._loop.time())
        if self.run.execution.stop_reason is not None:
            self._ended.set()

    def _tell(self) -> None:
        """Tells of commits that have begun or are done, and of the end: whoever listens may hold the run."""
        seen = self._state()
        if seen != self._seen:
            self._seen = seen
            self._on_moved()

    def _state(self) -> tuple[int | None, int, str | None]:
        execution = self.run.execution
        return self.run.commit, execution.committed.evaluations, execution.stop_reason

    def _phase(self) -> Phase:
        if self.run.execution.stop_reason is not None or not self._workers:
            return "rest"
        if self.run.opened() is not None:
            return "evaluation"
        return "rest" if self._held else "commands"

    async def _carry(self, order: Order) -> None:
        try:
            answer = await self._ask(order)
        except AdamctlError as error:
            self._fail(error)
            return
        for bucket, result in answer.results.items():
            self._epochs[bucket] = max(result.epoch, self._epochs.get(bucket, 0))
        failed = [result for result in answer.results.values() if result.code == ErrorCode.INTERNAL]
        self._failures += bool(failed)
        if self._failures > FAILURES_MAX:
            what = (
                f"{self._failures} times since the last commit, last at bucket {failed[0].bucket}: {failed[0].message}"
            )
            self._fail(RunFailedError(what))
            return
        if failed:
            await asyncio.sleep(FAILED_PAUSE_S)
        results = [answer.results[bucket] for bucket in order.buckets]
        self._do(lambda: self.run.answered(order.order, results, answer.parts))

    async def _ask(self, order: Order) -> VectorAnswer:
        vectors, buckets = self._vectors, order.buckets
        match order:
            case OpenEvaluation(_, _, evaluation, at, bits, bundles, last_round):
                return await vectors.evaluate(evaluation, at, bits, bundles, last_round=last_round, buckets=buckets)
            case CarryOut(_, _, number, commands, evaluation, after):
                return await vectors.round(number, commands, evaluation=evaluation, after=after, buckets=buckets)
            case CommitVectors(_, _, number, commands, evaluation, anew, last_round):
                return await vectors.commit(
                    number, commands, evaluation=evaluation, anew=anew, last_round=last_round, buckets=buckets
                )

    async def _check(self) -> None:
        """Asks servers for the evaluation that workers are at, until the run ends."""
        while True:
            await asyncio.sleep(CHECK_S)
            order, stage = self.run.opened(), self._stage()
            if order is None:
                continue
            try:
                answer = await self._ask(order)
            except AdamctlError as error:
                self._fail(error)
                return
            lost = [
                bucket
                for bucket, result in answer.results.items()
                if result.code == ErrorCode.NO_VECTOR or result.epoch > self._epochs.get(bucket, result.epoch)
            ]
            if lost and self._stage() == stage:  # else they may have done again what they had lost
                self._epochs |= {bucket: answer.results[bucket].epoch for bucket in lost}
                self._do(lambda found=lost: self.run.lost(found))  # type: ignore[misc]

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._ended.set()
