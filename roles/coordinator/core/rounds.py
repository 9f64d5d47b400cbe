"""Which replica computes which part of which step, with replicas in step (pure).

Ranges are handed out in rounds: one range to each replica at once, in the order in which the replicas joined. The n-th
batches of a round's ranges together form a step; the parts of a step are numbered in the order of the ranges, and each
part carries the number of parts. Towards the end of a pass ranges are shorter and as even as possible, so that only the
last steps of a pass have fewer parts than there are replicas, and only its last batch has fewer examples.

The plan of a round never changes. A replica that joins takes part from the next round on; the ranges of one that leaves
or dies go to the others of the round, as the same parts of the same steps. No replica computes a step before all parts
of the previous step are applied, so the remaining replicas still have the weights that the lost replica's parts of the
current step need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from adamctl.roles.coordinator.core.ranges import Range, RangeAllocator
from adamctl.roles.coordinator.core.work import TrainingWork, WorkerKey
from adamctl.wire.messages import TrainTask

ROUNDS_AHEAD = 3
"""Ranges that a replica has at once: one being computed, one being read, one still to be read."""


class Rounds:
    """The rounds of one run.

    Attributes:
        settled: the last step known to be applied; so are all before it.
    """

    def __init__(self, work: TrainingWork, batch: int, range_batches: int) -> None:
        self._work, self._batch, self._range_batches = work, batch, range_batches
        self._next_step = 1
        self._tasks: dict[int, TrainTask] = {}  # with a replica, or planned and not fetched yet
        self._to_fetch: dict[WorkerKey, list[TrainTask]] = {}
        self._orphans: list[tuple[TrainTask, Range]] = []
        self.settled = 0

    def clear(self) -> None:
        """Drops all plans."""
        self._tasks.clear()
        self._to_fetch.clear()
        self._orphans.clear()

    def plan(self, members: Sequence[WorkerKey], task_id: Callable[[], int], now_s: float) -> bool:
        """Plans a round, or hands out what nobody has; False if there is nothing, or enough is planned."""
        if not members:
            return False
        if self._orphans:
            orphans, self._orphans = self._orphans, []
            for task, given in orphans:
                if self._work.book.is_done(given):  # its replica, given up, has reported it since
                    self.settle(task.step + task.batches[task.part] - 1)
                else:
                    self._assign(members[0], task, given, task_id(), now_s)
            return True
        if any(self._work.out(member) >= ROUNDS_AHEAD for member in members):
            return False
        ranges = take_round(self._work.book, len(members), self._batch, self._range_batches)
        if not ranges:
            return False
        counts = tuple(-(-given.examples // self._batch) for given in ranges)
        longest = max(given.examples for given in ranges)
        begin = min(self._work.book.progress(given)[0] for given in ranges)
        end = max(self._work.book.progress(given)[1] for given in ranges)
        for part, (member, given) in enumerate(zip(members, ranges, strict=False)):
            # Equal batches are equal shares of the run, so that all parts of a step have the same learning rate.
            stop = begin + (end - begin) * given.examples / longest
            task = TrainTask(0, given.pass_number, given.start, given.stop, begin, stop, self._next_step, part, counts)
            self._assign(member, task, given, task_id(), now_s)
        self._next_step += counts[0]
        return True

    def fetch(self, worker: WorkerKey) -> list[TrainTask]:
        """Returns what is planned for a worker and was not fetched yet."""
        return self._to_fetch.pop(worker, [])

    def settle(self, step: int) -> None:
        """Notes that all parts of a step, and of all steps before, are applied."""
        self.settled = max(self.settled, step)

    def report(self, task_id: int) -> None:
        """Notes that a range is done: the steps of its batches are applied."""
        task = self._tasks.pop(task_id, None)
        if task is not None:
            self.settle(task.step + task.batches[task.part] - 1)

    def lose(self, worker: WorkerKey, heirs: Sequence[WorkerKey], task_id: Callable[[], int], now_s: float) -> int:
        """Gives a worker's ranges to others, preferring those in the same steps; returns the number of examples."""
        self._to_fetch.pop(worker, None)
        taken = self._work.take_back(worker, now_s)
        tasks = sorted(
            ((self._tasks.pop(number), given) for number, given in taken), key=lambda pair: (pair[0].step, pair[0].part)
        )
        in_step = {task.step: self._members(task.step) for task, _ in tasks}
        for number, (task, given) in enumerate(tasks):
            suited = [heir for heir in heirs if heir in in_step[task.step]] or list(heirs)
            if suited:
                self._assign(suited[number % len(suited)], task, given, task_id(), now_s)
            else:
                self._orphans.append((task, given))
        return sum(given.examples for _, given in taken)

    def _members(self, step: int) -> set[WorkerKey]:
        assignments = self._work.assignments
        return {assignments[number].worker for number, task in self._tasks.items() if task.step == step}

    def _assign(self, worker: WorkerKey, task: TrainTask, given: Range, task_id: int, now_s: float) -> None:
        self._work.assign(worker, task_id, given, now_s)
        self._tasks[task_id] = named = msgspec.structs.replace(task, id=task_id)
        self._to_fetch.setdefault(worker, []).append(named)


def take_round(book: RangeAllocator, replicas: int, batch: int, range_batches: int) -> list[Range]:
    """Returns up to one range per replica, all of one pass, longest first; none while a pass has yet to end."""
    number = book.next_pass
    if number is None:
        return []
    batches = -(-book.ledgers[number].left_examples // batch)
    if batches >= replicas * range_batches:
        wanted = [range_batches] * replicas
    else:
        wanted = [batches // replicas + (place < batches % replicas) for place in range(replicas)]
    ranges: list[Range] = []
    for count in wanted:
        if count and book.next_pass == number:
            taken = book.take(count * batch)
            assert taken is not None
            ranges.append(taken)
    return sorted(ranges, key=lambda given: -given.examples)
