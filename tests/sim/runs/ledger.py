"""What workers of a run were given and have reported: truth, apart from the coordinator's core."""

from __future__ import annotations

from collections import Counter

from adamctl.roles.coordinator.core.events import RunPlan, RunSnapshot
from adamctl.roles.coordinator.core.ranges import Range, fitting_range
from adamctl.roles.coordinator.core.state import RunState
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import TaskReport, TrainTask
from tests.sim.engine import ViolationError


class RunLedger:
    """Sees every task that leaves the coordinator and every report that comes to it.

    Attributes:
        done: range -> the task that it was done as.
        held: range -> task and worker, of the workers that the coordinator believes in.
        again, late: ranges handed out more than once; reports that came after their range had been taken back.
        examples, duplicates: what the core must have counted.
    """

    def __init__(self, plan: RunPlan, examples: int) -> None:
        self.plan, self.pass_examples = plan, examples
        self.done: dict[Range, int] = {}
        self.held: dict[Range, tuple[int, WorkerKey]] = {}
        self.again = self.late = 0
        self.examples = self.duplicates = 0
        self._given: dict[int, tuple[WorkerKey, Range]] = {}
        self._reported: set[int] = set()
        self._ever: set[Range] = set()
        self._handed_out, self._done = Counter[int](), Counter[int]()  # examples by pass

    def _is_range(self, one: Range) -> bool:
        step = fitting_range(self.plan, self.pass_examples)
        whole = one.start % step == 0 and one.stop == min(one.start + step, self.pass_examples)
        if self.plan.in_step:  # ranges of the last round of a pass are shorter
            ends = one.stop % self.plan.batch == 0 or one.stop == self.pass_examples
            whole = one.start % self.plan.batch == 0 and ends and one.start < one.stop <= one.start + step
        return whole and 0 <= one.start < self.pass_examples and 0 <= one.pass_number < self.plan.passes

    # --- what happens -----------------------------------------------------------------------------------------------

    def gave(self, worker: WorkerKey, task: TrainTask) -> None:
        """A task is sent to a worker."""
        given = Range(task.pass_number, task.start, task.stop)
        told = f"{given} to {worker} as task {task.id}"
        if task.id in self._given:
            raise ViolationError(f"a task twice: {told}")
        if not self._is_range(given):
            raise ViolationError(f"a range that there is not: {told}")
        if given in self.done:
            raise ViolationError(f"a range that is done is given out again: {told}")
        if given in self.held:
            raise ViolationError(f"a range with two workers: {told}, and {self.held[given]} has it")
        if given.pass_number:
            self._check_ended(given.pass_number - 1)
        if given in self._ever:
            self.again += 1
        else:
            self._ever.add(given)
            self._handed_out[given.pass_number] += given.examples
        self._given[task.id] = worker, given
        self.held[given] = task.id, worker

    def _check_ended(self, number: int) -> None:
        """A pass begins when all of the one before is handed out, and enough of it done."""
        handed_out, done = self._handed_out[number], self._done[number]
        told = handed_out == self.pass_examples or self.plan.in_step  # where rounds are planned ahead
        if not told or done < self.plan.pass_fraction * self.pass_examples:
            raise ViolationError(f"a pass ends early: pass {number} with {handed_out} examples handed out, {done} done")

    def reports(self, worker: WorkerKey, report: TaskReport) -> None:
        """A report is about to come to the core."""
        owner, given = self._given.get(report.id, (None, None))
        if given is None or owner != worker or report.id in self._reported:
            return
        self._reported.add(report.id)
        if self.held.get(given, (0, worker))[0] == report.id:
            del self.held[given]
        else:
            self.late += 1
        if given in self.done:
            self.duplicates += given.examples
        else:
            self.done[given] = report.id
            self._done[given.pass_number] += given.examples
            self.examples += given.examples

    def loses(self, node: str) -> None:
        """What a node has is taken back, as it joins anew."""
        self.held = {given: held for given, held in self.held.items() if held[1][0] != node}

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self, run: RunState) -> None:
        """After each event: the core has counted what was reported, once, and nobody else has anything."""
        over = bool(run.final_state) or (run.ending is not None and not run.clock.ranges_out)
        self.held = {} if over else {given: held for given, held in self.held.items() if held[1] in run.workers}
        if run.tally.examples != self.examples:
            raise ViolationError(f"examples counted wrong: {run.tally.examples}, and {self.examples} are done")
        if run.tally.duplicates != self.duplicates:
            found = f"{run.tally.duplicates} as done twice, and {self.duplicates} were"
            raise ViolationError(f"duplicates counted wrong: {found}")

    def check_held(self, run: RunState) -> None:
        """After the answers of an event have gone out: what is out is with those who were told of it.

        In step, rounds are planned ahead, and those who take part in one are told when they ask.
        """
        planned = sum(len(tasks) for tasks in run.rounds._to_fetch.values())
        if not run.final_state and run.clock.ranges_out != len(self.held) + planned:
            raise ViolationError(f"ranges out: {run.clock.ranges_out} for the core, truly {sorted(self.held)}")

    def check_snapshot(self, snapshot: RunSnapshot) -> None:
        """A checkpoint remembers exactly what is done: of passes that it does not name, everything."""
        named = {number: intervals for number, _, intervals in snapshot.passes}
        for number in range(max(named) + 1):
            whole = [(0, self.pass_examples)]
            found = sum(stop - start for start, stop in named.get(number, whole))
            if found != self._done[number]:
                raise ViolationError(f"a checkpoint of something else: pass {number} with {found} examples done")
            intervals = named.get(number, whole)
            missing = [one for one in self.done if one.pass_number == number and not _within(one, intervals)]
            if missing:
                raise ViolationError(f"a checkpoint of something else: pass {number} without {missing}")

    def check_end(self, run: RunState) -> None:
        """The run has ended, with all passes done; or with as much of each as was asked for."""
        if run.final_state != "ended":
            raise ViolationError(f"the run does not end well: {run.final_state or run.state}, {run.cause}")
        for number in range(self.plan.passes):
            self._check_ended(number)
        if self.plan.pass_fraction >= 1.0 and run.tally.examples != self.plan.passes * self.pass_examples:
            raise ViolationError(f"examples are missing in the end: {run.tally.examples} are counted")


def _within(one: Range, intervals: list[tuple[int, int]]) -> bool:
    return any(start <= one.start and one.stop <= stop for start, stop in intervals)
