"""Where replicas go in step, every example is part of one step, and every part of a step is somebody's."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Answer, AnswerStep, Finished, WriteCheckpoint
from adamctl.roles.coordinator.core.ranges import RangeAllocator
from adamctl.roles.coordinator.core.rounds import ROUNDS_AHEAD, take_round
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.wire.messages import EvaluateTask, NextTaskRequest, RunStepRequest, TaskReport, TrainTask
from tests.roles.coordinator.simulation import plan


def lengths(examples: int, replicas: int, batch: int = 4, range_batches: int = 3) -> list[list[int]]:
    """Returns the batches of all ranges of one pass, round by round."""
    book = RangeAllocator(1, examples, batch * range_batches, 1.0)
    found = []
    while ranges := take_round(book, replicas, batch, range_batches):
        found.append([-(-given.examples // batch) for given in ranges])
    return found


@pytest.mark.parametrize(
    ("examples", "replicas", "expected"),
    [
        (24, 2, [[3, 3]]),
        (48, 2, [[3, 3], [3, 3]]),
        (26, 2, [[3, 3], [1]]),
        (33, 2, [[3, 3], [2, 1]]),
        (34, 3, [[3, 3, 3]]),
        (16, 3, [[2, 1, 1]]),
        (2, 3, [[1]]),
        (12, 1, [[3]]),
    ],
)
def test_the_end_of_a_pass_is_shared_out_as_evenly_as_can_be(
    examples: int, replicas: int, expected: list[list[int]]
) -> None:
    assert lengths(examples, replicas) == expected


def test_ranges_left_over_from_before_come_first_and_longest_first() -> None:
    book = RangeAllocator(1, 40, 8, 1.0)
    book.restore([(0, 30, [(2, 10), (14, 22)])])
    assert [given[1:] for given in take_round(book, 2, 4, 2)] == [(10, 14), (0, 2)]
    assert [given[1:] for given in take_round(book, 2, 4, 2)] == [(22, 30), (30, 38)]
    assert [given[1:] for given in take_round(book, 2, 4, 2)] == [(38, 40)]
    assert take_round(book, 2, 4, 2) == []


class Replicas:
    """Workers that keep the rules of a step, around a core under one seed.

    A step is taken when each of its parts is with somebody who has all that comes before; deaths, leaving and joining
    happen between.
    """

    def __init__(self, seed: int, workers: int, examples: int = 150, **changes: object) -> None:
        self.random = Random(seed)
        changes = {"batch": 4, "range_batches": 3, "passes": 3, "pass_fraction": 1.0, "in_step": True} | changes
        self.core = RunCore(plan(workers=workers, **changes), 0.0)
        self.now_s, self.token, self.number = 0.0, 0, 0
        self.workers: dict[str, int] = {}
        self.tasks: dict[str, list[TrainTask]] = {}
        self.evaluations: dict[str, list[EvaluateTask]] = {}
        self.parked: dict[str, int] = {}
        self.asked: dict[int, str] = {}
        self.seen: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.counts: dict[int, int] = {}
        self.done: dict[tuple[str, int], int] = {}
        self.settled = 0
        self.examples: Counter[tuple[int, int]] = Counter()
        self.finished = ""
        self.members: dict[int, set[str]] = {}
        self.step(events.Ready(examples, 20))

    def step(self, event: events.Event) -> None:
        for instruction in self.core.step(event, self.now_s):
            match instruction:
                case Answer(token, reply):
                    node = self.asked.pop(token)
                    if self.parked.get(node) == token:
                        del self.parked[node]
                    self._take(node, reply.train)
                    self.evaluations[node].extend(reply.evaluate)
                case WriteCheckpoint(number, _):
                    self.step(events.CheckpointWritten(number))
                case Finished(state, _):
                    self.finished = state

    def _take(self, node: str, tasks: tuple[TrainTask, ...]) -> None:
        for task in tasks:
            assert sorted(task.batches, reverse=True) == list(task.batches)
            self.tasks[node].append(task)
            for number in range(task.batches[task.part]):
                place = (task.step + number, task.part)
                start = task.start + 4 * number
                what = (task.pass_number, start, min(start + 4, task.stop))
                assert self.seen.setdefault(place, what) == what, "a part is always the same batch"
                parts = sum(count > number for count in task.batches)
                assert self.counts.setdefault(place[0], parts) == parts
                self.members.setdefault(place[0], set()).add(node)

    def join(self) -> None:
        self.number += 1
        node = f"w{self.number}"
        self.workers[node] = self.number
        self.tasks[node], self.evaluations[node] = [], []
        self.token += 1
        self.step(events.WorkerJoins(self.token, node, self.number, 1))
        self.ask(node)

    def ask(self, node: str, reports: tuple[TaskReport, ...] = (), leaving: bool = False) -> None:
        self.token += 1
        self.parked[node] = self.token
        self.asked[self.token] = node
        request = NextTaskRequest(node, self.workers[node], reports, 3, 30.0, leaving=leaving)
        self.step(events.TasksWanted(self.token, request))

    def lose(self, node: str, leaving: bool) -> None:
        if leaving:
            self.ask(node, leaving=True)
        else:
            self.step(events.WorkerLost(node, self.workers[node], "gone"))
        self.parked.pop(node, None)
        del self.workers[node], self.tasks[node], self.evaluations[node]

    def advance(self) -> bool:
        """Takes the next step if all its parts are there, else has somebody ask again; False if nothing happens."""
        step = self.settled + 1
        held = {task.part for tasks in self.tasks.values() for task in tasks if covers(task, step)}
        left_to_nobody = bool(self.core.run.rounds._orphans)  # until an evaluation is over that was waiting for them
        if step in self.counts and not (left_to_nobody and not held):
            if held != set(range(self.counts[step])):
                self._ask_all()
                held = {task.part for tasks in self.tasks.values() for task in tasks if covers(task, step)}
                assert held == set(range(self.counts[step])), f"step {step}: parts {held} of {self.counts[step]}"
            self.settled = step
            for part in range(self.counts[step]):
                pass_number, start, stop = self.seen[step, part]
                self.examples.update((pass_number, example) for example in range(start, stop))
            for node in list(self.workers):
                over = [t for t in self.tasks[node] if t.step + t.batches[t.part] - 1 <= step]
                self.tasks[node] = [t for t in self.tasks[node] if t not in over]
                if over:
                    reports = tuple(TaskReport(t.id, 1, 1.0, 0, t.batches[t.part]) for t in over)
                    self.ask(node, reports)
            return True
        for node, tasks in self.evaluations.items():
            if tasks:
                reports = tuple(TaskReport(task.id, task.stop - task.start, 1.0, 0) for task in tasks)
                tasks.clear()
                self.ask(node, reports)
                return True
        before = len(self.seen)
        self._ask_all()
        return len(self.seen) > before or any(self.evaluations.values())

    def _ask_all(self) -> None:
        for node in list(self.workers):
            if node not in self.parked:
                self.ask(node)

    def run(self) -> None:
        for _ in range(5000):
            if self.finished:
                return
            assert self.advance() or self.finished, f"nothing happens in state {self.core.run.state}"
        raise AssertionError("no end")


def covers(task: TrainTask, step: int) -> bool:
    return task.step <= step < task.step + task.batches[task.part]


def check(replicas: Replicas, passes: int = 3, examples: int = 150) -> None:
    assert replicas.finished == "ended"
    assert len(replicas.examples) == passes * examples
    assert set(replicas.examples.values()) == {1}, "every example of every pass is part of one step"
    assert sorted(replicas.counts) == list(range(1, replicas.settled + 1))
    assert replicas.core.run.rounds.settled == replicas.settled


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_example_is_part_of_one_step(workers: int) -> None:
    replicas = Replicas(1, workers)
    for _ in range(workers):
        replicas.join()
    replicas.run()
    check(replicas)
    batches = -(-150 // 4)
    assert replicas.settled == 3 * -(-batches // workers), "no step has fewer parts than it must"
    assert replicas.core.run.tally.duplicates == 0


@pytest.mark.parametrize("seed", range(25))
def test_replicas_may_come_leave_and_die(seed: int) -> None:
    replicas = Replicas(seed, 4)
    replicas.join()
    replicas.now_s = 31.0
    chance = replicas.random
    for _ in range(400):
        if replicas.finished:
            break
        what = chance.random()
        if what < 0.1 and len(replicas.workers) < 4:
            replicas.join()
        elif what < 0.2 and replicas.workers:
            replicas.lose(chance.choice(list(replicas.workers)), leaving=what < 0.13)
        elif replicas.workers:
            replicas.advance()
    if not replicas.finished:
        if not replicas.workers:
            replicas.join()
        replicas.run()
    check(replicas)


def test_the_parts_of_a_dead_replica_go_to_those_of_the_same_steps() -> None:
    replicas = Replicas(1, 3)
    for _ in range(3):
        replicas.join()
    replicas.advance()
    theirs = {(task.step, task.part) for task in replicas.tasks["w2"]}
    replicas.lose("w2", leaving=False)
    replicas.join()
    replicas._ask_all()
    heirs = {n: {(t.step, t.part) for t in tasks} & theirs for n, tasks in replicas.tasks.items()}
    assert heirs["w1"] | heirs["w3"] == theirs and not heirs["w4"]
    assert heirs["w1"] and heirs["w3"], "shared out"


def test_what_the_only_replica_reports_after_it_was_given_up_is_not_given_out_again() -> None:
    replicas = Replicas(1, 1)
    replicas.join()
    first, *others = replicas.tasks["w1"]
    replicas.lose("w1", leaving=False)
    late = TaskReport(first.id, first.stop - first.start, 1.0, 0, first.batches[0])
    replicas.step(events.TasksWanted(99, NextTaskRequest("w1", 1, (late,), 3, 0.0)))
    replicas.join()
    assert [(task.start, task.step) for task in replicas.tasks["w2"]][: len(others)] == [
        (task.start, task.step) for task in others
    ]
    assert replicas.core.run.rounds.settled == first.batches[0], "who is to make the next step need not wait for it"


def test_the_first_one_waits_for_the_others_but_not_for_ever() -> None:
    replicas = Replicas(1, 2)
    replicas.join()
    assert not replicas.tasks["w1"]
    assert replicas.core.run.wakeup_s() == 30.0
    replicas.now_s = 30.0
    replicas.step(events.Tick())
    assert len(replicas.tasks["w1"]) == ROUNDS_AHEAD


def test_all_parts_of_a_step_come_at_one_learning_rate() -> None:
    replicas = Replicas(1, 3, examples=33 * 4)
    for _ in range(3):
        replicas.join()
    progress: dict[int, set[float]] = {}
    for tasks in replicas.tasks.values():
        for task in tasks:
            share = (task.progress_stop - task.progress_start) / (task.stop - task.start)
            progress.setdefault(task.step, set()).add(round(share, 12))
    assert all(len(found) == 1 for found in progress.values())


def test_an_evaluation_waits_for_the_step_and_the_steps_for_it() -> None:
    replicas = Replicas(1, 2)
    replicas.join()
    replicas.join()
    while replicas.core.run.state == "training":
        replicas.advance()
    assert replicas.core.run.state == "evaluating"
    while not any(replicas.evaluations.values()):
        replicas.advance()
    assert not any(replicas.tasks.values())


def test_who_has_no_part_in_a_step_may_ask_when_it_is_complete() -> None:
    replicas = Replicas(1, 2, examples=4 * 7)  # the seventh batch of a pass is a step of its own
    replicas.join()
    replicas.join()

    def limit(done: int, wanted: int, wait_s: float = 5.0) -> list[int]:
        request = RunStepRequest("w2", 2, done, wanted, wait_s)
        out = replicas.core.step(events.StepWanted(99, request), replicas.now_s)
        return [i.reply.limit for i in out if isinstance(i, AnswerStep)]

    assert limit(0, 0) == [1]
    assert limit(3, 5) == []
    (task,) = [t for t in replicas.tasks["w1"] if covers(t, 4)]
    request = NextTaskRequest("w1", 1, (TaskReport(task.id, 4, 1.0, 0, 1),), 0, 0.0)
    out = replicas.core.step(events.TasksWanted(98, request), replicas.now_s)
    assert [i.reply.limit for i in out if isinstance(i, AnswerStep)] == [5]
