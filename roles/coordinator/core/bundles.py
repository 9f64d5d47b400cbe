"""Who does which part of an evaluation of a whole batch (DistBelief 4.2), and who does it again where one is slow.

A *portion* is one thread's step. A *bundle* is a fixed run of portions: what is handed out, pushed, counted and backed
up. Bundles are cut by data and model alone, so what an evaluation finds does not depend on who does them. Each counts
once; whatever else is said of one that is done is ignored.

Whoever did a bundle last does it again, in order, since it has its examples at hand; who has none left takes the last
one of whoever has most left. With none left at all, a free thread copies the bundle that would end last, if it would
finish it earlier: a slow machine or one that hangs delays a batch by no more than one bundle (Sandblaster's backups).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, fsum
from typing import NamedTuple, TypeAlias

WorkerKey: TypeAlias = tuple[str, int]
"""Node and incarnation of a worker."""
BUNDLES_LEAST, BUNDLES_MOST = 32, 65_536
"""The least for a batch that is worth it."""
LAST = 8
"""The last eighth of the examples is cut into smaller bundles, so that workers end at about the same time."""
SMALLER = 4
"""By how much smaller."""
COPIES_MOST = 2
"""Workers that do one bundle at the same time."""
COMPUTED_PER_PUSHED = 3_000
"""Multiply-adds of a bundle for each parameter that it pushes, about: to push and add it takes 5% of its time."""
COMPUTED_ENOUGH = 1 << 29
"""Multiply-adds of a bundle, about: to hand it out, push and report it takes 5% of the time of so much work."""
COMPUTED_LEAST = 1 << 22
"""Multiply-adds of a bundle, about: less work than this costs less than to hand it out, push and report it."""
BUNDLES_FEWEST = 8
"""However little work a batch is, so that several threads have some of it."""
REMEMBERED = 0.5
"""Share of a new duration in the mean of a worker's."""


class Bundle(NamedTuple):
    """Examples [start, stop) of the batch, a whole number of portions but for the batch's last one."""

    number: int
    start: int
    stop: int

    @property
    def examples(self) -> int:
        return self.stop - self.start


