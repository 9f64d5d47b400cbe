"""When evaluations are due, and what they say together."""

from __future__ import annotations

import pytest

from adamctl.model.metric import Metric
from adamctl.roles.coordinator.core.clock import TrainingClock, histogram_quantile
from adamctl.roles.coordinator.core.evaluate import EvaluationQueue, Marks, time_to
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.coordinator.core.ranges import fitting_range
from adamctl.wire.messages import EvaluateTask, TaskReport
from tests.roles.coordinator.simulation import Simulation, plan


def result(top1: float, seconds: float) -> EvaluationResult:
    return EvaluationResult(passes=1.0, progress=0.5, train_seconds=seconds, split="test", top1=top1, loss=0.1)


def test_time_to_is_the_first_evaluation_that_reached_it() -> None:
    evaluations = [result(0.92, 1.0), result(0.981, 2.0), result(0.979, 3.0), result(0.991, 4.0)]
    assert time_to(evaluations, target=0.975) == {
        "0.90": 1.0,
        "0.95": 2.0,
        "0.97": 2.0,
        "0.975": 2.0,
        "0.98": 2.0,
        "0.985": 4.0,
        "0.99": 4.0,
    }


def test_a_target_that_is_in_the_list_is_not_there_twice() -> None:
    assert list(time_to([result(1.0, 1.0)], target=0.9)).count("0.90") == 1
    assert "0.9" not in time_to([result(1.0, 1.0)], target=0.9)


def test_marks_come_once_each_and_missed_ones_fold_into_the_latest() -> None:
    marks = Marks(0.25, 1000, 2000)
    assert [marks.reached(handed_out) for handed_out in (0, 249, 250, 300, 760, 1000, 1001)] == [
        None,
        None,
        0.25,
        None,
        0.75,
        1.0,
        None,
    ]


def test_the_end_of_the_run_is_no_mark() -> None:
    marks = Marks(1.0, 1000, 2000)
    assert marks.reached(2000) == 1.0
    assert marks.reached(2000) is None
    assert Marks(0.0, 1000, 2000).reached(2000) is None


def test_the_clock_is_the_union_of_the_intervals_in_which_something_is_out() -> None:
    clock = TrainingClock(5.0)
    clock.hand_out(10.0)
    clock.hand_out(11.0)
    clock.take_back(12.0)
    assert clock.seconds(12.5) == 7.5
    clock.take_back(13.0)
    assert clock.seconds(99.0) == 8.0
    clock.hand_out(100.0)
    assert clock.seconds(101.0) == 9.0


def test_quantiles_of_a_histogram() -> None:
    assert histogram_quantile([], 0.5) is None
    assert histogram_quantile([0, 0], 0.5) is None
    assert histogram_quantile([50, 49, 1], 0.5) == 0
    assert histogram_quantile([50, 49, 1], 0.99) == 1
    assert histogram_quantile([50, 48, 2], 0.99) == 2


def test_an_evaluation_of_a_pass_begins_when_the_pass_is_done_not_when_it_is_handed_out() -> None:
    run = Simulation(3, plan(passes=2, workers=2), examples=16)
    first, second = run.add_worker("first"), run.add_worker("second")
    run.ask(first, 4, 5.0)
    run.ask(second, 1, 5.0)
    assert len(first.tasks) == 4 and run.core.run.desk.current is not None
    for _ in range(3):
        assert second.parked is not None and not second.tasks
        run.finish_task(first)
        run.ask(first, 0, 0.0)
    assert second.parked is None and isinstance(second.tasks[0], EvaluateTask)


def test_replicas_share_a_pass_of_few_batches() -> None:
    settings = plan(batch=64, range_batches=8, workers=2)
    assert [fitting_range(settings, examples) // 64 for examples in (60_000, 10_000, 5_000, 918, 10)] == [8, 8, 4, 1, 1]
    assert fitting_range(plan(batch=64, range_batches=8, workers=1), 918) == 8 * 64
    assert fitting_range(plan(batch=64, range_batches=8, workers=2, in_step=True), 918) == 8 * 64


def test_sums_of_ranges_are_added_up_and_the_metric_is_made_once_of_all() -> None:
    metric = Metric("within", True, lambda tally: tally.sums[0] / tally.sums[1])
    queue, worker = EvaluationQueue("test", 1500, metric), ("w", 1)
    queue.order(1.0, exclusive=True)
    queue.begin(worker, 2.0, 0.5)
    tasks = [queue.take(number) for number in range(2)]
    for task, sums in zip(tasks, ((900.0, 1000.0), (100.0, 500.0)), strict=True):
        found = queue.report(worker, TaskReport(task.id, task.stop - task.start, 1.0, 0, sums=sums))
    assert found is not None and (found.metric, found.top1, found.larger_is_better) == ("within", None, True)
    assert found.metric_value == found.value == pytest.approx(1000 / 1500), "the mean of both shares would be 0.55"
