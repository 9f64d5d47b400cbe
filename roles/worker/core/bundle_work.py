"""A worker's part in the evaluations of a batch algorithm: what to read, pull, compute, push and report (pure).

The parameters of an evaluation are pulled once, before its first portion and only while no thread computes (DistBelief
4.2, Sandblaster). A thread does a whole bundle, portion by portion in order, so a bundle's gradient is the same to the
last bit whatever else the worker does. Every bundle that was given is reported exactly once.

    WAITING -> COMPUTING -> PUSHING -> reported; given up before it is pushed, it is reported as ABANDONED
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from adamctl.roles.worker.core.batches import parts_of
from adamctl.roles.worker.core.example_memory import ExampleMemory, Span
from adamctl.wire.constants import GRADIENT_REFUSED, ErrorCode
from adamctl.wire.messages import BundleName, BundleReport, BundleTask, NextBundlesReply

PASS = 0
"""Examples are those of this pass, evaluation after evaluation: a part of them as the batch is a random part."""
READS_MAX = 4
HELD_PER_THREAD = 2
"""Bundles: one that is computed, and one so that the thread has the next at once."""
LOST = frozenset({ErrorCode.NO_VECTOR, ErrorCode.STALE_EVALUATION})
"""Answers of a bucket that has not, or no longer, what a bundle needs."""

Stage: TypeAlias = tuple[int, int]
"""Evaluation and attempt."""


class State(Enum):
    WAITING = auto()
    COMPUTING = auto()
    PUSHING = auto()
    REPORTED = auto()


class Portion(NamedTuple):
    """Examples [start, stop), counted from the bundle's first. `share`: of a whole portion, 1 for all but the last."""

    start: int
    stop: int
    share: float


class Pull(NamedTuple):
    """Pull the vector `at` of an evaluation."""

    evaluation: int
    at: str


@dataclass(eq=False)
class Held:
    """A bundle that this worker has.

    Attributes:
        given_up: nobody needs it any more. The thread that computes it looks at this between portions.
    """

    task: BundleTask
    state: State = State.WAITING
    given_up: bool = False
    loss_sum: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0

    @property
    def stage(self) -> Stage:
        return stage_of(self.task.name)

    @property
    def span(self) -> Span:
        return Span(self.task.start, self.task.stop)


def stage_of(name: BundleName) -> Stage:
    return name.evaluation, name.attempt


def portions_of(task: BundleTask, batch: int) -> list[Portion]:
    """Returns the portions of a bundle in order; only the last may have fewer than `batch` examples."""
    pieces = parts_of(task.stop - task.start, batch)
    return [Portion(start, stop, (stop - start) / batch) for start, stop in pieces]


def weight_of(task: BundleTask, batch: int) -> float:
    """Returns the weight that a bundle is pushed with: what is added up are means over portions, each by its share.

    Their sum is that of all examples, divided by `batch`; the task's weight is that of the mean over the bundle.
    """
    return task.weight * batch / (task.stop - task.start)


