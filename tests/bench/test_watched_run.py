"""Whole runs as benchmarks watch them, and the scripts that do so."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from adamctl.bench.watched_run import (
    Sample,
    WatchedRun,
    examples_at,
    examples_per_s,
    failure,
    small_experiment,
    steady_examples_per_s,
)
from adamctl.config.load import load_experiment
from adamctl.errors import ConfigurationError, RunFailedError

ROOT = Path(__file__).resolve().parent.parent.parent
DIGITS = str(ROOT / "examples" / "digits.toml")


def test_throughput_is_of_any_times_between_samples() -> None:
    samples = [Sample(1.0, 0), Sample(2.0, 100), Sample(2.5, 100), Sample(4.0, 400)]
    assert [examples_at(samples, at_s) for at_s in (1.0, 1.25, 2.25, 3.0, 4.0)] == [0.0, 25.0, 100.0, 200.0, 400.0]
    assert examples_per_s(samples, 1.5, 3.0) == 100.0


def test_steady_throughput_is_from_one_step_to_another() -> None:
    """64 examples a second, whichever part of a step is at the ends."""
    samples = [Sample(0.1 * number, 64 * (number // 10)) for number in range(60)]
    for start_s, stop_s in ((0.5, 5.5), (0.95, 5.05), (0.5, 4.85)):
        assert steady_examples_per_s(samples, start_s, stop_s) == pytest.approx(64.0)
    assert examples_per_s(samples, 0.5, 4.85) < 60.0
    with pytest.raises(RunFailedError, match="at least two steps"):
        steady_examples_per_s(samples, 1.5, 2.5)


@pytest.mark.parametrize("at_s", [0.5, 4.5])
def test_a_time_at_which_the_run_was_not_looked_at_is_refused(at_s: float) -> None:
    with pytest.raises(RunFailedError, match="more --passes"):
        examples_at([Sample(1.0, 0), Sample(4.0, 400)], at_s)


def test_a_small_experiment_is_a_whole_one(tmp_path: Path) -> None:
    found = load_experiment(small_experiment(str(tmp_path), "small", passes=7, batch=32)).experiment
    assert (found.name, found.data.format, found.train.passes, found.train.batch) == ("small", "digits", 7, 32)


async def test_a_run_is_watched_and_leaves_nothing() -> None:
    async with WatchedRun((DIGITS, "--passes", "100000"), every_s=0.02) as run:
        assert await run.trains() > run.began_s
        assert run.progress is not None and run.progress.examples_total > 0
        assert run.job == "digits" and (await run.address("controller")).startswith("tcp://")
        assert run.cpu_s() > 0
        family = psutil.Process(run.pid).children()
        with pytest.raises(RunFailedError, match="ps-9"):
            run.kill("ps-9")
    assert family and not [process for process in family if process.is_running()]


async def test_a_run_that_ends_has_a_result() -> None:
    async with WatchedRun((DIGITS, "--passes", "1")) as run:
        assert (await run.result())["passes"] == 1


async def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(ConfigurationError, match=r"train\.passes") as error:
        async with WatchedRun((DIGITS, "--set", "train.passes=-1")):
            pass
    assert error.value.exit_code == 2


@pytest.mark.parametrize(("code", "exit_code"), [(1, 1), (2, 2), (3, 1), (-9, 1)])
def test_the_whole_error_of_a_command_is_told(code: int, exit_code: int) -> None:
    before, after = ["starts"] * 20, [f"file {number}" for number in range(15)]
    found = failure("adamctl train", code, "\n".join([*before, "adamctl: error: expected 15 files", *after]))
    assert found.exit_code == exit_code
    assert str(found).splitlines() == [
        f"adamctl train: exit status {code}:", "adamctl: error: expected 15 files", *after,
    ]  # fmt: skip


def test_of_a_command_without_an_error_the_last_lines_are_told() -> None:
    told = str(failure("adamctl train", 1, "\n".join(f"line {number}" for number in range(30))))
    assert told.splitlines()[1:] == [f"line {number}" for number in range(20, 30)]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["kill", "move"])
def test_training_under_change(change: str) -> None:
    line = (sys.executable, str(ROOT / "benchmarks" / "training_under_change.py"), "--change", change, "--json")
    finished = subprocess.run((*line, "--rounds", "1", "--seconds", "2"), capture_output=True, text=True, timeout=600)
    assert not finished.returncode, finished.stderr
    report = json.loads(finished.stdout)
    (found,) = report["results"]
    assert report["bench"] == "training-under-change" and found["ratio"] > 0 and found["ratio_left_alone"] > 0
    assert change == "kill" or found["fewest_copies"] >= 2
    assert change == "move" or found["top1"] >= 0.95


@pytest.mark.slow
def test_time_to_first_step() -> None:
    line = (sys.executable, str(ROOT / "benchmarks" / "time_to_first_step.py"), "--rounds", "1", "--json")
    finished = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert not finished.returncode, finished.stderr
    (found,) = json.loads(finished.stdout)["results"]
    assert found["ours_median_s"] > 0 and found["ours_cpu_median_s"] > 0


def test_an_installation_is_not_compared_with_itself() -> None:
    line = (sys.executable, str(ROOT / "benchmarks" / "time_to_first_step.py"), "--peer-python", sys.executable)
    finished = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2 and "another installation" in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("side", ["ours", "torch"])
def test_distorted_mnist_is_trained_on_by_both_sides(side: str, tmp_path: Path) -> None:
    data = os.environ.get("ADAMCTL_DATA", "")
    if not Path(data, "mnist").is_dir() or (side == "torch" and importlib.util.find_spec("torch") is None):
        pytest.skip("needs MNIST in ADAMCTL_DATA, and PyTorch")
    results = tmp_path / "results.jsonl"
    line = (sys.executable, str(ROOT / "benchmarks" / "mnist_elastic.py"), "--data", data, "--results", str(results))
    line += ("--seeds", "1", "--passes", "1", "--side", side)
    finished = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert not finished.returncode, finished.stderr
    row = json.loads(results.read_text())
    assert (row["side"], row["seed"], row["passes"]) == (side, 1, 1) and row["error"] < 0.05
    summary = json.loads("{" + finished.stdout.partition("\n{")[2])
    assert summary == {side: {"runs": 1, "mean_error": row["error"], "best_error": row["error"], "passes": [1]}}
