"""One worker's part in one run: batches to the threads, gradients to the servers, reports to the coordinator.

The session requests ranges ahead of need and reads their examples in the background (Adam 3.1), so that threads find
the next batch in memory. It ends when the coordinator says that the run has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from math import isfinite
from typing import Any

from adamctl.config.schedule import learning_rate
from adamctl.errors import RunFailedError
from adamctl.kernels.numeric.mix import step_key
from adamctl.roles.data.client.data_client import Batch as Examples
from adamctl.roles.ps.client.parameter_client import Place
from adamctl.roles.worker.compute import Batch, BatchDone, ComputeThreads
from adamctl.roles.worker.core.batches import Reports, Task, TaskLedger, cut, damaged_step, fill
from adamctl.roles.worker.core.grants import FlightGrants
from adamctl.roles.worker.divergence import DivergedError
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.lockstep import Exchange, Lockstep, place_of
from adamctl.roles.worker.mailbox import Mailbox, Siblings
from adamctl.roles.worker.pace import Pacer, StepGate
from adamctl.roles.worker.partition.engine import PartitionEngine
from adamctl.roles.worker.partition.lead import Lead, added
from adamctl.roles.worker.partition.steps import GroupSteps
from adamctl.roles.worker.whole_replica import SIGN_OF_LIFE_S, Session, make_whole_replica
from adamctl.wire.messages import EvaluateTask, NextTaskReply, NextTaskRequest, TaskReport, TrainTask

POLL_S = 5.0
BATCHES_AHEAD_PER_THREAD = 3  # so that the next one is in memory when a thread has finished one
RANGES_MIN = 3  # one being computed, one being read, one requested


class SessionRunner:
    """Runs one session to its end. Everything happens on the event loop except what `ComputeThreads` does.

    Attributes:
        over: the coordinator has said that the run is over.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        experiment = session.experiment
        factor = experiment.local_learning_rate_factor()
        self._local_factor = factor
        self._local_rate = 0.0 if experiment.train.local_lr == "auto" else experiment.train.local_lr
        applies_locally = (factor if factor is not None else self._local_rate) != 0.0
        train = experiment.train
        self._threads: ComputeThreads | Lead[PartitionEngine]
        self._pacer: Pacer[StepGate] | Pacer[FlightGrants] | None = None
        self._loop = asyncio.get_running_loop()
        if session.lead is None:
            whole = make_whole_replica(session, applies_locally, Mailbox(self._loop, self._done).put, self.fail)
            self._replica, self._threads, self._downpour, self._pacer = whole
        else:
            engine = session.lead.engine
            self._replica, self._downpour = engine.replica, engine.downpour
            self._threads = session.lead
            session.lead.takes(self._done)
            if train.max_staleness is not None:
                self._pacer = Pacer(
                    session.node, session.incarnation, session.coordinator.step, session.lead.paced, session.group_epoch
                )
        self._group_steps: GroupSteps | None = None
        self._lockstep = self._make_lockstep() if train.in_step else None
        batches = BATCHES_AHEAD_PER_THREAD * session.threads
        self._ranges_held = max(RANGES_MIN, 1 - (-batches // (train.range_batches * session.shares)))
        self._ledger = TaskLedger(session.shares)
        self._reports = Reports(self._replica.core if experiment.steps_per_update > 1 else None)
        self._unpushed = False  # gradients of ranges that are done may not have been pushed
        self._news = asyncio.Event()
        self._taking: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._accepted = self._accepted_training = 0
        self._examples: dict[int, Examples] = {}
        self._freshening: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._evaluation: tuple[int, asyncio.Task[None]] | None = None
        self._updates_reported = 0
        self.over = False
        self.batches_done = 0
        self._began_s = self._trained_until_s = self._loop.time()
        self.compute_s = self.wait_s = 0.0
        self._computed_s, self._trained = 0.0, 0  # in training batches, and their examples

    async def run(self, stopping: asyncio.Event) -> str:
        """Trains until the run ends or `stopping` is set; returns the reason.

        Raises:
            RunFailedError: a thread or a network activity failed; the cause is chained.
            UnreachableError: the coordinator or a server is gone.
        """
        if isinstance(self._threads, ComputeThreads):
            self._threads.start()
        stop = asyncio.create_task(stopping.wait())
        try:
            if self._session.lead is None:
                await self._downpour.start()
            if self._lockstep is not None:
                self._in_background(self._lockstep.run())
            if self._pacer is not None:
                self._in_background(self._pacer.run())
            return await self._work(stop)
        finally:
            stop.cancel()
            await self._close()

    def _make_lockstep(self) -> Lockstep:
        session = self._session
        exchange: Exchange
        if session.lead is not None:
            self._group_steps = exchange = GroupSteps(session.lead)
            submit = exchange.submit
        else:
            assert isinstance(self._downpour, Downpour), "replicas in step have servers"
            exchange = self._downpour

            def submit(batch: Batch, place: Place, channel: int) -> None:
                self._threads.submit(batch)

        return Lockstep(
            session.node, session.incarnation, exchange, submit, session.coordinator.step, self._account,
            session.group_epoch,
        )  # fmt: skip

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine until the session ends; its failure ends the session."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self.fail(failure)

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def _work(self, stop: asyncio.Task[bool]) -> str:
        asking: asyncio.Task[NextTaskReply] | None = None
        told = 0
        while True:
            if self._failure is not None:
                raise self._failure
            wanted = max(self._ranges_held - self._accepted, 0)
            if self._lockstep is not None and self._accepted_training:
                wanted = max(wanted, 1)  # so that the part of a replica that has died finds a waiting request
            due = self._reports.due or (self._unpushed and not self._accepted_training)
            if asking is None and (wanted or due):
                asking = asyncio.create_task(self._ask(wanted, POLL_S if wanted else 0.0))
                self._taking.add(asking)
                asking.add_done_callback(self._taking.discard)
            elif due:
                self._act(await self._ask(0, 0.0))
                continue
            news = asyncio.create_task(self._news.wait())
            waiting = {stop, news} | ({asking} if asking is not None else set())
            happened, _ = await asyncio.wait(waiting, timeout=SIGN_OF_LIFE_S, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            self._news.clear()
            if not happened and asking is None and self.batches_done > told:
                told = self.batches_done
                self._act(await self._ask(0, 0.0))
            if stop.done():
                if asking is not None:
                    asking.cancel()
                await self._leave()
                return "stopped"
            if asking is not None and asking.done():
                reply = asking.result()
                asking = None
                if reply.ended:
                    self.over = True
                    return reply.reason
                self._act(reply)

    async def _ask(self, wanted: int, wait_s: float) -> NextTaskReply:
        """Reports, and asks for ranges. A last checkpoint may follow the last report, so all is pushed before it."""
        if self._unpushed and not self._accepted_training:
            await self._flush()
            self._unpushed = False
        if self._failure is not None:
            return NextTaskReply()  # what is not with the servers is not reported: the session ends
        reports = self._reports.take()
        updates = self._downpour.updates - self._updates_reported
        self._updates_reported += updates
        staleness, ages = self._downpour.take_staleness(), self._downpour.take_ages()
        if self._session.lead is not None:
            counts = self._session.lead.take_counts()
            updates += counts.updates
            staleness, ages = added(staleness, counts.staleness), added(ages, counts.ages)
        return await self._session.coordinator.next_tasks(
            NextTaskRequest(
                self._session.node,
                self._session.incarnation,
                reports,
                wanted,
                wait_s,
                updates,
                staleness,
                self.status(),
                gradient_ages=ages,
                group_epoch=self._session.group_epoch,
            )
        )

    def _act(self, reply: NextTaskReply) -> None:
        tasks: list[Task] = [*reply.train, *reply.evaluate]
        if reply.train and not self._accepted_training and self._pacer is not None:
            self._pacer.gate.rest()  # not before: a grant may come that was asked for before the coordinator knew
        if reply.train and not self._accepted_training and self._lockstep is None:
            self._freshening = self._begin_freshening()  # others may have continued while it rested
        for task in tasks:
            self._accepted += 1
            self._accepted_training += isinstance(task, TrainTask)
            taking = asyncio.create_task(self._take(task))
            self._taking.add(taking)
            taking.add_done_callback(self._taking.discard)

    async def _take(self, task: Task) -> None:
        """Reads a task's examples and hands its batches to the threads."""
        if self._group_steps is not None and isinstance(task, TrainTask):
            self._group_steps.announce(task)
        try:
            if isinstance(task, EvaluateTask):
                await self._snapshot(task.evaluation)
            split = task.split if isinstance(task, EvaluateTask) else "train"
            pass_number = task.pass_number if isinstance(task, TrainTask) else -1
            examples = await self._session.data.read(self._session.dataset, split, pass_number, task.start, task.stop)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self.fail(failure)
            return
        self._examples[task.id] = examples
        if self._freshening is not None and isinstance(task, TrainTask):
            await asyncio.shield(self._freshening)
        lead = self._session.lead
        cuts = cut(task, self._session.batch if lead is None or isinstance(task, TrainTask) else lead.batch)
        skips = self._session.experiment.data.on_error == "skip"
        filled = fill(cuts, examples.images, examples.answers, examples.are_there if skips else None)
        if len(filled) < len(cuts) and self._lockstep is not None and isinstance(task, TrainTask):
            self.fail(damaged_step(task))
            return
        report = self._ledger.begin(task, len(filled), len(examples.images) - sum(len(each[2]) for each in filled))
        if report is not None:
            self._finish(task, report)
            return
        siblings = None if self._lockstep is not None else Siblings(len(filled))
        optimizer = self._session.experiment.optimizer
        for number, (piece, images, labels) in enumerate(filled):
            rate = learning_rate(optimizer.lr, optimizer.schedule, piece.progress) / self._session.shares
            local = self._local_rate if self._local_factor is None else self._local_factor * rate
            key = step_key(self._session.experiment.seed, pass_number, task.start + piece.start)
            batch = Batch(task, images, labels, rate, local, siblings, key)
            if self._lockstep is not None and isinstance(task, TrainTask):
                self._lockstep.add(place_of(task, number), batch)
            else:
                self._threads.submit(batch)

    def _begin_freshening(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._downpour.freshen())
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)
        return task

    async def _snapshot(self, evaluation: int) -> None:
        """Pulls parameters once per evaluation, after everything that this replica has accrued is pushed."""
        if self._evaluation is None or self._evaluation[0] != evaluation:
            self._evaluation = (evaluation, asyncio.create_task(self._pull_snapshot()))
        await asyncio.shield(self._evaluation[1])

    async def _pull_snapshot(self) -> None:
        if not self._ledger.training:
            await self._flush()
        await self._downpour.snapshot(self._replica.snapshot)

    async def _flush(self) -> None:
        """Pushes what is accrued, while no thread trains, and waits until all pushes are answered."""
        if self._lockstep is not None:
            return  # every step is pushed, and waited for
        if not self._ledger.training:
            if self._session.lead is not None:
                await self._session.lead.flush()
                return
            for slot in self._replica.flush():
                self._downpour.push(slot)
        await self._downpour.settled()

    # --- what comes back ---------------------------------------------------------------------------------------------

    def _done(self, done: BatchDone) -> None:
        if done.failure is not None:
            self.fail(done.failure)
            return
        in_step = self._lockstep is not None and isinstance(done.batch.task, TrainTask)
        if done.actions is not None and not in_step:
            if done.actions.push is not None:
                self._downpour.push(done.actions.push)
            if done.actions.fetch:
                self._downpour.want_fetch()
        if not isfinite(done.loss_sum) and isinstance(done.batch.task, TrainTask):
            self.fail(DivergedError.at(done.batch.learning_rate * self._session.shares))
            return
        if in_step:
            assert self._lockstep is not None
            self._lockstep.done(done)
        else:
            self._account(done)

    def _account(self, done: BatchDone | Batch) -> None:
        """Counts a finished batch, or a `Batch` of a step that others completed, which is not computed here."""
        if isinstance(done, Batch):
            done = BatchDone(done._replace(labels=done.labels[:0]), 0.0, 0, 0.0, 0.0)
        self.batches_done += 1
        self._trained_until_s = self._loop.time()
        self.compute_s += done.compute_s
        self.wait_s += done.wait_s
        task = done.batch.task
        if isinstance(task, TrainTask):
            self._computed_s += done.compute_s
            self._trained += len(done.batch.labels)
        report = self._ledger.add(
            task, len(done.batch.labels), done.loss_sum, done.correct, done.compute_s, done.wait_s, done.sums
        )
        if report is not None:
            self._finish(task, report)
        if self._reports.due:
            self._news.set()

    def _finish(self, task: Task, report: TaskReport) -> None:
        self._examples.pop(task.id).release()
        self._accepted -= 1
        self._accepted_training -= isinstance(task, TrainTask)
        self._unpushed |= isinstance(task, TrainTask)
        if self._group_steps is not None and isinstance(task, TrainTask):
            self._group_steps.over(task)
        self._reports.add(task, report)
        self._news.set()

    def fail(self, failure: BaseException) -> None:
        """Ends the session with a failure."""
        if self._failure is None:
            self._failure = failure if isinstance(failure, Exception) else RunFailedError(repr(failure))
        self._news.set()

    async def _leave(self) -> None:
        session = self._session
        await self._flush()
        reports = self._reports.take() if self._failure is None else ()
        await session.coordinator.leave(session.node, session.incarnation, reports, group_epoch=session.group_epoch)

    async def _close(self) -> None:
        if isinstance(self._threads, ComputeThreads):
            self._threads.stop()
            await asyncio.to_thread(self._threads.join, 30.0)
        else:
            await self._threads.engine.halt()
        pulling = () if self._evaluation is None else (self._evaluation[1],)
        for task in (*self._taking, *self._background, *pulling):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*self._taking, *pulling, return_exceptions=True)
        await self._downpour.close()
        for examples in self._examples.values():
            examples.release()
        self._replica.memory.close()

    @property
    def trained_s(self) -> float:
        """Seconds from the session's beginning to the last batch that was done."""
        return self._trained_until_s - self._began_s

    def status(self) -> dict[str, object]:
        busy_s = self.compute_s + self.wait_s
        return {
            "state": "training" if self._ledger.training else "evaluating" if len(self._ledger) else "waiting",
            "job": self._session.job,
            "threads": self._session.threads,
            "batches": self.batches_done,
            "pushes": self._downpour.pushes,
            "fetches": self._downpour.fetches,
            "refused": self._downpour.refused,
            "transport": ", ".join(sorted(set(filter(None, self._session.parameters.transports().values())))),
            "waiting_share": self.wait_s / busy_s if busy_s else 0.0,
            "compute_s": round(self.compute_s, 6),
            "wait_s": round(self.wait_s, 6),
            "computed": [(round(self._computed_s, 6), self._trained)],
            **self._session.data.status(),
            **(self._session.lead.status() if self._session.lead is not None else {}),
            **self._step_waits(),
        }

    def _step_waits(self) -> dict[str, object]:
        waiting = self._pacer.gate if self._pacer is not None else self._lockstep
        return {} if waiting is None else {"step_waits": waiting.waits, "step_wait_s": round(waiting.wait_s, 3)}
