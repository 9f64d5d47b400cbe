"""Planted faults of the coordinator: each a mistake that is easily made, as a change of one function of its core."""

from __future__ import annotations

from dataclasses import replace

from adamctl.roles.coordinator.core.events import Event, WorkerLost
from adamctl.roles.coordinator.core.instructions import Instruction
from adamctl.roles.coordinator.core.ranges import PassLedger, Range, RangeAllocator
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.work import Assignment, TrainingWork, WorkerKey
from adamctl.wire.messages import TaskReport
from tests.sim.servers.cluster import ServerFault

_end_passes, _take, _report = RangeAllocator._end_passes, PassLedger.take, TrainingWork.report
_lose, _step = RunCore._lose, RunCore.step


def _gone_for_good(self: PassLedger, start: int, stop: int) -> None:
    """What a lost worker had is not handed out again."""


def _stays_to_be_given(self: PassLedger, range_examples: int | None = None) -> Range | None:
    """What came back is handed out to whoever asks, until it is done."""
    came_back = next(iter(self.again), None)
    taken = _take(self, range_examples)
    if came_back is not None:
        self.again[came_back] = None
    return taken


def _done_again(self: PassLedger, start: int, stop: int) -> bool:
    """What another has done counts, too."""
    self.again.pop((start, stop), None)
    self.done.add((start, stop))
    self.done_examples += stop - start
    return True


def _taken_again(self: TrainingWork, worker: WorkerKey, report: TaskReport, now_s: float) -> bool:
    """A report is not remembered: the same one counts when it comes again."""
    assignment = self.assignments.get(report.id)
    taken = _report(self, worker, report, now_s)
    if taken and assignment is not None:
        self.assignments[report.id] = Assignment(worker, assignment.given, lost=True)
    return taken


def _ends_when_handed_out(self: RangeAllocator) -> None:
    fraction, self.pass_fraction = self.pass_fraction, 0.0
    _end_passes(self)
    self.pass_fraction = fraction


def _keeps_what_it_had(self: RunCore, key: WorkerKey, cause: str) -> None:
    """A worker that joins again is taken for one that goes on."""
    if cause != "it has joined again":
        _lose(self, key, cause)


def _lost_by_name(self: RunCore, event: Event, now_s: float) -> list[Instruction]:
    """Before the run is ready, who is lost is looked for by name."""
    if isinstance(event, WorkerLost):
        early = [entry.incarnation for entry, _ in self.run.joining if entry.node == event.node]
        event = replace(event, incarnation=early[-1]) if early else event
    return _step(self, event, now_s)


MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "lost-range-not-given-again",
            "what a lost worker had is not handed out again",
            [(PassLedger, "give_back", _gone_for_good)],
        ),
        ServerFault(
            "given-back-and-kept",
            "a range that came back is handed out, and stays among those to be handed out",
            [(PassLedger, "take", _stays_to_be_given)],
        ),
        ServerFault(
            "late-report-counts",
            "a report of a range that another has done meanwhile counts as progress",
            [(PassLedger, "finish", _done_again)],
        ),
        ServerFault(
            "same-report-twice",
            "a report that comes twice counts twice",
            [(TrainingWork, "report", _taken_again)],
        ),
        ServerFault(
            "pass-ends-when-handed-out",
            "a pass ends before enough of its ranges are reported",
            [(RangeAllocator, "_end_passes", _ends_when_handed_out)],
        ),
        ServerFault(
            "joined-again-not-noticed",
            "what a worker had before it joined again stays with it",
            [(RunCore, "_lose", _keeps_what_it_had)],
        ),
        ServerFault(
            "lost-by-name",
            "a worker that waits for the run to be ready is lost with the process before it",
            [(RunCore, "step", _lost_by_name)],
        ),
    )
}
