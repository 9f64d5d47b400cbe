"""The part of a run's state machine that is about steps: how far replicas are, and whether they may go on."""

from __future__ import annotations

from math import inf

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Outbox
from adamctl.roles.coordinator.core.state import RunState, Worker
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import TaskReport


class RunSteps:
    """Notes the progress of a run's replicas. `run` is the run it belongs to, `out` takes its instructions."""

    def __init__(self, run: RunState, out: Outbox) -> None:
        self._run = run
        self._out = out
        self._settled_seen = 0

    def gather(self) -> None:
        """Lets steps begin when all replicas have joined, or `gather_s` after the first one did."""
        run = self._run
        if len(run.workers) >= run.plan.workers:
            run.gather_until_s = min(run.gather_until_s, run.now_s)
        elif run.gather_until_s == inf:
            run.gather_until_s = run.now_s + run.plan.gather_s

    def step_wanted(self, event: events.StepWanted) -> None:
        run = self._run
        request = event.request
        key = (request.node, request.incarnation)
        refused = run.refusal(key, request.group_epoch)
        if refused is not None and not run.final_state:
            self._out.refuse(event.token, *refused)
            return
        worker = run.workers.get(key) if refused is None else None
        if worker is not None:
            worker.heard_s = run.now_s
            if run.plan.in_step:
                run.rounds.settle(request.done)
                worker.next_step = max(worker.next_step, request.wanted)
            elif run.plan.max_staleness is not None:
                if request.done > run.pace.clock(key).done:
                    run.hanging.moved(key, run.now_s)
                run.pace.tell(key, request.done)
        self._out.extend(run.steps.ask(key, event.token, request, run.now_s))

    def note_progress(self, key: WorkerKey, worker: Worker, examples: int, report: TaskReport) -> None:
        run = self._run
        worker.examples += examples
        worker.steps += report.steps
        run.hanging.moved(key, run.now_s)
        run.rounds.report(report.id)
        if run.plan.max_staleness is None:  # else it reports every step
            run.pace.tell(key, worker.steps)
        if not run.work.out(key):
            run.pace.rest(key)

    def look_for_hanging(self) -> None:
        """Checks which workers make progress, if the others cannot continue without them."""
        run = self._run
        if not run.plan.in_step and run.plan.max_staleness is None:
            return
        if run.rounds.settled > self._settled_seen:
            self._settled_seen = run.rounds.settled
            for key in run.workers:
                run.hanging.moved(key, run.now_s, own=False)
        holding = run.holding()
        run.hanging.look(holding, len(holding) < len(run.workers), run.now_s)