def cut_bundles(examples: int, portion: int, connections: int, parameters: int) -> tuple[Bundle, ...]:
    """Returns the bundles of a batch.

    Args:
        portion: examples of one.
        connections: multiply-adds of one example's way forward; training takes three times as many.
        parameters: of the model.
    """
    portions = ceil(examples / portion)
    computed = 3 * connections * portion
    wanted = ceil(max(COMPUTED_PER_PUSHED * parameters, COMPUTED_ENOUGH) / computed)
    least = max(min(ceil(COMPUTED_LEAST / computed), portions // BUNDLES_FEWEST), 1)
    per_bundle = max(min(wanted, portions // BUNDLES_LEAST), ceil(portions / BUNDLES_MOST), least)
    smaller = max(per_bundle // SMALLER, ceil(portions / LAST / BUNDLES_MOST), least)
    bundles: list[Bundle] = []
    begun = 0
    while begun < portions:
        size = per_bundle if begun < portions - portions // LAST else smaller
        ended = min(begun + size, portions)
        bundles.append(Bundle(len(bundles), begun * portion, min(ended * portion, examples)))
        begun = ended
    return tuple(bundles)


class Given(NamedTuple):
    """A bundle that was handed out. A repetition after a lost shard has the next `attempt`."""

    evaluation: int
    attempt: int
    bundle: Bundle


class Counted(NamedTuple):
    """What follows from a bundle that is said to be done.

    Attributes:
        counts: whether it is done for the first time.
        losers: workers that still do it and may stop.
        by_backup: a copy was faster than who had it first.
    """

    counts: bool
    losers: tuple[WorkerKey, ...] = ()
    by_backup: bool = False


@dataclass
class _Out:
    """A bundle with a worker, and since when."""

    worker: WorkerKey
    since_s: float


@dataclass
class Evaluation:
    """One evaluation on its way.

    Attributes:
        number: of it; numbers never repeat.
        attempt: how often shards have lost what they had of it.
        left: bundles that nobody has, by who did them last; None: anybody's. In order.
        out: bundles with workers, the first one first.
        done: in this attempt.
        losses: summed over the examples of each bundle that was done in any attempt: they are the same in all.
        backups, backups_won: copies that were handed out, and those that were done first.
    """

    number: int
    attempt: int = 0
    left: dict[WorkerKey | None, list[int]] = field(default_factory=dict)
    out: dict[int, list[_Out]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)
    backups: int = 0
    backups_won: int = 0


class BundleBook:
    """All bundles of a batch, through evaluation after evaluation. One is on its way at a time.

    Attributes:
        backups, backups_won: of all evaluations.
    """

    def __init__(self, bundles: Sequence[Bundle], backups: int = 0, backups_won: int = 0) -> None:
        """`backups`, `backups_won`: of evaluations before."""
        self.bundles = tuple(bundles)
        self.backups, self.backups_won = backups, backups_won
        self._last_by: dict[int, WorkerKey] = {}
        self._speeds: dict[WorkerKey, float] = {}
        self._now: Evaluation | None = None

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation on its way."""
        return self._now

    @property
    def is_complete(self) -> bool:
        return self._now is not None and len(self._now.done) == len(self.bundles)

    @property
    def loss_sum(self) -> float:
        """The exact sum of the losses of all bundles, rounded once, whatever order they came in."""
        return fsum(self._now.losses.values()) if self._now is not None else 0.0

    def begin(self, number: int, workers: Collection[WorkerKey]) -> None:
        """Begins an evaluation, and forgets the one before.

        Args:
            number: greater than all before.
            workers: that there are.
        """
        assert self._now is None or number > self._now.number, "evaluation numbers never repeat"
        self._now = Evaluation(number, left=self._owned(workers))

    def again(self, workers: Collection[WorkerKey]) -> None:
        """Has all bundles done again: a shard has lost its sum. What is reported of earlier attempts does not count."""
        assert self._now is not None, "no evaluation is on its way"
        self._now = replace(self._now, attempt=self._now.attempt + 1, left=self._owned(workers), out={}, done=set())

    def _owned(self, workers: Collection[WorkerKey]) -> dict[WorkerKey | None, list[int]]:
        left: dict[WorkerKey | None, list[int]] = {}
        for bundle in self.bundles:
            owner = self._last_by.get(bundle.number)
            left.setdefault(owner if owner in workers else None, []).append(bundle.number)
        return left

    def first_of(self, worker: WorkerKey, count: int) -> list[Bundle]:
        """Returns the bundles that a worker will be given first in the next evaluation, to read them ahead."""
        own = [number for number, owner in self._last_by.items() if owner == worker]
        return [self.bundles[number] for number in sorted(own)[:count]]

    def take(self, worker: WorkerKey, now_s: float) -> Given | None:
        """Hands out a bundle to a thread that is free; None if there is nothing for it to do."""
        evaluation = self._now
        if evaluation is None:
            return None
        number = self._next(evaluation, worker)
        if number is None:
            number = self._to_back_up(evaluation, worker, now_s)
            if number is None:
                return None
            evaluation.backups += 1
            self.backups += 1
        evaluation.out.setdefault(number, []).append(_Out(worker, now_s))
        return Given(evaluation.number, evaluation.attempt, self.bundles[number])

    def done(self, worker: WorkerKey, given: Given, loss_sum: float, now_s: float) -> Counted:
        """Notes that a worker has pushed a bundle and every shard has it.

        Args:
            loss_sum: over its examples.
        """
        now, number = self._now, given.bundle.number
        if now is None or given[:2] != (now.number, now.attempt) or self.bundles[number] != given.bundle:
            return Counted(False)
        out = now.out.get(number, [])
        own = next((one for one in out if one.worker == worker), None)
        if number in now.done:
            return Counted(False)
        if own is not None:
            self._note_speed(worker, (now_s - own.since_s) / given.bundle.examples)
        now.done.add(number)
        now.losses.setdefault(number, loss_sum)
        now.out.pop(number, None)
        for numbers in now.left.values():  # it came back from a worker that was thought dead
            if number in numbers:
                numbers.remove(number)
        self._last_by[number] = worker
        by_backup = own is not None and own is not out[0]
        now.backups_won += by_backup
        self.backups_won += by_backup
        return Counted(True, tuple(one.worker for one in out if one.worker != worker), by_backup)

    def give_back(self, worker: WorkerKey, given: Given) -> None:
        """A worker has given up a bundle: anybody may do it, unless another one still does."""
        now, number = self._now, given.bundle.number
        if now is None or given[:2] != (now.number, now.attempt) or number not in now.out:
            return
        now.out[number] = [one for one in now.out[number] if one.worker != worker]
        if not now.out[number]:
            del now.out[number]
            now.left.setdefault(None, []).insert(0, number)

    def lose(self, worker: WorkerKey) -> None:
        """A worker is lost: what it had, and would have had, is anybody's."""
        self._speeds.pop(worker, None)
        for number in [number for number, owner in self._last_by.items() if owner == worker]:
            del self._last_by[number]
        now = self._now
        if now is None:
            return
        anybody = now.left.setdefault(None, [])
        for number, out in list(now.out.items()):
            now.out[number] = [one for one in out if one.worker != worker]
            if not now.out[number]:
                del now.out[number]
                anybody.append(number)
        anybody.extend(now.left.pop(worker, []))
        anybody.sort()

    def outstanding(self) -> Mapping[int, tuple[WorkerKey, ...]]:
        """Returns which bundles are with which workers."""
        now = self._now
        return {} if now is None else {number: tuple(one.worker for one in out) for number, out in now.out.items()}

    def _next(self, evaluation: Evaluation, worker: WorkerKey) -> int | None:
        """Returns a bundle that nobody does: the worker's own, or anybody's, or the last one of who has most left."""
        for owner in (worker, None):
            if evaluation.left.get(owner):
                return evaluation.left[owner].pop(0)
        most = max(evaluation.left.values(), key=len, default=[])
        return most.pop() if most else None

    def _to_back_up(self, evaluation: Evaluation, worker: WorkerKey, now_s: float) -> int | None:
        own = self._speed(worker)
        best: tuple[float, int] | None = None
        for number, out in evaluation.out.items():
            if len(out) >= COPIES_MOST or any(one.worker == worker for one in out):
                continue
            examples = self.bundles[number].examples
            ends_s = min(self._ends_s(one, examples, now_s) for one in out)
            if now_s + own * examples < ends_s and (best is None or (ends_s, -number) > best):
                best = ends_s, -number
        return None if best is None else -best[1]

    def _ends_s(self, out: _Out, examples: int, now_s: float) -> float:
        """Returns when a bundle is expected to end: one that is late is expected to take as long as it has, again."""
        expected_s = out.since_s + self._speed(out.worker) * examples
        return expected_s if expected_s > now_s else now_s + (now_s - out.since_s)

    def _speed(self, worker: WorkerKey) -> float:
        """Returns seconds per example: the mean of others' for one of which nothing is known."""
        if worker in self._speeds:
            return self._speeds[worker]
        return fsum(self._speeds.values()) / len(self._speeds) if self._speeds else 0.0

    def _note_speed(self, worker: WorkerKey, seconds: float) -> None:
        before = self._speeds.get(worker, seconds)
        self._speeds[worker] = before + REMEMBERED * (seconds - before)
