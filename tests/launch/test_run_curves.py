"""The curves of a run are read from its metrics, of a run in progress and of one that went back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import ConfigurationError
from adamctl.launch.run_curves import Point, read_curves
from adamctl.roles.coordinator.core.progress import BatchProgress, EvaluationResult, RunProgress
from adamctl.roles.coordinator.records import RunRecords


def written(folder: Path, *lines: Any) -> Path:
    """Writes metrics; lines that are text are written as they are."""
    text = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
    (folder / "metrics.jsonl").write_text("".join(text))
    return folder


def iteration(evaluations: int, loss: float | None) -> dict[str, Any]:
    return {"kind": "iteration", "evaluations": evaluations, "train_seconds": evaluations / 2, "loss": loss}


def test_of_a_batch_algorithm_every_commit_is_a_point(tmp_path: Path) -> None:
    batch = BatchProgress(algorithm="lbfgs", evaluations=2, loss=0.5)
    progress = RunProgress(state="training", job="a", passes_total=9, train_seconds=3.0, batch=batch, loss=7.0)
    records = RunRecords(tmp_path)
    records.iteration(progress)
    result = EvaluationResult(passes=2, progress=0.2, train_seconds=3.0, split="validation", top1=0.9, loss=0.75)
    records.evaluation(result, progress)
    records.close()
    found = read_curves(tmp_path)
    assert (found.algorithm, found.split) == ("lbfgs", "validation")
    assert found.training == [Point(2, 3.0, 0.5)] and found.held_out == [Point(2, 3.0, 0.75)]


def test_of_downpour_what_progress_says_is_a_point(tmp_path: Path) -> None:
    lines = [
        {"kind": "progress", "pass_number": n, "pass_share": 0.5, "train_seconds": n + 1.0, "loss": loss, "batch": None}
        for n, loss in enumerate((None, 2.0, 1.0))
    ]
    found = read_curves(written(tmp_path, *lines))
    assert found.algorithm == "" and found.training == [Point(1.5, 2.0, 2.0), Point(2.5, 3.0, 1.0)]


def test_a_run_that_was_resumed_goes_back_to_its_checkpoint(tmp_path: Path) -> None:
    lines = [iteration(1, 4.0), iteration(3, 3.0), iteration(4, 2.0), iteration(3, 2.5), iteration(5, 1.0)]
    found = read_curves(written(tmp_path, *lines))
    assert [(point.passes, point.value) for point in found.training] == [(1, 4.0), (3, 2.5), (5, 1.0)]


def test_what_cannot_be_read_or_is_not_finite_is_no_point(tmp_path: Path) -> None:
    lines = (iteration(1, 4.0), "\xff\n", "[1]\n", iteration(2, None), iteration(3, float("inf")), '{"kind": "iter')
    assert [point.passes for point in read_curves(written(tmp_path, *lines)).training] == [1]


def test_a_run_without_a_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl cannot be read: No such file"):
        read_curves(tmp_path)
    with pytest.raises(ConfigurationError, match="expected a loss; found none"):
        read_curves(written(tmp_path, {"kind": "progress", "loss": None}))


def test_accuracy_rate_staleness_and_waiting_are_read(tmp_path: Path) -> None:
    progress = RunProgress(
        state="training", job="a", passes_total=9, pass_number=1, pass_share=0.5, train_seconds=3.0, examples=90,
        images_per_s=30.0, staleness_p50=2, waiting_share=0.25, loss=1.0,
    )  # fmt: skip
    records = RunRecords(tmp_path)
    records.progress(RunProgress(state="starting", job="a", passes_total=9))
    result = EvaluationResult(passes=1, progress=0.2, train_seconds=2.0, split="test", top1=0.9, loss=None)
    records.evaluation(result, progress)
    records.close()
    found = read_curves(tmp_path)
    assert found.metric_values == [Point(1, 2.0, 0.9)] and found.held_out == []
    assert (found.rate, found.staleness) == ([Point(1.5, 3.0, 30.0)], [Point(1.5, 3.0, 2)])
    assert found.waiting_share == [Point(1.5, 3.0, 0.25)]
