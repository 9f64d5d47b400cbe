"""The part of a run's state machine that takes workers in."""

from __future__ import annotations

from collections.abc import Callable

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.groups import Groups
from adamctl.roles.coordinator.core.instructions import Admit, Outbox
from adamctl.roles.coordinator.core.ranges import ranges_most
from adamctl.roles.coordinator.core.run_steps import RunSteps
from adamctl.roles.coordinator.core.state import RunState, Worker
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.constants import ErrorCode

JOIN_WAIT_S = 5.0
"""How long a worker that joins before the run is ready waits for an answer."""


class Joining:
    """Admits workers to a run, or says why not; where replicas have several partitions, groups do."""

    def __init__(self, run: RunState, out: Outbox, steps: RunSteps, lose: Callable[[WorkerKey, str], None]) -> None:
        """`run` is the run it belongs to, `out` takes its instructions. `lose` loses a worker."""
        self._run, self._out, self._steps, self._lose = run, out, steps, lose
        self._replicas = 0

    def join(self, event: events.WorkerJoins, groups: Groups) -> None:
        run = self._run
        if groups.is_former(event):
            text = f"a later process has the name {event.node}"
            self._out.refuse(event.token, ErrorCode.STALE_INCARNATION, text)
            return
        for other in [*(key for key in run.workers if key[0] == event.node), *run.groups.keys_of(event.node)]:
            self._lose(other, "it has joined again")
        if run.final_state:
            self._out.refuse(event.token, ErrorCode.RUN_ENDED, f"run {run.plan.job} is over ({run.final_state})")
        elif not run.ready:
            run.joining.append((event, run.now_s + JOIN_WAIT_S))
        elif text := self._unlike(event):
            self._out.refuse(event.token, ErrorCode.IMPLEMENTATION_MISMATCH, text)
        elif run.plan.partitions > 1:
            groups.join(event)
        elif len(run.workers) >= run.plan.workers:
            text = f"run {run.plan.job} has all of its {run.plan.workers} workers (cluster.workers); try another run"
            self._out.refuse(event.token, ErrorCode.OVER_QUOTA, text)
        else:
            self._out.put(Admit(event.token, self.admit((event.node, event.incarnation), event.threads)))

    def _unlike(self, event: events.WorkerJoins) -> str:
        """Returns why a batch algorithm cannot use a worker, "" if it can."""
        run = self._run
        if run.batch is None:
            return ""
        others = bool(run.workers or len(run.groups) or run.lobby.guests.keys() - {event.node})
        text = run.batch.sameness.refusal((event.node, event.incarnation), event.implementation, others)
        for notice in run.batch.sameness.take_notices():
            self._out.say(notice)
        return text

    def admit(self, key: WorkerKey, threads: int) -> int:
        """Takes in a worker, or the lead of a group; returns the number of its replica."""
        run = self._run
        run.workers[key] = Worker(key, ranges_most(run.plan, threads, run.work.book.range_examples), run.now_s)
        self._replicas += 1
        if run.plan.in_step:
            self._steps.gather()
        return self._replicas - 1

    def answer_early_ones(self, groups: Groups) -> None:
        """Answers workers that came too early, once the run is ready or over or they have waited long enough."""
        run = self._run
        waiting, run.joining = run.joining, []
        for event, until_s in waiting:
            if run.ready or run.final_state:
                self.join(event, groups)
            elif run.now_s < until_s:
                run.joining.append((event, until_s))
            else:
                self._out.refuse(
                    event.token, ErrorCode.NOT_READY, f"run {run.plan.job} is still starting; try again soon"
                )

    def lose(self, key: WorkerKey, cause: str) -> None:
        """Refuses what a lost process asked for before the run was ready; the next one of its name may wait, too."""
        run = self._run
        waiting, run.joining = run.joining, []
        for early, until_s in waiting:
            if (early.node, early.incarnation) == key:
                self._out.refuse(early.token, ErrorCode.STALE_INCARNATION, cause)
            else:
                run.joining.append((early, until_s))
