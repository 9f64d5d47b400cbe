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
from math import isfinite
from typing import Any

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.clock import TrainingClock
from adamctl.roles.coordinator.core.evaluate import EvaluationQueue, best_of, enough_seen
from adamctl.roles.coordinator.core.events import Event, Instruction, RunPlan
from adamctl.roles.coordinator.core.outbox import Outbox
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.coordinator.core.ranges import RangeAllocator, fitting_range
from adamctl.roles.coordinator.core.run_steps import RunSteps
from adamctl.roles.coordinator.core.state import Ending, RunState, Worker
from adamctl.roles.coordinator.core.tasks import Tasks
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import NextTaskReply, NextTaskRequest

JOIN_WAIT_S = 5.0
"""How long a worker that joins before the run is ready waits for an answer."""


class RunCore(RunState):
    """One run: its state, and the only way to change it, `step`."""

    def __init__(self, plan: RunPlan, now_s: float) -> None:
        super().__init__(plan, now_s)
        self._out = Outbox()
        self._run_steps = RunSteps(self, self._out)
        self._tasks = Tasks(self, self._order_what_is_due)
        self._diverged = False

    # --- events -----------------------------------------------------------------------------------------------------

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event; `now_s` must not go backwards. Returns what the shell has to do, in order."""
        assert now_s >= self.now_s, "the clock went backwards"
        self.now_s = now_s
        _HANDLERS[type(event)](self, event)
        self._admit_early_ones()
        if self._ready and not self.final_state:
            self._settle()
        if self.final_state:
            self._tell_the_end()
        self._out.extend(self.steps.end(now_s) if self.final_state else self.steps.look(now_s))
        return self._out.take()

    def _on_renamed(self, event: events.Renamed) -> None:
        self.plan = replace(self.plan, job=event.job)

    def _on_ready(self, event: events.Ready) -> None:
        plan, snapshot = self.plan, event.snapshot
        count = event.train_examples
        self.book = RangeAllocator(plan.passes, count, fitting_range(plan, count), plan.pass_fraction)
        self.desk = EvaluationQueue(plan.evaluate_on, event.evaluation_examples)
        if snapshot is not None:
            self.book.restore(snapshot.passes)
            self.tally.restore(snapshot)
            self.clock = TrainingClock(snapshot.train_seconds)
            self.desk.results = list(snapshot.evaluations)
            self.checkpoint_number = snapshot.checkpoint
            seen = max((result.progress for result in self.desk.results), default=0.0)
            self.trained_since_evaluation = self.book.handed_out > round(seen * self.book.examples_total)
        self._set_up(snapshot.elapsed_seconds if snapshot else 0.0)
        for marks in (self._evaluation_marks, self._checkpoint_marks):
            marks.reached(self.book.handed_out)
        self._ready, self._alone_since_s = True, self.now_s
        if not event.evaluation_examples:
            self._out.say(f"the {plan.evaluate_on} split is empty: nothing will be evaluated")
        elif snapshot is not None and snapshot.evaluation_due is not None:
            self._order_evaluation(snapshot.evaluation_due)

    def _on_join(self, event: events.WorkerJoins) -> None:
        for other in [key for key in self.workers if key[0] == event.node]:
            self._lose(other, "it has joined again")
        if self.final_state:
            self._out.refuse(event.token, ErrorCode.RUN_ENDED, f"run {self.plan.job} is over ({self.final_state})")
        elif not self._ready:
            self._joining.append((event, self.now_s + JOIN_WAIT_S))
        elif len(self.workers) >= self.plan.workers:
            text = f"run {self.plan.job} has all of its {self.plan.workers} workers (cluster.workers); try another run"
            self._out.refuse(event.token, ErrorCode.OVER_QUOTA, text)
        else:
            key = (event.node, event.incarnation)
            self.workers[key] = Worker(key, 4 + 2 * max(event.threads, 1), self.now_s)
            self._out.put(events.Admit(event.token, self._replicas))
            self._replicas += 1
            if self.plan.in_step:
                self._run_steps.gather()

    def _admit_early_ones(self) -> None:
        """Answers workers that came too early, once the run is ready or over or they have waited long enough."""
        waiting, self._joining = self._joining, []
        for event, until_s in waiting:
            if self._ready or self.final_state:
                self._on_join(event)
            elif self.now_s < until_s:
                self._joining.append((event, until_s))
            else:
                self._out.refuse(
                    event.token, ErrorCode.NOT_READY, f"run {self.plan.job} is still starting; try again soon"
                )

    def _on_tasks_wanted(self, event: events.TasksWanted) -> None:
        request = event.request
        key = (request.node, request.incarnation)
        worker = self.workers.get(key)
        self._take_reports(key, request)
        if self.final_state:
            self._out.answer(event.token, NextTaskReply(ended=True, reason=self._end_text))
            self.workers.pop(key, None)
        elif worker is None:
            text = f"worker {request.node} is not one of run {self.plan.job}, or was declared dead; join again"
            self._out.refuse(event.token, ErrorCode.STALE_INCARNATION, text)
        elif request.leaving:
            self._lose(key, "it left")
            self._out.answer(event.token, NextTaskReply())
        elif request.wanted == 0 and request.wait_s <= 0:  # only a report, perhaps in addition to a parked request
            worker.heard_s, worker.status = self.now_s, request.status
            self._out.answer(event.token, NextTaskReply(drain=self.halted))
        else:
            if worker.parked is not None:
                self._out.answer(worker.parked[0], NextTaskReply(drain=self.halted))
            worker.heard_s, worker.status = self.now_s, request.status
            worker.parked = (event.token, request, self.now_s + request.wait_s)

    def _take_reports(self, key: WorkerKey, request: NextTaskRequest) -> None:
        self.tally.add_request(request)
        for report in () if self.saves_its_end else request.reports:
            if not isfinite(report.loss_sum) and not self._diverged:
                self._diverged = True
                self._out.say("the loss is no longer finite: the run has diverged; a lower optimizer.lr may help")
            before = self.tally.examples
            if self.work.report(key, report, self.now_s):
                self.trained_since_evaluation = True
                self._evaluated &= self._checkpoint_wanted
                if key in self.workers:
                    self._run_steps.note_progress(key, self.workers[key], self.tally.examples - before, report)
                if self.ending is not None and self.ending.reason != "stop":
                    self.ending.wait_until_s = self.now_s + self.plan.finish_wait_s
                continue
            if key in self.workers:
                self.hanging.moved(key, self.now_s, step=False)
            alone = self.desk.exclusive
            result = self.desk.report(key, report)
            if result is not None:
                self._on_evaluated(result, alone)

    def _on_evaluated(self, result: EvaluationResult, alone: bool) -> None:
        """`alone`: nothing was trained meanwhile."""
        self._out.put(events.Evaluated(result))
        self._evaluated = True
        enough = enough_seen(self.plan, self.desk.results) if self.ending is None else None
        if enough is not None:
            self._out.say(f"ending early: {enough[1]}")
            self._end(*enough, self.plan.finish_wait_s)
        elif self.ending is None and self.plan.keep_best and best_of(self.desk.results) == len(self.desk.results) - 1:
            self._checkpoint_wanted, self._best_is_written = True, not alone

    def _on_worker_lost(self, event: events.WorkerLost) -> None:
        key = (event.node, event.incarnation)  # the next process with this name may already be waiting
        waiting, self._joining = self._joining, []
        for early, until_s in waiting:
            if (early.node, early.incarnation) == key:
                self._out.refuse(early.token, ErrorCode.STALE_INCARNATION, event.cause)
            else:
                self._joining.append((early, until_s))
        self._lose(key, event.cause)

    def _on_failed(self, event: events.Failed) -> None:
        self._finish("failed", event.cause)

    def _on_stop_wanted(self, event: events.StopWanted) -> None:
        if not self._ready:
            self._finish("stopped", event.reason)
        elif self.ending is None or self.ending.reason != "stop":
            self.desk.cancel()
            self._end("stop", event.reason, self.plan.stop_wait_s, event.checkpoint)

    def _on_checkpoint_wanted(self, event: events.CheckpointWanted) -> None:
        job, ending = self.plan.job, self.ending
        if self.final_state or (ending is not None and (ending.checkpoint or not ending.checkpoint_wanted)):
            self._out.refuse(
                event.token, ErrorCode.RUN_ENDED, f"run {job} is over or ending; its last checkpoint is there"
            )
        elif not self._ready:
            self._out.refuse(event.token, ErrorCode.NOT_READY, f"run {job} is still starting; try again soon")
        else:
            self._saves_wanted.append(event.token)

    def _on_checkpoint(self, event: events.CheckpointWritten | events.CheckpointFailed) -> None:
        if event.number != self._checkpoint_writing:
            return
        self._checkpoint_writing = 0
        self._best_is_written = self._best_is_written or not self._checkpoint_wanted
        tokens, self._saves_writing = self._saves_writing, []
        if isinstance(event, events.CheckpointWritten):
            self._out.extend(events.Saved(token, event.number) for token in tokens)
        else:
            text = f"checkpoint {event.number} could not be written: {event.cause}"
            for token in tokens:
                self._out.refuse(token, ErrorCode.INTERNAL, text)
            if self.ending is None or self.ending.checkpoint != event.number:
                self._out.say(text)
            elif not self.ending.put_off(self.now_s, self.plan.last_checkpoint_s):
                self._finish("failed", text)
            elif self.ending.retries == 1:
                self._out.say(f"{text}; trying again, for {self.plan.last_checkpoint_s:.0f} s")

    # --- after every event ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Applies all consequences of the present state until nothing more follows."""
        for worker in list(self.workers.values()):
            if worker.parked is None and self.now_s >= self._deadline_s(worker):
                self._lose(worker.key, f"no message from it for {self.plan.silent_after_s:g} s")
        self._run_steps.look_for_hanging()
        for key, waited_s in self.hanging.hanging(self.now_s).items():
            self._lose(key, f"it has finished neither a step nor a range for {waited_s:.0f} s, and others wait for it")
        if self._needs_worker and self.now_s >= self._alone_since_s + self.plan.no_worker_s:
            advice = "" if self.plan.tended else "; start one with: adamctl worker start"
            self._finish("failed", f"no worker for {self.plan.no_worker_s:g} s{advice}")
        settled = False
        while not settled and not self.final_state:
            before = len(self._out)
            self._order_what_is_due()
            self._advance_ending()
            self._serve()
            settled = len(self._out) == before
        self._run_steps.look_for_hanging()

    def _order_what_is_due(self) -> None:
        if self.ending is not None:
            return
        may = self.desk.current is None and self.desk.examples
        if may and (passes := self._evaluation_marks.reached(self.book.handed_out)) is not None:
            self._order_evaluation(passes)
        if self._checkpoint_marks.reached(self.book.handed_out) is not None:
            self._checkpoint_wanted = True
        # After the evaluation, so that its result is in the manifest and a single worker has pushed everything.
        if self._checkpoint_wanted and self.desk.current is None and not self._checkpoint_writing:
            self._checkpoint_wanted = False
            self._write_checkpoint()
        if self._saves_wanted and not self._checkpoint_writing:
            self._write_checkpoint()

    def _order_evaluation(self, passes: float) -> None:
        self.desk.order(passes, exclusive=len(self.workers) <= 1 or self.plan.in_step, due=passes)

    def _write_checkpoint(self) -> int:
        self.checkpoint_number += 1
        self._checkpoint_writing = self.checkpoint_number
        self._saves_writing, self._saves_wanted = self._saves_wanted, []
        self._out.put(events.WriteCheckpoint(self.checkpoint_number, self.snapshot()))
        return self.checkpoint_number

    def _advance_ending(self) -> None:
        """Ends the run step by step: outstanding ranges, a last evaluation, a last checkpoint, the end."""
        if self.ending is None:
            if not self.book.finished:
                return
            self._end("passes", "", self.plan.finish_wait_s)
        ending = self.ending
        assert ending is not None
        if self.clock.ranges_out:
            if self.now_s < ending.wait_until_s:
                return
            for key in self.workers:
                self.work.lose(key, self.now_s)
            self.rounds.clear()
        if ending.reason != "stop":
            if self.desk.current is None and self.desk.examples and self.trained_since_evaluation:
                self.desk.order(self.passes_handed_out, exclusive=True)
            if self.desk.current is not None:
                return
        if self._checkpoint_writing:
            return
        if not ending.checkpoint_wanted or ending.checkpoint or not self.tally.examples:
            self._finish("stopped" if ending.reason == "stop" else "ended", ending.cause)
        elif self.now_s >= ending.retry_s:
            ending.checkpoint = self._write_checkpoint()

    def _serve(self) -> None:
        """Answers every parked request for which there is work or news, in the order of arrival."""
        waiting = [worker for worker in self.workers.values() if worker.parked is not None]
        for worker in sorted(waiting, key=lambda w: w.parked[0] if w.parked else 0):
            assert worker.parked is not None
            token, request, until_s = worker.parked
            evaluate = self._tasks.evaluate(worker, request.wanted)
            train = self._tasks.train(worker, request.wanted - len(evaluate))
            drain = self.halted
            news = drain and not worker.told_drain
            worker.told_drain = drain
            if evaluate or train or news or self.now_s >= until_s:
                worker.parked, worker.heard_s = None, self.now_s
                self._out.answer(token, NextTaskReply(tuple(train), tuple(evaluate), drain))

    def _lose(self, key: WorkerKey, cause: str) -> None:
        worker = self.workers.pop(key, None)
        if worker is None:
            return
        if self.plan.in_step:
            examples = self.rounds.lose(key, list(self.workers), self._tasks.next_id, self.now_s)
        else:
            examples = self.work.lose(key, self.now_s)
        for other in self.workers.values():
            other.next_step = 0  # parts of earlier steps may be its own now
        self.hanging.leave(key)
        self.pace.leave(key)
        self.desk.lose(key)
        if self.warm_worker == key:
            self.warm_worker = None
        if not self.workers:
            self._alone_since_s = self.now_s
        again = f"; {examples} examples are handed out again" if examples else ""
        self._out.say(f"worker {key[0]} is gone: {cause}{again}")
        if worker.parked is not None:
            self._out.refuse(
                worker.parked[0], ErrorCode.STALE_INCARNATION, f"worker {key[0]} was declared dead: {cause}"
            )
        self._out.extend(self.steps.leave(key, ErrorCode.STALE_INCARNATION, f"declared dead: {cause}"))

    def _end(self, reason: str, cause: str, wait_s: float, checkpoint: bool = True) -> None:
        written = self.ending.checkpoint if self.ending is not None else 0
        self.ending = Ending(reason, cause, self.now_s + wait_s, checkpoint, written)

    def _finish(self, state: str, cause: str) -> None:
        if self.final_state:
            return
        for key in self.workers:
            self.work.lose(key, self.now_s)
        self.final_state, self.cause = state, cause
        for token in (*self._saves_writing, *self._saves_wanted):
            self._out.refuse(token, ErrorCode.RUN_ENDED, f"run {self.plan.job} is over ({self._end_text})")
        self._saves_writing, self._saves_wanted = [], []
        self._out.put(events.Finished(state, cause))

    def _tell_the_end(self) -> None:
        """Answers parked requests. Workers still in `workers` afterwards had none, so they have not been told yet."""
        for worker in [w for w in self.workers.values() if w.parked is not None]:
            assert worker.parked is not None
            self._out.answer(worker.parked[0], NextTaskReply(ended=True, reason=self._end_text))
            del self.workers[worker.key]


_HANDLERS: dict[type[Any], Callable[[RunCore, Any], None]] = {
    events.Ready: RunCore._on_ready,
    events.Renamed: RunCore._on_renamed,
    events.WorkerJoins: RunCore._on_join,
    events.TasksWanted: RunCore._on_tasks_wanted,
    events.StepWanted: lambda core, event: core._run_steps.step_wanted(event),
    events.WorkerLost: RunCore._on_worker_lost,
    events.Failed: RunCore._on_failed,
    events.StopWanted: RunCore._on_stop_wanted,
    events.CheckpointWanted: RunCore._on_checkpoint_wanted,
    events.CheckpointWritten: RunCore._on_checkpoint,
    events.CheckpointFailed: RunCore._on_checkpoint,
    events.Tick: lambda core, event: None,  # deadlines are checked after every event
}
