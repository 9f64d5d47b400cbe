"""Lines of metrics become numbers with names and steps; a run that goes back to a checkpoint is told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adamctl.launch.sinks.measurement import Measurement, Measuring, WentBack
from adamctl.roles.coordinator.core.progress import BatchProgress, EvaluationResult, RunProgress
from adamctl.roles.coordinator.records import RunRecords


def progress(examples: int, **values: Any) -> RunProgress:
    return RunProgress(
        state=values.pop("state", "training"), job="a", passes_total=10, examples_total=1000, examples=examples,
        train_seconds=examples / 100, **values,
    )  # fmt: skip


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def measured(*fields: Any) -> list[Measurement | WentBack]:
    measuring = Measuring()
    return [found for one in fields for found in measuring.taken(one)]


def test_what_the_coordinator_writes_is_read(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    records.progress(progress(0, state="starting"))
    records.progress(progress(200, loss=2.0, train_top1=0.5, learning_rate=0.1, staleness_p50=3, images_per_s=100.0))
    result = EvaluationResult(passes=1.5, progress=0.1, train_seconds=2.5, split="validation", top1=0.75, loss=1.0)
    records.evaluation(result, progress(210, loss=float("nan")))
    records.close()
    first, evaluation, last = measured(*lines(tmp_path))
    assert isinstance(first, Measurement) and (first.kind, first.step, first.train_seconds) == ("progress", 200, 2.0)
    assert first.values["loss/train"] == 2.0 and first.values["top-1/train"] == 0.5
    assert (first.values["staleness/p50"], first.values["rate/examples_per_s"]) == (3.0, 100.0)
    assert isinstance(evaluation, Measurement) and evaluation.step == 150, "1.5 passes of 100 examples"
    assert evaluation.values == {"loss/validation": 1.0, "top-1/validation": 0.75}
    assert isinstance(last, Measurement) and "loss/train" not in last.values, "it is not finite"


def test_a_metric_is_called_as_its_loss_calls_it(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    result = EvaluationResult(
        passes=1.5, progress=0.1, train_seconds=2.5, split="test", top1=None, loss=4.0, metric="rmse", metric_value=2.0
    )
    records.evaluation(result, progress(210))
    records.close()
    evaluation = measured(*lines(tmp_path))[0]
    assert isinstance(evaluation, Measurement) and evaluation.values == {"loss/test": 4.0, "rmse/test": 2.0}


def test_steps_of_a_batch_algorithm_are_evaluations(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    batch = BatchProgress(algorithm="lbfgs", iterations=2, evaluations=3, loss=0.5, gradient_max=0.25, step=1.0)
    records.iteration(progress(300, batch=batch))
    result = EvaluationResult(passes=3, progress=0.1, train_seconds=2.5, split="test", top1=0.75, loss=1.0)
    records.evaluation(result, progress(300, batch=batch, loss=7.0, images_per_s=10.0))
    records.close()
    found = measured(*lines(tmp_path))
    assert [(one.kind, one.step) for one in found if isinstance(one, Measurement)] == [
        ("iteration", 3), ("evaluation", 3), ("progress", 3)
    ]  # fmt: skip
    assert isinstance(found[0], Measurement) and isinstance(found[2], Measurement)
    assert found[0].values == {"loss/batch": 0.5, "batch/gradient_max": 0.25, "batch/step": 1.0}
    assert "loss/train" not in found[2].values and found[2].values["rate/examples_per_s"] == 10.0


def line(examples: int, **values: Any) -> dict[str, Any]:
    return {"kind": "progress", "state": "training", "examples": examples, "loss": 1.0, **values}


def test_a_run_that_goes_back_is_told_before_what_comes_then() -> None:
    found = measured(line(100), line(300), line(0, state="starting"), line(200), line(250))
    steps = [one if isinstance(one, WentBack) else one.step for one in found]
    assert steps == [100, 300, 200, 200, 250]
    assert isinstance(found[2], WentBack) and sum(isinstance(one, WentBack) for one in found) == 1


def test_metrics_that_begin_anew_go_back_to_wherever_they_begin() -> None:
    measuring = Measuring()
    assert len(list(measuring.taken(line(100)))) == 1
    measuring.begin_anew()
    found = list(measuring.taken(line(500)))
    assert found[0] == WentBack(500) and isinstance(found[0], WentBack)


def test_final_states_are_known_until_the_run_goes_on() -> None:
    measuring = Measuring()
    for state, final in (("training", ""), ("stopped", "stopped"), ("training", ""), ("failed", "failed")):
        list(measuring.taken(line(1, state=state)))
        assert measuring.final_state == final


def test_what_is_no_line_of_metrics_says_nothing() -> None:
    assert measured({}, {"kind": 3}, {"kind": "unknown"}, line(1, batch=[]), {"kind": "iteration", "loss": "x"}) == []
