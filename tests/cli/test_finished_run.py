"""One small run with a validation part, trained once, and all that is done with it afterwards."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError
from tests.cli.test_errors import adamctl

EXPERIMENT = """\
name = "small"
[data]
format = "npz"
source = "./small.npz"
validation = 0.25
[model]
input = [4, 4, 1]
[[model.layers]]
type = "softmax"
units = 3
[optimizer]
lr = 0.5
[optimizer.schedule]
type = "step"
every = 2
factor = 0.01
[train]
passes = 4
checkpoint_keep = 1
[cluster]
threads = 1
"""
EXAMPLES = 160
NAMES = np.array(["bottom", "middle", "top"])


def write_data(path: Path) -> None:
    """Pictures of one bright row, by which they are told apart; some have a wrong label."""
    random = np.random.default_rng(1)
    labels = np.arange(EXAMPLES) % 3
    pictures = random.integers(0, 120, (EXAMPLES, 4, 4, 1), np.uint8)
    pictures[np.arange(EXAMPLES), labels] += 100
    noisy = np.where(random.random(EXAMPLES) < 0.1, (labels + 1) % 3, labels)
    np.savez(path, x_train=pictures, y_train=NAMES[noisy], x_test=pictures[:30], y_test=NAMES[labels[:30]])


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder in which the run was made, to be read only, and what `train --json` printed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(EXPERIMENT)
    write_data(folder / "small.npz")
    result = adamctl("train", "small.toml", "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder, json.loads(result.stdout)


@pytest.fixture
def folder(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of it, to be written to."""
    shutil.copytree(trained[0], tmp_path / "copy")
    return tmp_path / "copy"


def evaluations(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "runs/small/001/summary.json").read_text())["evaluations"]
    return found


def best_number(folder: Path) -> int:
    """The first of the best by top-1, then by loss: checkpoints are one for each evaluation."""
    results = [(one["top1"], -one["loss"]) for one in evaluations(folder)]
    return results.index(max(results)) + 1


