"""The coordinator of a run as a pure state machine: an event and a clock reading in, instructions out.

    state        what happens                                    ends when
    starting     the run waits for servers and data              Ready
    warmstart    one replica alone trains (DistBelief 4.1)       `warmstart_steps` steps are reported
    training     ranges go to workers that ask                   the last pass has ended, target reached, stop
    evaluating   one worker evaluates, nothing is trained        its last range is reported
    finishing    last ranges are reported, last checkpoint       all of it is done, or a deadline passed
    ended, failed, stopped                                       never: every request is told so

With several workers, one evaluates while the others keep training, and the state stays `training`. A parked request is
answered in the same step that brings work for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

from adamctl.errors import CustomError
from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.batch_passes import BatchPasses
from adamctl.roles.coordinator.core.clock import TrainingClock
from adamctl.roles.coordinator.core.evaluate import EvaluationQueue, Marks, best_of, enough_seen
from adamctl.roles.coordinator.core.events import Event, RunPlan
from adamctl.roles.coordinator.core.groups import Groups
from adamctl.roles.coordinator.core.instructions import Evaluated, Finished, Instruction, LeaveBatch, Outbox
from adamctl.roles.coordinator.core.joining import Joining
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.coordinator.core.ranges import RangeAllocator, fitting_range
from adamctl.roles.coordinator.core.report import lost_parameters_text, no_worker_text
from adamctl.roles.coordinator.core.run_steps import RunSteps
from adamctl.roles.coordinator.core.saving import Saving
from adamctl.roles.coordinator.core.state import Ending, RunState, Worker
from adamctl.roles.coordinator.core.tasks import Tasks
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import NextTaskReply, NextTaskRequest

ALL_SKIPPED = (
    'is damaged and was left out (data.on_error = "skip"): nothing can be learnt or measured; '
    "the data servers' logs name the files"
)


class RunCore:
    """Decides for one run: `step` takes an event, `run` is read.

    Attributes:
        run: the state of the run.
    """

    def __init__(self, plan: RunPlan, now_s: float) -> None:
        self.run = RunState(plan, now_s)
        self._out = Outbox()
        self._run_steps = RunSteps(self.run, self._out)
        self._saving = Saving(self.run, self._out, partial(self._finish, "failed"))
        self._joining = Joining(self.run, self._out, self._run_steps, self._lose)
        end_as_misfit = partial(self._end, "misfit", wait_s=0.0)
        self._batch = BatchPasses(self.run, self._saving)
        self._groups = Groups(self.run, self._out, self._joining.admit, self._give_up, end_as_misfit)
        self._tasks = Tasks(self.run, self._order_what_is_due)
        self._evaluation_marks = self._evaluations_due()
        self._diverged = False

    def as_of(self, now_s: float) -> RunState:
        """Returns the run's state with the clock put forward to `now_s`, unless the run is over."""
        if not self.run.final_state:
            self.run.now_s = max(self.run.now_s, now_s)
        return self.run

    @property
    def holds_batch(self) -> bool:
        """Whether the program of a batch algorithm must wait now."""
        return self._batch.holds

    def _evaluations_due(self) -> Marks:
        """Returns when evaluations are due that were not due before."""
        book = self.run.book
        marks = Marks(self.run.plan.evaluate_every, book.examples, book.examples_total)
        marks.reached(book.handed_out)
        return marks

    # --- events -----------------------------------------------------------------------------------------------------

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event; `now_s` must not go backwards. Returns what the shell has to do, in order."""
        run = self.run
        assert now_s >= run.now_s, "the clock went backwards"
        run.now_s = now_s
        _HANDLERS[type(event)](self, event)
        self._joining.answer_early_ones(self._groups)
        if run.ready and not run.final_state:
            self._settle()
        self._batch.settle()
        if run.final_state:
            self._tell_the_end()
        self._out.extend(run.steps.end(now_s) if run.final_state else run.steps.look(now_s))
        return self._out.take()

    def _on_renamed(self, event: events.Renamed) -> None:
        run = self.run
        run.plan = replace(run.plan, job=event.job)

    def _on_ready(self, event: events.Ready) -> None:
        run = self.run
        plan, snapshot = run.plan, event.snapshot
        count = event.train_examples
        run.batch = event.batch
        range_examples = fitting_range(plan, count) if event.batch is None else count
        run.book = RangeAllocator(plan.passes, count, range_examples, plan.pass_fraction)
        run.desk = EvaluationQueue(plan.evaluate_on, event.evaluation_examples, plan.metric)
        if snapshot is not None:
            run.book.restore(snapshot.passes)
            run.tally.restore(snapshot)
            run.clock = TrainingClock(snapshot.train_seconds)
            run.desk.results = list(snapshot.evaluations)
            run.checkpoint_number = snapshot.checkpoint
            seen = max((result.progress for result in run.desk.results), default=0.0)
            run.trained_since_evaluation = run.book.handed_out > round(seen * run.book.examples_total)
        run.set_up(snapshot.elapsed_seconds if snapshot else 0.0)
        self._saving.set_up()
        self._evaluation_marks = self._evaluations_due()
        run.ready, run.alone_since_s = True, run.now_s
        if not event.evaluation_examples:
            self._out.say(f"the {plan.evaluate_on} split is empty: nothing will be evaluated")
        elif snapshot is not None and snapshot.evaluation_due is not None:
            self._order_evaluation(snapshot.evaluation_due)

    def _on_tasks_wanted(self, event: events.TasksWanted) -> None:
        run = self.run
        request = event.request
        key = (request.node, request.incarnation)
        refused = run.refusal(key, request.group_epoch)
        worker = run.workers.get(key) if refused is None else None
        self._take_reports(worker, key, request)
        if run.final_state:
            self._out.answer(event.token, NextTaskReply(ended=True, reason=run.end_text))
            run.workers.pop(key, None)
            run.groups.release(key)
        elif refused is not None or worker is None:
            assert refused is not None
            self._out.refuse(event.token, *refused)
        elif request.leaving:
            self._lose(key, "it left")
            self._out.answer(event.token, NextTaskReply())
        elif request.wanted == 0 and request.wait_s <= 0:  # only a report, perhaps in addition to a parked request
            worker.heard_s, worker.status = run.now_s, request.status
            self._out.answer(event.token, NextTaskReply(drain=run.halted))
        else:
            if worker.parked is not None:
                self._out.answer(worker.parked[0], NextTaskReply(drain=run.halted))
            worker.heard_s, worker.status = run.now_s, request.status
            worker.parked = (event.token, request, run.now_s + request.wait_s)
        if worker is not None and worker.starting:
            self._groups.begin(key)

    def _take_reports(self, worker: Worker | None, key: WorkerKey, request: NextTaskRequest) -> None:
        """`worker` is None if what is reported was given to one that is lost by now."""
        run = self.run
        run.tally.add_request(request)
        for report in () if run.saves_its_end else request.reports:
            if not isfinite(report.loss_sum) and not self._diverged:
                self._diverged = True
                self._out.say("the loss is no longer finite: the run has diverged; a lower optimizer.lr may help")
            before = run.tally.examples
            if run.work.report(key, report, run.now_s):
                run.trained_since_evaluation = True
                run.evaluated &= self._saving.wanted
                if worker is not None:
                    self._run_steps.note_progress(key, worker, run.tally.examples - before, report)
                if run.work.skipped_pass is not None:
                    self._finish("failed", f"every example of pass {run.work.skipped_pass + 1} {ALL_SKIPPED}")
                    return
                if run.ending is not None and run.ending.reason != "stop":
                    run.ending.wait_until_s = run.now_s + run.plan.finish_wait_s
                continue
            if worker is not None:
                run.hanging.moved(key, run.now_s, step=False)
            alone = run.desk.exclusive
            try:
                result = run.desk.report(key, report)
            except CustomError as error:  # the metric is the user's
                self._finish("failed", str(error))
                return
            if result is not None:
                self._on_evaluated(result, alone)

    def _on_batch_moved(self, event: events.BatchMoved) -> None:
        if self._batch.follow():
            self.run.trained_since_evaluation = True
            self.run.evaluated &= self._saving.wanted

    def _on_evaluated(self, result: EvaluationResult, alone: bool) -> None:
        """`alone`: nothing was trained meanwhile."""
        run = self.run
        if result.skipped >= run.desk.examples:
            self._finish("failed", f"every example of the {result.split} split {ALL_SKIPPED}")
            return
        self._out.put(Evaluated(result))
        run.evaluated = True
        enough = enough_seen(run.plan, run.desk.results) if run.ending is None else None
        if enough is not None:
            self._out.say(f"ending early: {enough[1]}")
            self._end(*enough, run.plan.finish_wait_s)
        elif run.ending is None and run.plan.keep_best and best_of(run.desk.results) == len(run.desk.results) - 1:
            self._saving.want_best(alone)

    def _on_worker_lost(self, event: events.WorkerLost) -> None:
        key = (event.node, event.incarnation)
        self._joining.lose(key, event.cause)
        self._lose(key, event.cause)

    def _on_failed(self, event: events.Failed) -> None:
        self._finish("failed", event.cause)

    def _on_stop_wanted(self, event: events.StopWanted) -> None:
        run = self.run
        if not run.ready:
            self._finish("stopped", event.reason)
        elif run.ending is None or run.ending.reason != "stop":
            run.desk.cancel()
            self._end("stop", event.reason, run.plan.stop_wait_s, event.checkpoint)

    # --- after every event ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Applies all consequences of the present state until nothing more follows."""
        run = self.run
        for worker in list(run.workers.values()):
            if worker.parked is None and run.now_s >= run.deadline_s(worker):
                self._lose(worker.key, f"no message from it for {run.plan.silent_after_s:g} s")
        self._run_steps.look_for_hanging()
        for key, waited_s in run.hanging.hanging(run.now_s).items():
            self._lose(key, f"it has finished neither a step nor a range for {waited_s:.0f} s, and others wait for it")
        self._groups.look()
        if run.needs_worker and run.now_s >= run.alone_since_s + run.plan.no_worker_s:
            self._finish("failed", no_worker_text(run))
        settled = False
        while not settled and not run.final_state:
            before = len(self._out)
            self._order_what_is_due()
            self._batch.settle()
            self._advance_ending()
            self._serve()
            settled = len(self._out) == before
        self._run_steps.look_for_hanging()

    def _order_what_is_due(self) -> None:
        run = self.run
        if run.ending is not None:
            return
        may = run.desk.current is None and run.desk.examples
        if may and (passes := self._evaluation_marks.reached(run.book.handed_out)) is not None:
            self._order_evaluation(passes)
        self._saving.order_due()

    def _order_evaluation(self, passes: float) -> None:
        run = self.run
        run.desk.order(passes, exclusive=len(run.workers) <= 1 or run.plan.in_step, due=passes)

    def _advance_ending(self) -> None:
        """Ends the run step by step: outstanding ranges, a last evaluation, a last checkpoint, the end."""
        run = self.run
        if run.ending is None:
            why = ("passes", "") if run.book.finished else None
            why = why if run.batch is None else self._batch.end_text()
            if why is None:
                return
            if why[1]:
                self._out.say(why[1])
            self._end(*why, run.plan.finish_wait_s)
            self._batch.settle()
        ending = run.ending
        assert ending is not None
        if run.clock.ranges_out:
            if run.now_s < ending.wait_until_s:
                return
            for key in run.workers:
                run.work.lose(key, run.now_s)
            run.rounds.clear()
        if not ending.early:
            if run.desk.current is None and run.desk.examples and run.trained_since_evaluation:
                run.desk.order(run.passes_handed_out, exclusive=True)
            if run.desk.current is not None:
                return
        if self._saving.writing:
            return
        if not run.can_be_saved:
            if run.now_s < ending.wait_until_s:
                return
            self._out.say("no last checkpoint is written: servers have not answered the commit that was on its way")
            ending.checkpoint_wanted = False
        if not ending.checkpoint_wanted or ending.checkpoint or not run.tally.examples:
            self._finish(ending.final_state, ending.cause)
        elif run.now_s >= ending.retry_s:
            ending.checkpoint = self._saving.write()

    def _serve(self) -> None:
        """Answers every parked request for which there is work or news, in the order of arrival."""
        run = self.run
        waiting = [worker for worker in run.workers.values() if worker.parked is not None]
        for worker in sorted(waiting, key=lambda w: w.parked[0] if w.parked else 0):
            assert worker.parked is not None
            token, request, until_s = worker.parked
            evaluate = self._tasks.evaluate(worker, request.wanted)
            train = self._tasks.train(worker, request.wanted - len(evaluate))
            drain = run.halted
            news = drain and not worker.told_drain
            worker.told_drain = drain
            if evaluate or train or news or run.now_s >= until_s:
                worker.parked, worker.heard_s = None, run.now_s
                self._out.answer(token, NextTaskReply(tuple(train), tuple(evaluate), drain))

    def _lose(self, key: WorkerKey, cause: str) -> None:
        """Loses a worker; where replicas have several partitions, its group or its wait for one."""
        if self.run.plan.partitions > 1:
            self._groups.lose(key, cause)
        else:
            told = f"worker {key[0]} was declared dead: {cause}"
            self._give_up(key, f"worker {key[0]} is gone: {cause}", ErrorCode.STALE_INCARNATION, told)

    def _give_up(self, key: WorkerKey, gone: str, code: int, told: str) -> None:
        """Takes back what a replica has. Users are told what is gone, and its requests that wait are refused."""
        run = self.run
        worker = run.workers.pop(key, None)
        if worker is None:
            return
        if run.plan.in_step:
            examples = run.rounds.lose(key, list(run.workers), self._tasks.next_id, run.now_s)
        else:
            examples = run.work.lose(key, run.now_s)
        for other in run.workers.values():
            other.next_step = 0  # parts of earlier steps may be its own now
        run.hanging.leave(key)
        run.pace.leave(key)
        run.desk.lose(key)
        if run.batch is not None:
            self._out.put(LeaveBatch(key))
        if run.warm_worker == key:
            run.warm_worker = None
        if not run.workers:
            run.alone_since_s = run.now_s
        self._out.say(f"{gone}; {examples} examples are handed out again" if examples else gone)
        if run.loses_parameters:
            self._finish("failed", lost_parameters_text(run, gone))
        if worker.parked is not None:
            self._out.refuse(worker.parked[0], code, told)
        self._out.extend(run.steps.leave(key, code, told))

    def _end(self, reason: str, cause: str, wait_s: float, checkpoint: bool = True) -> None:
        run = self.run
        written = run.ending.checkpoint if run.ending is not None else 0
        run.ending = Ending(reason, cause, run.now_s + wait_s, checkpoint, written)

    def _finish(self, state: str, cause: str) -> None:
        run = self.run
        if run.final_state:
            return
        for key in run.workers:
            run.work.lose(key, run.now_s)
        run.final_state, run.cause = state, cause
        self._saving.refuse_all()
        self._out.put(Finished(state, cause))

    def _tell_the_end(self) -> None:
        """Answers parked requests. Workers still in `workers` afterwards had none, so they have not been told yet."""
        run = self.run
        for worker in [w for w in run.workers.values() if w.parked is not None]:
            assert worker.parked is not None
            self._out.answer(worker.parked[0], NextTaskReply(ended=True, reason=run.end_text))
            del run.workers[worker.key]
        self._groups.tell_the_end()


_HANDLERS: dict[type[Any], Callable[[RunCore, Any], None]] = {
    events.Ready: RunCore._on_ready,
    events.Renamed: RunCore._on_renamed,
    events.WorkerJoins: lambda core, event: core._joining.join(event, core._groups),
    events.TasksWanted: RunCore._on_tasks_wanted,
    events.StepWanted: lambda core, event: core._run_steps.step_wanted(event),
    events.GroupWatched: lambda core, event: core._groups.watch(event),
    events.GroupDropWanted: lambda core, event: core._groups.drop(event),
    events.BatchMoved: RunCore._on_batch_moved,
    events.WorkerLost: RunCore._on_worker_lost,
    events.Failed: RunCore._on_failed,
    events.StopWanted: RunCore._on_stop_wanted,
    events.CheckpointWanted: lambda core, event: core._saving.ask(event),
    events.CheckpointWritten: lambda core, event: core._saving.ended(event),
    events.CheckpointFailed: lambda core, event: core._saving.ended(event),
    events.Tick: lambda core, event: None,  # deadlines are checked after every event
}
