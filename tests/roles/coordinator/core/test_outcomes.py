"""What a run comes to: its evaluations, its checkpoints, a stop on request, an early one."""

from __future__ import annotations

import pytest

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Finished
from tests.roles.coordinator.simulation import Simulation, plan


class TestEvaluation:
    def test_one_worker_drains_then_evaluates_while_the_clock_stands_still(self) -> None:
        run = Simulation(8, plan(evaluate_every=0.25))
        worker = run.add_worker("w")
        seen = 0
        while run.finished is None:
            assert run.advance()
            if run.core.run.state == "evaluating" and any(hasattr(t, "evaluation") for t in worker.tasks):
                seen += 1
                assert run.core.run.clock.ranges_out == 0
        assert seen and worker.drained >= 12
        passes = [result.result.passes for result in run.evaluated]
        assert passes == [0.25 * number for number in range(1, 13)]

    def test_it_is_looked_at_where_that_many_examples_were_handed_out(self) -> None:
        run = Simulation(8, plan(evaluate_every=0.25), examples=400)
        run.add_worker("w")
        run.run()
        shares = [result.result.progress for result in run.evaluated]
        for number, share in enumerate(shares, start=1):
            assert number / 12 <= share + 1e-9 <= number / 12 + 8 / 1200 + 1e-6

    def test_with_several_workers_one_evaluates_and_the_others_train_on(self) -> None:
        run = Simulation(9, plan(evaluate_every=0.5, passes=2), examples=4000, evaluation_examples=500)
        for number in range(3):
            run.add_worker(f"w{number}")
        trained_meanwhile = 0
        while run.finished is None:
            before = len(run.handed_out)
            assert run.advance()
            current = run.core.run.desk.current
            if current is not None and current.worker is not None and not current.exclusive:
                assert run.core.run.state in ("training", "finishing")
                trained_meanwhile += len(run.handed_out) - before
        assert trained_meanwhile > 0
        owners: dict[int, set[str]] = {}
        for task in run.evaluation_order:
            owners.setdefault(task.evaluation, set())
        assert len(run.evaluated) == 4
        assert all(result.result.top1 == pytest.approx(0.5) for result in run.evaluated)

    def test_ranges_of_an_evaluation_cover_the_split_once_in_thousands(self) -> None:
        run = Simulation(8, plan(passes=1), evaluation_examples=2500)
        run.add_worker("w")
        run.run()
        assert [(task.start, task.stop) for task in run.evaluation_order] == [(0, 1000), (1000, 2000), (2000, 2500)]
        assert run.evaluated[0].result.loss == pytest.approx(0.25)

    def test_another_worker_begins_anew_when_the_evaluating_one_dies(self) -> None:
        run = Simulation(10, plan(passes=1, evaluate_every=0.0))
        first = run.add_worker("first")
        run.until(lambda: run.evaluation_order)
        run.kill(first)
        run.add_worker("second")
        run.run()
        assert len(run.evaluated) == 1
        assert {task.evaluation for task in run.evaluation_order} == {1, 2}

    def test_there_is_always_a_final_evaluation_and_never_two_of_the_same_state(self) -> None:
        for every in (0.0, 1.0, 0.7):
            run = Simulation(11, plan(evaluate_every=every, passes=2))
            run.add_worker("w")
            run.run()
            progress = [entry.result.progress for entry in run.evaluated]
            assert progress[-1] == 1.0
            assert len(set(progress)) == len(progress)

    def test_an_empty_split_is_not_evaluated(self) -> None:
        run = Simulation(11, evaluation_examples=0)
        run.add_worker("w")
        run.run()
        assert run.finished == Finished("ended", "")
        assert not run.evaluated

    def test_early_stop_when_the_target_is_reached(self) -> None:
        run = Simulation(12, plan(target=0.9, passes=50), accuracy=0.95)
        run.add_worker("w")
        run.run()
        assert run.finished == Finished("ended", "target 0.9 reached")
        assert len(run.evaluated) == 1
        assert run.core.run.tally.examples == 200


