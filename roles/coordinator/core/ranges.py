"""Which examples of each pass are still to do, with a worker, or done.

A pass is cut into ranges of a few batches. Each goes to the next worker that asks; the ranges of a worker that died are
handed out first (Adam 3.2.5, DistBelief 4.2). Counts and positions are examples; ranges are [start, stop).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from adamctl.roles.coordinator.core.events import RunPlan


class Range(NamedTuple):
    """Examples [start, stop) of a pass, in the pass's own random order."""

    pass_number: int
    start: int
    stop: int

    @property
    def examples(self) -> int:
        return self.stop - self.start


RANGES_PER_REPLICA = 8
"""A pass has at least this many for each free replica, if it has enough batches: each fetches three ahead."""


def fitting_range(plan: RunPlan, examples: int) -> int:
    """Returns the examples of one range: `range_batches`, or fewer if free replicas share a short pass."""
    batches = plan.range_batches
    if plan.workers > 1 and not plan.in_step:
        batches = max(1, min(batches, examples // plan.batch // (RANGES_PER_REPLICA * plan.workers)))
    return batches * plan.batch


def ranges_most(plan: RunPlan, threads: int, range_examples: int) -> int:
    """Returns how many ranges a worker may have that it has not reported.

    They are those that it reads ahead and computes, and those that are computed and wait for servers: with fewer it
    would have nothing to compute until these have answered, however few they are.

    Args:
        threads: of the worker.
        range_examples: of a range.
    """
    threads = max(threads, 1)
    unanswered = -(-plan.unanswered_batches * threads * plan.batch // max(range_examples, 1))
    return 4 + 2 * threads + unanswered


class PassLedger:
    """One pass. Invariant: every range below `frontier` is waiting in `again`, out with a worker, or in `done`."""

    def __init__(self, number: int, examples: int, range_examples: int) -> None:
        self.number = number
        self.examples = examples
        self.range_examples = range_examples
        self.frontier = 0
        self.again: dict[tuple[int, int], None] = {}
        self.done: set[tuple[int, int]] = set()
        self.done_examples = 0
        self.ended = False

    @property
    def has_left(self) -> bool:
        """Whether something can be handed out."""
        return bool(self.again) or self.frontier < self.examples

    @property
    def left_examples(self) -> int:
        """How many can be handed out."""
        return sum(stop - start for start, stop in self.again) + self.examples - self.frontier

    @property
    def complete(self) -> bool:
        return self.done_examples == self.examples

    def take(self, range_examples: int | None = None) -> Range | None:
        """Hands out the next range: one that came back from a dead worker if there is any, else `range_examples`."""
        if self.again:
            start, stop = next(iter(self.again))
            del self.again[start, stop]
        elif self.frontier < self.examples:
            length = self.range_examples if range_examples is None else range_examples
            start, stop = self.frontier, min(self.frontier + length, self.examples)
            self.frontier = stop
        else:
            return None
        return Range(self.number, start, stop)

    def give_back(self, start: int, stop: int) -> None:
        """Takes back the range of a dead worker; does nothing if another worker has done it meanwhile."""
        if (start, stop) not in self.done:
            self.again[start, stop] = None

    def finish(self, start: int, stop: int) -> bool:
        """Notes a range as done; returns False if it was done before, which is no progress."""
        if (start, stop) in self.done:
            return False
        self.again.pop((start, stop), None)
        self.done.add((start, stop))
        self.done_examples += stop - start
        return True

    def done_intervals(self) -> list[tuple[int, int]]:
        """Returns what is done as sorted, merged intervals."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(self.done):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        return merged

    def restore(self, done: Iterable[tuple[int, int]], frontier: int) -> None:
        """Continues from `done_intervals` and `frontier`; what was handed out and not done is handed out first."""
        position = 0
        for start, stop in [*sorted(done), (frontier, frontier)]:
            while position < start:
                piece_stop = min(position + self.range_examples, start)
                self.again[position, piece_stop] = None
                position = piece_stop
            if stop > start:
                self.finish(start, stop)
                position = stop
        self.frontier = frontier


class RangeAllocator:
    """All passes of a run. A pass begins when the previous one ends; ended passes may have outstanding ranges."""

    def __init__(self, passes: int, examples: int, range_examples: int, pass_fraction: float) -> None:
        self.passes = passes
        self.examples = examples
        self.range_examples = range_examples
        self.pass_fraction = pass_fraction
        self.current = 0
        self.ledgers: dict[int, PassLedger] = {0: PassLedger(0, examples, range_examples)}

    @property
    def examples_total(self) -> int:
        return self.passes * self.examples

    @property
    def handed_out(self) -> int:
        """Examples of the run handed out at least once; schedules, evaluations and checkpoints depend on this."""
        return self.current * self.examples + self.ledgers[self.current].frontier

    @property
    def done(self) -> int:
        """Examples of the run that are done, pass by pass; a pass that has ended counts as a whole."""
        if self.finished:
            return self.examples_total
        return self.current * self.examples + self.ledgers[self.current].done_examples

    @property
    def finished(self) -> bool:
        """Whether the last pass has ended."""
        return self.current == self.passes - 1 and self.ledgers[self.current].ended

    @property
    def next_pass(self) -> int | None:
        """The oldest pass with something to hand out; None if there is nothing until a pass ends."""
        if self.finished:
            return None  # what a worker lost after the last pass ended stays undone: the end waits for nobody
        return next((number for number in sorted(self.ledgers) if self.ledgers[number].has_left), None)

    def take(self, range_examples: int | None = None) -> Range | None:
        """Hands out the next range of `next_pass`, of the usual or the given length; None if there is none."""
        number = self.next_pass
        if number is None:
            return None
        taken = self.ledgers[number].take(range_examples)
        self._end_passes()
        return taken

    def give_back(self, given: Range) -> None:
        """Takes back the range of a dead worker; it is handed out again before anything new."""
        ledger = self.ledgers.get(given.pass_number)
        if ledger is not None:
            ledger.give_back(given.start, given.stop)

    def finish(self, done: Range) -> bool:
        """Notes a range as done and ends its pass if that is due; returns False if the range was done before."""
        ledger = self.ledgers.get(done.pass_number)
        if ledger is None or not ledger.finish(done.start, done.stop):
            return False
        self._end_passes()
        return True

    def is_done(self, given: Range) -> bool:
        """Whether a range that was handed out is done."""
        ledger = self.ledgers.get(given.pass_number)  # of a pass that is all done there is none
        return ledger is None or (given.start, given.stop) in ledger.done

    def progress(self, given: Range) -> tuple[float, float]:
        """Returns the shares of the whole run at a range's start and stop."""
        base = given.pass_number * self.examples
        return (base + given.start) / self.examples_total, (base + given.stop) / self.examples_total

    def _end_passes(self) -> None:
        """Ends passes that have nothing left to hand out and `pass_fraction` of their examples done (Adam 3.2.5)."""
        ledger = self.ledgers[self.current]
        enough = ledger.done_examples >= self.pass_fraction * self.examples
        if not ledger.has_left and enough:
            ledger.ended = True
            if self.current < self.passes - 1:
                self.current += 1
                self.ledgers[self.current] = PassLedger(self.current, self.examples, self.range_examples)
        for number in [n for n, old in self.ledgers.items() if n < self.current and old.complete]:
            del self.ledgers[number]

    def state(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """Returns (pass, frontier, done intervals) of every pass that is not all done, for a checkpoint."""
        return [(n, book.frontier, book.done_intervals()) for n, book in sorted(self.ledgers.items())]

    def restore(self, state: Iterable[tuple[int, int, Iterable[tuple[int, int]]]]) -> None:
        """Continues from `state`; the length of ranges and the number of passes may have changed."""
        self.ledgers = {}
        for number, frontier, done in state:
            if number >= self.passes:  # the run was made shorter: its last pass is over
                number, frontier, done = self.passes - 1, self.examples, [(0, self.examples)]
            self.current = number
            self.ledgers[number] = PassLedger(number, self.examples, self.range_examples)
            self.ledgers[number].restore(done, frontier)
        for number, ledger in self.ledgers.items():
            ledger.ended = number < self.current
        self._end_passes()
