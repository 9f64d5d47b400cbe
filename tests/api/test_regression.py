"""A model trained on targets, numbers to come close to: by real processes, and what is done with it afterwards."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import adamctl as adam
from adamctl.cli.main import application
from adamctl.errors import ConfigurationError

EXPERIMENT = """\
name = "line"
[data]
format = "npz"
source = "./line.npz"
scale = "none"
validation = 0.2
[model]
input = [3]
loss = "mean_squared_error"
[[model.layers]]
type = "dense"
units = 2
[optimizer]
lr = 0.1
[train]
passes = 30
batch = 8
target = 0.1
[cluster]
threads = 1
"""
WEIGHTS = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], np.float32)
SHIFT = np.array([4.0, -1.0], np.float32)


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and what a linear function makes of them, with a little noise."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 3)).astype(np.float32)
    return x, (x @ WEIGHTS.T + SHIFT + 0.02 * random.standard_normal((count, 2))).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run that ended by its target, to be read only, and what `train --json` printed."""
    folder = tmp_path_factory.mktemp("line")
    (folder / "line.toml").write_text(EXPERIMENT)
    (x, y), (test_x, test_y) = points(120, 1), points(30, 2)
    np.savez(folder / "line.npz", x_train=x, targets_train=y, x_test=test_x, targets_test=test_y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAMCTL_KERNELS", "numpy")
        made = invoke(folder, "train", str(folder / "line.toml"), "--json")
    assert made.exit_code == 0, made.output
    return folder, json.loads(made.stdout)


def invoke(folder: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(application, [command, *arguments, "--run-dir", str(folder / "runs")])


def test_a_run_is_judged_by_its_root_mean_squared_error(trained: tuple[Path, dict[str, Any]]) -> None:
    _, result = trained
    assert (result["metric"], result["larger_is_better"], result["top1"]) == ("rmse", False, None)
    assert result["best_metric_value"] == result["metric_value"] <= 0.1
    assert result["passes"] < 30, "it ends where its target is reached"
    assert list(result["time_to"]) == ["0.1"]
    assert result["best"]["metric_value"] == pytest.approx(result["best"]["loss"] ** 0.5)


def test_its_lines_name_the_metric(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    lines = [json.loads(line) for line in (folder / "runs/line/001/metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert all(line["top1"] is None and line["metric"] == "rmse" for line in evaluations)
    values = [line["metric_value"] for line in evaluations]
    assert values == sorted(values, reverse=True) and len(values) > 1
    assert all(line["train_top1"] is None for line in lines if line["kind"] == "progress")
    assert f"{values[-1]:.4g}, best {values[-1]:.4g}" in _shown(folder, "show", "line")
    assert f"rmse {values[-1]:.4g}" in _shown(folder, "list")


def _shown(folder: Path, *arguments: str) -> str:
    made = CliRunner().invoke(application, ["run", *arguments, "--run-dir", str(folder / "runs")])
    assert made.exit_code == 0, made.output
    return made.output


def test_eval_measures_it_and_refuses_a_confusion_matrix(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    found = json.loads(invoke(folder, "eval", "line", "--json").stdout)
    expected = float(np.sqrt(np.mean((outputs(folder, points(30, 2)[0]) - points(30, 2)[1]) ** 2)))
    assert found["metric"] == "rmse" and found["metric_value"] == pytest.approx(expected, rel=1e-5)
    assert found["loss"] == pytest.approx(expected**2, rel=1e-5) and found["correct"] is found["top1"] is None
    told = invoke(folder, "eval", "line")
    assert f"{expected:.4g}" in told.output and "rmse" in told.output and "correct" not in told.output
    assert "the best on the validation part (rmse 0." in told.stderr
    refused = invoke(folder, "eval", "line", "--confusion")
    assert isinstance(refused.exception, ConfigurationError) and "trained on targets" in str(refused.exception)


def outputs(folder: Path, x: np.ndarray) -> np.ndarray:
    stored = adam.load("line", runs=folder / "runs").parameters()
    return np.asarray(x @ stored["dense1.weight"].T + stored["dense1.bias"])


def test_predict_gives_numbers(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = trained
    x = points(2, 5)[0]
    np.savez(tmp_path / "some.npz", x=x)
    found = json.loads(invoke(folder, "predict", "line", str(tmp_path / "some.npz"), "--json").stdout)["predictions"]
    np.testing.assert_allclose([one["outputs"] for one in found], outputs(folder, x), rtol=1e-5)
    lines = invoke(folder, "predict", "line", str(tmp_path / "some.npz"), "--csv").stdout.splitlines()
    assert lines[0] == "image,output_1,output_2" and len(lines) == 3
    assert "output_2" in invoke(folder, "predict", "line", str(tmp_path / "some.npz")).output


def test_a_picture_of_it_has_the_metric(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    drawn = invoke(folder, "plot", "line")
    assert drawn.exit_code == 0 and "rmse" in drawn.output and "top-1" not in drawn.output, drawn.output


@pytest.mark.slow
def test_arrays_are_fitted_by_name_of_the_loss(tmp_path: Path) -> None:
    net = adam.Sequential([adam.Dense(2)], input_shape=(3,), loss="mean_squared_error")
    data = (*points(120, 1), *points(30, 2))
    run = adam.fit(net, data, optimizer=adam.SGD(0.1), passes=10, runs=tmp_path, quiet=True)
    assert run.result["metric_value"] < 0.2
    np.testing.assert_allclose(run.predict(points(30, 2)[0]), points(30, 2)[1], atol=0.5)


OWN = """
import numpy as np
import adamctl as adam


class Huber(adam.Loss):
    metric_name = "within"
    larger_is_better = True

    def evaluate(self, outputs, targets):
        away = np.abs(outputs - targets)
        return np.where(away < 1, away**2 / 2, away - 0.5).sum(axis=1)

    def error(self, outputs, targets, out):
        out[...] = np.clip(outputs - targets, -1, 1) / len(outputs)

    def measure(self, outputs, targets):
        return (np.abs(outputs - targets) < 0.3).sum(), outputs.size

    def metric(self, tally):
        return tally.sums[0] / tally.sums[1]
"""


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_loss_of_ones_own_is_imported_by_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Its module lies where only this process looks; its metric is made of the sums of all."""
    (tmp_path / "losses_of_fit.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = importlib.import_module("losses_of_fit").Huber
    adam.check_loss(own)
    net, (test_x, test_y) = adam.Sequential([adam.Dense(2)], (3,), loss="mean_squared_error"), points(30, 2)
    run = adam.fit(
        net, (*points(120, 1), test_x, test_y), loss=own, optimizer=adam.SGD(0.2), passes=12, runs=tmp_path / "runs",
        partitions=partitions, workers=partitions, threads=1, quiet=True,
    )  # fmt: skip
    share = float((np.abs(run.predict(test_x) - test_y) < 0.3).mean())
    assert (run.result["metric"], run.result["metric_value"]) == ("within", pytest.approx(share)) and share > 0.9
    assert run.model.loss == "losses_of_fit:Huber"


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2])
def test_an_autoencoder_restores_its_inputs(tmp_path: Path, partitions: int) -> None:
    """Of bytes, which are scaled where they are read: targets are what the model gets."""
    random = np.random.default_rng(3)
    pictures = (random.random((200, 2)) @ random.random((2, 16)) * 127).astype(np.uint8).reshape(200, 4, 4, 1)
    known = np.arange(200) % 20
    np.savez(tmp_path / "made.npz", x_train=pictures, y_train=known, x_test=pictures[:40], y_test=known[:40])
    net = adam.Sequential([adam.Dense(4), adam.Dense(16)], (4, 4, 1), loss="mean_squared_error")
    data = adam.DataConfig(format="npz", source=str(tmp_path / "made.npz"), scale="standard", targets="inputs")
    run = adam.fit(
        net, data, optimizer=adam.SGD(0.1), passes=60, batch=16, runs=tmp_path / "runs", workers=partitions,
        partitions=partitions, threads=1, quiet=True,
    )  # fmt: skip
    assert run.result["metric_value"] < 0.3, "all numbers together have a deviation of 1"
    loaded = adam.load("run", runs=tmp_path / "runs")
    scaled = (pictures[:40].reshape(40, 16) - pictures.mean()) / pictures.std()
    expected = float(np.sqrt(np.mean((loaded.predict(pictures[:40]) - scaled) ** 2)))
    assert loaded.evaluate()["metric_value"] == pytest.approx(expected, rel=1e-3)
    assert run.result["metric_value"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_an_autoencoder_leaves_damaged_examples_out(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    inputs = (random.random((200, 2)) @ random.random((2, 16))).astype(np.float32)
    inputs[[3, 70, 71]] = np.nan
    np.savez(
        tmp_path / "a.npz", x_train=inputs, y_train=np.zeros(200, int), x_test=inputs[:40], y_test=np.zeros(40, int)
    )
    net = adam.Sequential([adam.Dense(4), adam.Dense(16)], (16,), loss="mean_squared_error")
    data = adam.DataConfig(
        format="npz", source=str(tmp_path / "a.npz"), scale="none", targets="inputs", on_error="skip"
    )
    run = adam.fit(
        net, data, optimizer=adam.SGD(0.1), passes=40, batch=10, runs=tmp_path / "runs", pass_fraction=1.0, threads=1,
        quiet=True,
    )  # fmt: skip
    assert run.result["skipped"] == 3 * 40 and run.result["evaluation_skipped"] == 1
    assert run.result["metric_value"] < 0.1