class TestCheckpoints:
    def test_at_every_mark_after_its_evaluation_and_at_the_end(self) -> None:
        run = Simulation(13)
        run.add_worker("w")
        run.run()
        assert [len(snapshot.evaluations) for snapshot in run.checkpoints] == [1, 2, 3]
        assert [snapshot.checkpoint for snapshot in run.checkpoints] == [1, 2, 3]

    def test_every_zero_writes_only_the_last_one(self) -> None:
        run = Simulation(13, plan(checkpoint_every=0.0))
        run.add_worker("w")
        run.run()
        assert len(run.checkpoints) == 1

    def test_a_failed_one_is_said_and_the_run_goes_on_but_the_last_one_is_promised(self) -> None:
        run = Simulation(13, plan(passes=2, last_checkpoint_s=60.0))
        run.add_worker("w")
        run.write_failure = "disk full"
        run.run()
        assert run.said[0] == "checkpoint 1 could not be written: disk full"
        assert run.said[1] == "checkpoint 2 could not be written: disk full; trying again, for 60 s"
        assert run.finished is not None and run.finished.state == "failed"
        assert run.finished.cause.endswith("could not be written: disk full")
        assert 10 < int(run.finished.cause.split()[1]) < 20, "it was tried every few seconds for a minute"

    def test_the_last_one_is_tried_again_until_the_disk_has_room(self) -> None:
        run = Simulation(13, plan(passes=2))
        run.add_worker("w")
        run.write_failure = "disk full"
        run.until(lambda: len(run.said) > 1)
        run.until(lambda: run.core.run.ending is not None and run.core.run.ending.retries > 3)
        run.write_failure = ""
        run.run()
        assert run.finished is not None and run.finished.state == "ended"
        assert len(run.said) == 2, "it is said once"

    def test_a_run_that_is_told_to_stop_does_not_wait_for_room(self) -> None:
        run = Simulation(13, plan(passes=2))
        run.add_worker("w")
        run.write_failure = "disk full"
        run.until(lambda: run.core.run.tally.examples)
        run.step(events.StopWanted("told to", True))
        run.run()
        assert run.finished is not None and run.finished.state == "failed"


class TestStop:
    def test_hands_nothing_out_any_more_takes_what_is_there_and_writes_a_checkpoint(self) -> None:
        run = Simulation(14, examples=2000)
        worker = run.add_worker("w")
        for _ in range(5):
            run.advance()
        run.step(events.StopWanted("told to", True))
        before = len(run.handed_out)
        run.run()
        assert run.finished == Finished("stopped", "told to")
        assert len(run.handed_out) == before
        assert worker.drained
        assert len(run.checkpoints) == 1
        assert run.checkpoints[0].examples == run.core.run.tally.examples

    def test_does_not_wait_for_ever_for_a_slow_worker(self) -> None:
        run = Simulation(14, plan(stop_wait_s=5.0))
        run.add_worker("slow", seconds_per_example=1e5)
        run.add_worker("quick")
        for _ in range(5):
            run.advance()
        at = run.now_s
        run.step(events.StopWanted("told to", True))
        run.until(lambda: run.finished)
        assert run.now_s <= at + 5.0 + run.write_s
        assert not any(worker == "slow" for worker in run.out)

    def test_no_checkpoint_before_anything_was_trained_or_when_none_is_wanted(self) -> None:
        run = Simulation(14)
        run.step(events.StopWanted("told to", True))
        assert run.finished is not None and not run.checkpoints
        run = Simulation(14)
        run.add_worker("w")
        run.advance()
        run.step(events.StopWanted("told to", False))
        run.run()
        assert not run.checkpoints

    def test_during_an_evaluation_it_is_made_up_for_after_resuming(self) -> None:
        run = Simulation(15)
        run.add_worker("w")
        run.until(lambda: run.core.run.state == "evaluating")
        run.step(events.StopWanted("told to", True))
        run.run()
        assert run.checkpoints[-1].evaluation_due == 1.0
        resumed = Simulation(15, snapshot=run.checkpoints[-1])
        resumed.add_worker("w")
        resumed.run()
        assert [entry.result.passes for entry in resumed.evaluated] == [1.0, 2.0, 3.0]
