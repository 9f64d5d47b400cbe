"""The part of a run's state machine that is about steps: how far replicas are, and whether they may go on."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.events import Instruction, RunPlan
from adamctl.roles.coordinator.core.state import RunState, Worker
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import NextTaskReply, TaskReport


class RunSteps(RunState):
    """What `adamctl.roles.coordinator.core.run_core.RunCore` is built on; gathers the instructions of a step."""

    def __init__(self, plan: RunPlan, now_s: float) -> None:
        super().__init__(plan, now_s)
        self._instructions: list[Instruction] = []
        self._settled_seen = 0

    def _on_renamed(self, event: events.Renamed) -> None:
        self.plan = replace(self.plan, job=event.job)

    def _gather(self) -> None:
        """Steps begin when all replicas are there; the first one waits for the others only so long."""
        if len(self.workers) >= self.plan.workers:
            self._gather_until_s = min(self._gather_until_s, self.now_s)
        elif self._gather_until_s == inf:
            self._gather_until_s = self.now_s + self.plan.gather_s

    def _on_step_wanted(self, event: events.StepWanted) -> None:
        request = event.request
        key = (request.node, request.incarnation)
        worker = self.workers.get(key)
        if worker is None and not self.final_state:
            text = f"worker {request.node} is not one of run {self.plan.job}, or was taken for dead; join again"
            self._refuse(event.token, ErrorCode.STALE_INCARNATION, text)
            return
        if worker is not None:
            worker.heard_s = self.now_s
            if self.plan.in_step:
                self.rounds.settle(request.done)
                worker.next_step = max(worker.next_step, request.wanted)
            elif self.plan.max_staleness is not None:
                if request.done > self.pace.clock(key).done:
                    self.hanging.moved(key, self.now_s)
                self.pace.tell(key, request.done)
        self._instructions.extend(self.steps.ask(key, event.token, request, self.now_s))

    def _note_progress(self, key: WorkerKey, worker: Worker, examples: int, report: TaskReport) -> None:
        worker.examples += examples
        worker.steps += report.steps
        self.hanging.moved(key, self.now_s)
        self.rounds.report(report.id)
        if self.plan.max_staleness is None:  # else it tells of every step
            self.pace.tell(key, worker.steps)
        if not self.work.out(key):
            self.pace.rest(key)

    def _look_for_hanging(self) -> None:
        """Sees who makes progress, where the others cannot go on without those who do not."""
        if not self.plan.in_step and self.plan.max_staleness is None:
            return
        if self.rounds.settled > self._settled_seen:
            self._settled_seen = self.rounds.settled
            for key in self.workers:
                self.hanging.moved(key, self.now_s, own=False)
        holding = self._holding()
        self.hanging.look(holding, len(holding) < len(self.workers), self.now_s)

    def _task_id(self) -> int:
        self._last_task_id += 1
        return self._last_task_id

    def _answer(self, token: int, reply: NextTaskReply) -> None:
        self._instructions.append(events.Answer(token, reply))

    def _refuse(self, token: int, code: int, message: str) -> None:
        self._instructions.append(events.Refuse(token, code, message))

    def _say(self, text: str) -> None:
        self._instructions.append(events.Say(text))