def test_the_best_on_the_validation_part_is_kept_and_taken(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = trained
    assert printed["evaluated_on"] == "validation" and printed["test_top1"] is None
    kept = [path.name for path in sorted((folder / "runs/small/001/checkpoints").iterdir())]
    best = f"{best_number(folder):06d}"
    assert kept == sorted({best, "000004"})
    result = adamctl("eval", "small", "--split", "validation", "--json", cwd=folder)
    found = json.loads(result.stdout)
    assert found["checkpoint"].endswith(best)
    assert found["top1"] == pytest.approx(max(one["top1"] for one in evaluations(folder)), abs=1e-9)
    assert f"{best}: the best on the validation part (top-1 " in result.stderr
    last = adamctl("eval", "small/001", "--checkpoint", "last", "--json", cwd=folder)
    assert json.loads(last.stdout)["checkpoint"].endswith("000004") and "000004: the last" in last.stderr
    assert "--checkpoint 9: expected best, last or a number" in adamctl("eval", "--checkpoint", "9", cwd=folder).stderr


def test_what_train_prints_for_programs(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = trained
    run = folder / "runs/small/001"
    assert (printed["run_folder"], printed["seed"], printed["state"], printed["exit_code"]) == (str(run), 7, "ended", 0)
    assert 0 < printed["loss"] < 2 and "error" not in printed
    best = evaluations(folder)[best_number(folder) - 1]
    assert printed["best"] == {**best, "checkpoint": str(run / "checkpoints" / f"{best_number(folder):06d}")}


def test_metrics_tell_the_learning_rate_and_the_training_accuracy(trained: tuple[Path, dict[str, Any]]) -> None:
    lines = [json.loads(line) for line in (trained[0] / "runs/small/001/metrics.jsonl").read_text().splitlines()]
    progress = [line for line in lines if line["kind"] == "progress"]
    assert len(progress) >= len(evaluations(trained[0])) == 4
    assert [progress[0]["learning_rate"], progress[-1]["learning_rate"]] == pytest.approx([0.5, 0.005])
    assert all(0 < line["train_top1"] <= 1 for line in progress)
    assert progress[-1]["train_top1"] > 0.5


def test_load_reads_a_run_for_use_in_python(
    trained: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, printed = trained
    monkeypatch.chdir(folder)
    model = adam.load("small")
    assert str(model.checkpoint.absolute()) == printed["best"]["checkpoint"]
    assert {name: array.shape for name, array in model.parameters().items()} == {
        "softmax1.weight": (3, 16), "softmax1.bias": (3,),
    }  # fmt: skip
    found = model.evaluate("test")
    assert found["examples"] == 30
    with np.load("small.npz") as data:
        outputs, labels = model.predict(data["x_test"]), data["y_test"]
        flat = model.predict(data["x_test"].reshape(30, -1).astype(np.float32) / 255)
    assert outputs.shape == (30, 3) and model.classes == tuple(NAMES)
    assert (NAMES[outputs.argmax(axis=1)] == labels).sum() == found["correct"]
    np.testing.assert_allclose(outputs, flat, rtol=1e-4)
    assert adam.load("small", checkpoint="last").checkpoint.name == adam.load("small", checkpoint=4).checkpoint.name
    with pytest.raises(ConfigurationError, match=r"expected numbers \[n, 4, 4, 1\]"):
        model.predict(np.zeros((2, 5)))


def test_predict_takes_archives_and_writes_csv(folder: Path) -> None:
    with np.load(folder / "small.npz") as data:
        pictures, labels = data["x_test"][:300], data["y_test"]
    np.savez(folder / "new.npz", anything=pictures)
    result = adamctl("predict", "small", "new.npz", "small.npz", "--csv", "--top", "2", cwd=folder)
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 60 and rows[29]["image"] == "new.npz[29]"
    assert list(rows[0]) == ["image", "class_1", "score_1", "class_2", "score_2"]
    right = sum(row["class_1"] == label for row, label in zip(rows, labels, strict=False))
    assert right == adam.load(folder / "runs/small/001", search=[folder]).evaluate("test")["correct"]
    np.savez(folder / "two.npz", a=pictures, b=pictures)
    refused = adamctl("predict", "small", "two.npz", cwd=folder)
    assert refused.returncode == 2 and "expected one array, or one called x, x_test" in refused.stderr


def test_names_of_classes_come_with_the_run_and_need_no_data(folder: Path) -> None:
    with np.load(folder / "small.npz") as data:
        np.savez(folder / "new.npz", x=data["x_test"])
        labels = data["y_test"]
    (folder / "small.npz").unlink()
    result = adamctl("predict", "runs/small/001", "new.npz", "--csv", "--top", "1", cwd=folder)
    assert result.returncode == 0, result.stderr
    found = [row["class_1"] for row in csv.DictReader(result.stdout.splitlines())]
    assert set(found) <= set(NAMES) and np.mean(np.array(found) == labels) > 0.5


def test_a_finished_run_says_why_it_does_not_go_on(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    for resume in ("auto", "small/001", "runs/small/001"):
        result = adamctl("train", "small.toml", "--resume", resume, cwd=folder)
        assert result.returncode == 2, result.stderr
        assert "its run has finished its 4 passes" in result.stderr and "--passes 5" in result.stderr
    assert [path.name for path in (folder / "runs" / "small").iterdir()] == ["001"]


def test_a_finished_run_goes_on_with_more_passes(folder: Path) -> None:
    result = adamctl("train", "small.toml", "--resume", "auto", "--passes", "5", "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["passes"], found["examples"]) == (5, 5 * 120)
    assert "--resume auto: continuing from runs/small/001/checkpoints/000004" in result.stderr
    assert "resumes from checkpoint 4, 480 examples into the run" in result.stderr


def test_it_is_plotted_and_handed_to_sinks(folder: Path) -> None:
    drawn = adamctl("plot", "small", cwd=folder)
    assert drawn.returncode == 0 and "small/001: training" in drawn.stdout and "top-1" in drawn.stdout, drawn.stderr
    followed = adamctl("run", "follow", "small", "--to", "csv", cwd=folder)
    assert followed.returncode == 0 and "handed to csv; it ended" in followed.stderr, followed.stderr
    with (folder / "runs" / "small" / "001" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "evaluation"]
    assert [(row["step"], bool(row["top-1/validation"])) for row in rows] == [
        (str(n * 120), True) for n in (1, 2, 3, 4)
    ]