@dataclass
class BundleWork:
    """All that one worker has to do. Methods are events, or say what is to be done next.

    Attributes:
        threads: that compute.
        memory: of decoded examples.
        loaded: the evaluation whose parameters are there; 0: none.
        draining: nothing more is to be taken.
        leaving: this worker is about to end.
    """

    threads: int
    memory: ExampleMemory
    loaded: int = 0
    draining: bool = False
    leaving: bool = False
    _stage: Stage = (0, 0)
    _at: str = ""
    _pulling: int = 0
    _held: list[Held] = field(default_factory=list)
    _reads: list[Span] = field(default_factory=list)
    _reports: list[BundleReport] = field(default_factory=list)
    _lost: set[int] = field(default_factory=set)

    # --- what the coordinator says ----------------------------------------------------------------------------------

    def take(self, reply: NextBundlesReply) -> None:
        """Takes what the coordinator has answered."""
        self.draining = reply.drain or self.leaving
        for task in reply.tasks:
            if stage_of(task.name) > self._stage:
                self._begin(task)
        for task in reply.tasks:
            self._accept(task)
        cancelled = set(reply.cancelled)
        self._give_up([held for held in self._held if held.task.name in cancelled])
        self._reads += self.memory.expect((Span(*ahead) for ahead in reply.ahead), self._stage[0])

    def _begin(self, task: BundleTask) -> None:
        """An evaluation, or another attempt at it, has begun: what is left of earlier ones counts no more."""
        self._stage, self._at = stage_of(task.name), task.at
        self._lost.clear()
        self._give_up(self._held)

    def _accept(self, task: BundleTask) -> None:
        if self.leaving or stage_of(task.name) < self._stage:
            self._report(Held(task, given_up=True), ErrorCode.ABANDONED)
            return
        if any(held.task.name == task.name and not held.given_up for held in self._held):
            return
        held = Held(task)
        self._held.append(held)
        if self.memory.need(held.span, task.name.evaluation):
            self._reads.append(held.span)

    def _give_up(self, bundles: Collection[Held]) -> None:
        """Those that a thread has come back from it; a push that has begun goes on."""
        for held in list(bundles):
            held.given_up = True
            if held.state is State.WAITING:
                self._end(held, ErrorCode.ABANDONED)

    def abandon(self) -> None:
        """This worker leaves: whatever is not being pushed is given up."""
        self.draining = self.leaving = True
        self._give_up(self._held)

    # --- what is to be done -----------------------------------------------------------------------------------------

    def take_reads(self) -> list[Span]:
        """Returns ranges to read; `arrived` must follow for each."""
        taken, self._reads = self._reads, []
        return taken

    def to_pull(self) -> Pull | None:
        """Returns what to pull now, if anything; `pulled` or `pull_refused` must follow."""
        evaluation = self._stage[0]
        states = {held.state for held in self._held}
        if self._pulling or self.loaded == evaluation or State.COMPUTING in states or State.WAITING not in states:
            return None
        self.loaded, self._pulling = 0, evaluation
        return Pull(evaluation, self._at)

    def to_compute(self) -> list[Held]:
        """Returns bundles for the threads, in order; `computed` must follow for each."""
        chosen: list[Held] = []
        if self.loaded != self._stage[0]:
            return chosen
        room = HELD_PER_THREAD * self.threads - sum(held.state is State.COMPUTING for held in self._held)
        for held in self._held:
            if len(chosen) >= room:
                break
            if held.state is State.WAITING and self.memory.has(held.span):
                held.state = State.COMPUTING
                chosen.append(held)
        return chosen

    @property
    def wanted(self) -> int:
        """How many bundles it can take, those included that were asked for already."""
        if self.draining:
            return 0
        return max(HELD_PER_THREAD * self.threads - sum(held.state is not State.PUSHING for held in self._held), 0)

    # --- what has happened ------------------------------------------------------------------------------------------

    def arrived(self, span: Span) -> None:
        """Examples have been read."""
        self.memory.arrived(span)

    def pulled(self) -> None:
        """The pull has ended well."""
        self.loaded, self._pulling = self._pulling, 0

    def pull_refused(self, buckets: Collection[int]) -> None:
        """These buckets do not have the evaluation that was to be pulled."""
        evaluation, self._pulling = self._pulling, 0
        if evaluation == self._stage[0] and any(held.stage == self._stage for held in self._held):
            self._lose(self._stage, buckets)

    def computed(self, held: Held, loss_sum: float, compute_s: float, wait_s: float) -> bool:
        """A thread has done with a bundle; says whether it is to be pushed, after which `pushed` must follow.

        Args:
            loss_sum: over its examples.
        """
        assert held.state is State.COMPUTING, f"{held.task.name} is {held.state}"
        held.loss_sum, held.compute_s, held.wait_s = loss_sum, compute_s, wait_s
        if held.given_up:
            self._end(held, ErrorCode.ABANDONED)
            return False
        self.memory.release(held.span)
        held.state = State.PUSHING
        return True

    def pushed(self, held: Held, refused: Mapping[int, int]) -> None:
        """All servers have answered a bundle.

        Args:
            refused: the code of each bucket that has not counted it.
        """
        assert held.state is State.PUSHING, f"{held.task.name} is {held.state}"
        codes = set(refused.values())
        lost = [bucket for bucket, code in refused.items() if code in LOST]
        code = ErrorCode.ABANDONED if lost else next((one for one in GRADIENT_REFUSED if one in codes), ErrorCode.OK)
        self._end(held, code)
        if lost:
            self._lose(held.stage, lost)

    def _lose(self, stage: Stage, buckets: Collection[int]) -> None:
        """What else it has of this attempt is in vain: the coordinator will have all bundles done again."""
        if stage == self._stage:
            self._lost.update(buckets)
            self._give_up([held for held in self._held if held.stage == stage])

    # --- reports ----------------------------------------------------------------------------------------------------

    def take_reports(self) -> tuple[tuple[BundleReport, ...], tuple[int, ...]]:
        """Returns the reports, and the buckets that have lost what the ABANDONED ones among the newest needed."""
        reports, self._reports = tuple(self._reports), []
        lost, self._lost = tuple(sorted(self._lost)), set()
        return reports, lost

    @property
    def has_news(self) -> bool:
        """Whether there is something to report."""
        return bool(self._reports or self._lost)

    @property
    def busy(self) -> int:
        """Bundles that are not reported."""
        return len(self._held)

    def _end(self, held: Held, code: ErrorCode) -> None:
        self._held.remove(held)
        if held.state is not State.PUSHING:
            self.memory.release(held.span)
        self._report(held, code)

    def _report(self, held: Held, code: ErrorCode) -> None:
        assert held.state is not State.REPORTED, f"{held.task.name} was reported"
        held.state = State.REPORTED
        counts = code == ErrorCode.OK
        examples = held.task.stop - held.task.start
        self._reports.append(
            BundleReport(
                held.task.name, code, held.loss_sum if counts else 0.0, examples if counts else 0,
                held.compute_s, held.wait_s,
            )
        )  # fmt: skip
