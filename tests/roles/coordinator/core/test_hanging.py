"""A worker that is heard from and makes no step is taken for dead where others wait for it; a slow one is not."""

from __future__ import annotations

from math import inf

import pytest

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.hanging import FIRST_STEP, LONGEST_STEPS, HangWatch
from adamctl.roles.coordinator.core.instructions import Answer, Say
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.wire.messages import EvaluateTask, NextTaskRequest, RunStepRequest, TaskReport, TrainTask
from tests.roles.coordinator.simulation import plan

BOUNDS = {"in step": {"in_step": True}, "bound": {"max_staleness": 2}}
PATIENCE_S = 120.0
ONE, TWO = ("one", 1), ("two", 2)


class Run:
    """Workers whose event loops go on: each has a request parked all the time, whatever its threads do."""

    def __init__(self, workers: str = "ab", evaluated: int = 0, **changes: object) -> None:
        settings = {"passes": 50, "batch": 4, "range_batches": 3, "evaluate_every": 0.0, "checkpoint_every": 0.0}
        self.core = RunCore(plan(workers=len(workers), **(settings | changes)), 0.0)
        self.now_s, self.token = 0.0, 0
        self.nodes: dict[str, int] = {}
        self.tasks: dict[str, list[TrainTask | EvaluateTask]] = {}
        self.asked: dict[int, str] = {}
        self.said: list[str] = []
        self.step(events.Ready(4000, evaluated))
        for number, node in enumerate(workers, 1):
            self.nodes[node], self.tasks[node] = number, []
            self.step(events.WorkerJoins(self.next_token(), node, number, 1))
        for node in workers:
            self.ask(node)

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def step(self, event: events.Event) -> None:
        for instruction in self.core.step(event, self.now_s):
            match instruction:
                case Say(text) if "is gone" in text:
                    self.said.append(text)
                case Answer(token, reply):
                    self.tasks[self.asked.pop(token)] += [*reply.train, *reply.evaluate]

    def ask(self, node: str, reports: tuple[TaskReport, ...] = ()) -> None:
        self.asked[self.next_token()] = node
        request = NextTaskRequest(node, self.nodes[node], reports, 3, 5.0)
        self.step(events.TasksWanted(self.token, request))

    def tell(self, node: str, done: int, wanted: int = 0) -> None:
        request = RunStepRequest(node, self.nodes[node], done, wanted, 5.0 if wanted else 0.0)
        self.step(events.StepWanted(self.next_token(), request))

    def report(self, node: str) -> None:
        """Says that the first range that it has is done."""
        task = self.tasks[node].pop(0)
        steps = 3 if isinstance(task, TrainTask) else 0
        self.ask(node, (TaskReport(task.id, task.stop - task.start, 1.0, 0, steps),))

    def wait(self, seconds: float, waiting: dict[str, tuple[int, int]] | None = None) -> None:
        """Time goes by: all ask for ranges, and those who wait for a step ask for that, every few seconds."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(self.now_s + 4.0, until_s)
            for node in list(self.nodes):
                if self.alive(node):
                    self.ask(node)
                    if waiting and node in waiting:
                        self.tell(node, *waiting[node])
            self.step(events.Tick())

    def alive(self, node: str) -> bool:
        return (node, self.nodes[node]) in self.core.run.workers

    def begin(self) -> None:
        """All have made the three steps of their first ranges."""
        for node in self.nodes:
            self.tell(node, 3)
            self.report(node)


def ahead(name: str, done: int) -> dict[str, tuple[int, int]]:
    """What replica a asks for when b has done so many steps, and it can do no more."""
    return {"a": (done, done + 2) if name == "in step" else (done + 2, done + 3)}


@pytest.mark.parametrize("name", BOUNDS)
def test_one_whose_thread_hangs_is_dropped_and_the_others_go_on(name: str) -> None:
    run = Run(**BOUNDS[name])
    run.begin()
    run.wait(100.0, ahead(name, 3))
    assert run.alive("b")
    assert run.core.run.wakeup_s() <= run.now_s + 25.0
    run.wait(30.0, ahead(name, 3))
    assert run.alive("a") and not run.alive("b")
    (text,) = run.said
    assert "worker b is gone: it has finished neither a step nor a range for 12" in text
    before = run.core.run.tally.examples
    for _ in range(3):
        run.report("a")
    assert run.core.run.tally.examples > before


def test_without_a_bound_nobody_waits_and_nobody_is_dropped() -> None:
    run = Run()
    run.begin()
    run.wait(2000.0)
    assert run.alive("a") and run.alive("b") and not run.said


@pytest.mark.parametrize("name", BOUNDS)
def test_who_waits_for_a_slow_one_is_not_dropped_nor_is_the_slow_one(name: str) -> None:
    """Steps of 50 s, told of when they are done; one of 200 s is within what they have shown."""
    run = Run(**BOUNDS[name])
    run.begin()
    for done, seconds in enumerate((50.0, 100.0, 50.0, 200.0, 100.0), 3):
        run.wait(seconds, ahead(name, done))
        run.tell("b", done + 1)
    assert run.alive("a") and run.alive("b") and not run.said


@pytest.mark.parametrize("name", BOUNDS)
def test_the_first_step_may_take_longer(name: str) -> None:
    run = Run(**BOUNDS[name])
    run.wait(FIRST_STEP * PATIENCE_S - 20.0, ahead(name, 0))
    assert run.alive("b")
    run.wait(30.0, ahead(name, 0))
    assert run.alive("a") and not run.alive("b")


@pytest.mark.parametrize("name", BOUNDS)
def test_what_holds_up_all_or_the_only_one_is_nobodys_fault(name: str) -> None:
    for workers in ("a", "ab"):
        run = Run(workers, **BOUNDS[name])
        run.begin()
        run.wait(1000.0)
        assert all(run.alive(node) for node in workers)


def test_one_that_waits_at_the_bound_for_its_own_thread_is_dropped() -> None:
    """One of its threads hangs; the others ask for steps that only that thread's can allow."""
    run = Run(max_staleness=2)
    run.begin()
    run.wait(140.0, {"a": (5, 6), "b": (3, 6)})
    assert run.alive("a") and not run.alive("b")


def test_one_that_makes_the_part_of_a_dead_one_and_hangs_is_dropped() -> None:
    """It had said that its own parts were done; what it was given then is another matter."""
    run = Run("abc", in_step=True)
    run.begin()
    waiting = dict.fromkeys("ab", (3, 5))
    run.wait(20.0, waiting)
    run.step(events.WorkerLost("c", 3, "gone"))
    heir = next(node for node in "ab" if any(t.part == 2 for t in run.tasks[node]))
    (other,) = {"a", "b"} - {heir}
    run.wait(140.0, {other: (3, 5)})
    assert run.alive(other) and not run.alive(heir)


@pytest.mark.parametrize("name", BOUNDS)
def test_one_that_hangs_in_the_last_evaluation_is_dropped(name: str) -> None:
    run = Run(**BOUNDS[name], passes=1, pass_fraction=1.0, evaluated=5000)
    for _ in range(5000):
        node = next((node for node in "ab" if run.tasks[node] and isinstance(run.tasks[node][0], TrainTask)), None)
        if node is None:
            break
        run.report(node)
    (evaluator,) = [node for node in "ab" if run.tasks[node]]
    run.report(evaluator)
    run.wait(PATIENCE_S - 10.0)
    assert run.alive(evaluator)
    run.wait(20.0)
    assert not run.alive(evaluator)


def test_a_range_of_an_evaluation_may_take_as_long_as_so_many_steps() -> None:
    watch = HangWatch(PATIENCE_S)
    watch.look({ONE: 1.0}, True, 0.0)
    watch.moved(ONE, 30.0)
    watch.look({ONE: 10.0}, True, 30.0)
    assert watch.wakeup_s() == 30.0 + LONGEST_STEPS * 30.0 * 10.0
    watch.moved(ONE, 500.0, step=False)
    watch.look({ONE: 1.0}, True, 500.0)
    assert watch.wakeup_s() == 500.0 + LONGEST_STEPS * 30.0


def test_time_in_which_it_waited_for_others_does_not_count() -> None:
    watch = HangWatch(PATIENCE_S)
    watch.look({ONE: 1.0, TWO: 1.0}, False, 0.0)
    watch.moved(ONE, 1.0)
    watch.look({TWO: 1.0}, True, 1.0)
    watch.look({TWO: 1.0}, True, 500.0)
    assert watch.hanging(500.0) == {} and set(watch.hanging(600.0)) == {TWO}
    watch.leave(TWO)
    watch.look({ONE: 1.0}, True, 700.0)
    assert watch.hanging(810.0) == {} and watch.hanging(820.0) == {ONE: 120.0}
    watch.look({}, True, 820.0)
    assert watch.wakeup_s() == inf
