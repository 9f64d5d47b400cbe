"""One command to a trained network, and what is there afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import EXAMPLES, ROOT, Runner

DIGITS = EXAMPLES / "digits.toml"
SOON = ("--target", "0.95", "--set", "train.evaluate_every=1")
"""A run ends as soon as it is right."""


def test_digits_reach_97_percent_and_leave_a_run_folder(adamctl: Runner) -> None:
    code, stdout, stderr = adamctl.run("train", DIGITS, "--json", "--target", "0.97")
    assert code == 0, stderr
    result = json.loads(stdout)
    assert result["schema_version"] >= 1
    assert result["best_test_top1"] >= 0.97, stderr
    assert result["roles"] == {"controller": 1, "coordinator": 1, "data": 1, "ps": 1, "worker": 1}
    assert {"0.9", "0.97"} <= {str(float(key)) for key in result["time_to"]}
    for key in ("run", "passes", "examples", "train_seconds", "images_per_s", "connections_per_s", "test_top1",
                "updates", "staleness_p50", "staleness_p99", "data_read_bytes"):  # fmt: skip
        assert key in result, f"{key} is missing from {sorted(result)}"
    assert result["data_read_bytes"] > 0
    (folder,) = (adamctl.folder / "runs" / "digits").iterdir()
    expected = {"experiment.toml", "metrics.jsonl", "logs", "checkpoints", "summary.json"}
    assert expected <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "summary.json").read_text())["best_test_top1"] == result["best_test_top1"]
    assert "\x1b" not in stderr, "control codes without a terminal"

    code, stdout, stderr = adamctl.run("eval", "digits", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["top1"] == pytest.approx(result["test_top1"], abs=1e-9)


@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "adagrad"])
def test_two_workers_and_two_servers_in_one_command(adamctl: Runner, optimizer: str) -> None:
    lr = {"sgd": 0.1, "adagrad": 0.02}[optimizer]
    code, stdout, stderr = adamctl.run(
        "train", DIGITS, "--json", "--workers", "2", "--ps", "2", "--threads", "1", "--passes", "20",
        "--set", f"optimizer.type={optimizer}", "--set", f"optimizer.lr={lr}", "--set", "train.warmstart_steps=50",
        *SOON,
    )  # fmt: skip
    assert code == 0, stderr
    result = json.loads(stdout)
    assert result["roles"]["worker"] == 2 and result["roles"]["ps"] == 2
    assert result["best_test_top1"] >= 0.95, stderr


def test_factors_gradients_and_longer_intervals_train_too(adamctl: Runner) -> None:
    for settings in (("train.protocol=factors", "train.n_push=2", "train.n_fetch=3"), ("train.protocol=gradient",)):
        flags = [part for setting in settings for part in ("--set", setting)]
        code, stdout, stderr = adamctl.run("train", DIGITS, "--json", "--passes", "14", *SOON, *flags)
        assert code == 0, stderr
        assert json.loads(stdout)["best_test_top1"] >= 0.95, stderr


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_16_bits_on_the_wire_train_as_well(adamctl: Runner, wire: str) -> None:
    code, stdout, stderr = adamctl.run(
        "train", DIGITS, "--json", "--set", f"train.wire_push={wire}", "--set", f"train.wire_pull={wire}"
    )
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.97, stderr


def test_an_interrupted_run_is_resumed_where_it_was(adamctl: Runner) -> None:
    command = adamctl.start("train", DIGITS, "--set", "train.passes=14", "--set", "train.checkpoint_every=0")
    command.wait_until(command.trained)
    command.interrupt()
    code, _, stderr = command.wait()
    assert code == 130, stderr
    (folder,) = (adamctl.folder / "runs" / "digits").iterdir()
    (manifest,) = folder.glob("checkpoints/*/manifest.json")
    seen = json.loads(manifest.read_text())
    assert seen["files"]
    code, stdout, stderr = adamctl.run(
        "train", DIGITS, "--resume", folder, "--json", "--set", "train.passes=14", "--target", "0.95",
        "--set", "train.evaluate_every=1",
    )  # fmt: skip
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.95


def test_the_python_example_trains_and_reads_parameters_back(tmp_path: Path) -> None:
    example = subprocess.run(
        [sys.executable, str(EXAMPLES / "fit_digits.py")],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, env=None,
    )  # fmt: skip
    assert example.returncode == 0, example.stderr
    assert "test accuracy" in example.stdout and "conv2d1.weight" in example.stdout


def test_the_regression_example_comes_near_the_noise(tmp_path: Path) -> None:
    """scikit-learn's network of the same size has 1.07 to 1.13, a linear function 2.58."""
    example = subprocess.run(
        [sys.executable, str(EXAMPLES / "fit_friedman.py")], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert example.returncode == 0, example.stderr
    assert 1.0 < float(example.stdout.split("test rmse ")[1].split()[0]) < 1.15, example.stdout


@pytest.mark.slow
def test_the_autoencoder_example_restores_digits_better_than_a_linear_one(adamctl: Runner) -> None:
    """Principal components, as many as the code has numbers, restore the test images with an rmse of 0.158."""
    code, stdout, stderr = adamctl.run(
        "train", EXAMPLES / "digits_autoencoder.toml", "--json", "--threads", "1", timeout_s=200
    )
    assert code == 0, stderr
    trained = json.loads(stdout)
    assert trained["metric"] == "rmse" and trained["best_metric_value"] < 0.148, stderr
    code, stdout, stderr = adamctl.run("eval", trained["run_folder"], "--json")
    assert code == 0 and json.loads(stdout)["metric_value"] == pytest.approx(trained["best_metric_value"], rel=1e-3)


def test_mnist_learns(adamctl: Runner, mnist_folder: Path) -> None:
    code, stdout, stderr = adamctl.run(
        "train", EXAMPLES / "mnist.toml", "--data", mnist_folder, "--json", "--passes", "1", timeout_s=200
    )
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [(), ("--workers", "2", "--ps", "2", "--passes", "6")], ids=["one worker", "two workers, two servers"]
)
def test_mnist_reaches_99_percent(adamctl: Runner, mnist_folder: Path, flags: tuple[str, ...]) -> None:
    example = EXAMPLES / "mnist.toml"
    code, stdout, stderr = adamctl.run("train", example, "--data", mnist_folder, "--json", *flags, timeout_s=300)
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.99, stderr


def test_the_examples_are_valid() -> None:
    for file in sorted(EXAMPLES.glob("*.toml")):
        checked = subprocess.run(
            [sys.executable, "-m", "adamctl", "config", "check", str(file)],
            capture_output=True, text=True, timeout=30, cwd=ROOT,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr
