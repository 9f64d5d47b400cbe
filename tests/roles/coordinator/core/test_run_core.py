"""The run's state machine as its specification: what is handed out, in which order, to whom."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Finished
from tests.roles.coordinator.simulation import Simulation, plan


def test_one_worker_processes_every_example_of_every_pass_exactly_once() -> None:
    run = Simulation(1)
    run.add_worker("w0")
    run.run()
    assert run.finished == Finished("ended", "")
    assert run.reported == Counter({(number, example): 1 for number in range(3) for example in range(200)})
    assert run.core.run.tally.examples == 600
    assert run.core.run.tally.duplicates == 0


def test_progress_follows_the_share_of_the_run_that_was_handed_out() -> None:
    run = Simulation(1)
    run.add_worker("w0")
    run.run()
    tasks = [task for task, _ in run.handed_out]
    assert tasks[0].progress_start == 0.0
    assert tasks[-1].progress_stop == 1.0
    for before, after in itertools.pairwise(tasks):
        assert before.progress_stop == pytest.approx(after.progress_start)


def test_adam_3_2_5_a_pass_ends_when_the_stated_fraction_is_done_and_the_next_begins_at_once() -> None:
    run = Simulation(1, plan(passes=2, evaluate_every=0.0, pass_fraction=0.75), examples=80)
    slow = run.add_worker("slow", seconds_per_example=1000.0)
    run.add_worker("fast", seconds_per_example=0.01)
    run.until(lambda: any(task.pass_number == 1 for task, _ in run.handed_out))
    assert slow.tasks, "the slow worker still has a range of the first pass"
    assert run.core.run.book.current == 1
    assert sum(count for (number, _), count in run.reported.items() if number == 0) >= 0.75 * 80


def test_what_is_still_worked_on_when_a_pass_ends_is_finished_and_counts() -> None:
    run = Simulation(1, plan(passes=2, evaluate_every=0.0), examples=160)
    run.add_worker("slow", seconds_per_example=1.0)
    run.add_worker("fast")
    run.run()
    assert run.core.run.tally.examples == 320


def test_tasks_ahead_are_bounded() -> None:
    run = Simulation(1, examples=10_000)
    worker = run.add_worker("w0")
    for _ in range(10):
        run.ask(worker, 100, 1.0)
    assert len(worker.tasks) == 4 + 2


def test_distbelief_4_1_warm_start_only_one_replica_trains_at_first() -> None:
    run = Simulation(3, plan(warmstart_steps=20, evaluate_every=0.0), examples=400)
    for number in range(3):
        run.add_worker(f"w{number}")
    while run.core.run.state == "warmstart":
        assert len({worker.node for _, worker in run.handed_out}) <= 1
        assert run.advance()
    assert run.core.run.tally.steps >= 20
    run.run()
    assert len({worker.node for _, worker in run.handed_out}) == 3


def test_another_replica_goes_on_with_the_warm_start_when_the_first_dies() -> None:
    run = Simulation(3, plan(warmstart_steps=1000, evaluate_every=0.0), examples=400)
    for number in range(3):
        run.add_worker(f"w{number}")
    run.advance()
    first = run.handed_out[0][1]
    run.kill(first)
    run.run()
    assert run.core.run.tally.examples == 3 * 400


def test_a_lost_server_fails_the_run_with_the_cause_and_everybody_is_told() -> None:
    run = Simulation(16)
    worker = run.add_worker("w")
    run.advance()
    run.step(events.Failed("parameter server ps-0 is gone"))
    run.run()
    assert run.finished == Finished("failed", "parameter server ps-0 is gone")
    assert worker.told_end == "failed: parameter server ps-0 is gone"


def test_a_parked_request_is_answered_in_the_step_that_brings_work() -> None:
    run = Simulation(17, plan(pass_fraction=1.0, evaluate_every=0.0), examples=4)
    first, second = run.add_worker("first"), run.add_worker("second")
    run.ask(first, 1, 5.0)
    run.ask(second, 1, 5.0)
    assert first.parked is None and second.parked is not None
    run.finish_task(first)
    run.ask(first, 0, 0.0)
    assert second.parked is None and second.tasks[0].pass_number == 1


def test_a_run_whose_replica_holds_the_parameters_fails_with_it_once_something_is_trained() -> None:
    run = Simulation(3, plan(has_own_parameters=True, workers=1))
    first = run.add_worker("w0")
    run.kill(first)
    run.add_worker("w1")
    run.until(lambda: run.core.run.tally.examples > 0)
    assert run.finished is None, "nothing was lost with the first one"
    run.kill(run.handed_out[-1][1])
    run.until(lambda: run.finished is not None)
    assert run.finished is not None and run.finished.state == "failed"
    assert "and the parameters with it, because cluster.ps = 0; no checkpoint was written yet" in run.finished.cause
