"""Replicas in step, and replicas that may run ahead only so far, as real processes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EXAMPLES, Command, Runner, files_named

DIGITS = EXAMPLES / "digits.toml"
TWO = ("train", DIGITS, "--json", "--workers", "2", "--threads", "1")
STEADY = ("--set", "optimizer.schedule.type=constant", "--set", "optimizer.lr=0.02")


def result(command: Command) -> dict[str, Any]:
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    return dict(json.loads(stdout))


def evaluated_well(folder: Path) -> bool:
    """Whether an evaluation on the test part has shown that the run learns."""
    lines = [json.loads(line) for one in files_named(folder, "metrics.jsonl") for line in one.read_text().splitlines()]
    return any(line["kind"] == "evaluation" and line["top1"] > 0.9 for line in lines)


def with_one_stopped_for_a_while(adamctl: Runner, *settings: str) -> dict[str, Any]:
    """One of two workers makes no step for two seconds of a run that is then interrupted; returns its result."""
    command = adamctl.start(*TWO, *STEADY, "--passes", "100000", "--set", "train.evaluate_every=25", *settings)
    command.wait_until(command.trained)
    slowed = command.roles("worker")[0]
    slowed.suspend()
    time.sleep(2.0)
    slowed.resume()
    command.wait_until(lambda: evaluated_well(command.folder))
    command.interrupt()
    code, stdout, stderr = command.wait()
    assert code == 130, stderr
    return dict(json.loads(stdout))


def test_replicas_in_step_learn(adamctl: Runner) -> None:
    found = result(adamctl.start(*TWO, "--passes", "4", "--set", "train.consistency=sync"))
    assert found["examples"] == 4 * 1437
    assert (found["consistency"], found["staleness_p99"]) == ("sync", 0)
    assert found["test_top1"] > 0.5


@pytest.mark.slow
def test_replicas_in_step_learn_digits_as_well_as_others(adamctl: Runner) -> None:
    command = adamctl.start(*TWO, "--passes", "40", "--target", "0.975", "--set", "train.consistency=sync")
    assert result(command)["best_test_top1"] >= 0.975


@pytest.mark.slow
def test_a_killed_replica_does_not_hold_up_the_others_in_step(adamctl: Runner) -> None:
    command = adamctl.start(
        *TWO, *STEADY, "--passes", "400", "--target", "0.97", "--set", "train.evaluate_every=1",
        "--set", "train.consistency=sync",
    )  # fmt: skip
    command.wait_until(command.trained)
    command.roles("worker")[0].kill()
    found = result(command)
    assert found["best_test_top1"] >= 0.97
    assert found["staleness_p99"] == 0


@pytest.mark.slow
def test_a_killed_server_does_not_end_a_run_in_step(adamctl: Runner) -> None:
    command = adamctl.start(
        *TWO, *STEADY, "--ps", "2", "--passes", "400", "--target", "0.97", "--set", "train.evaluate_every=1",
        "--set", "train.consistency=sync",
    )  # fmt: skip
    command.wait_until(command.trained)
    command.roles("ps")[0].kill()
    assert result(command)["best_test_top1"] >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1, 5])
def test_no_replica_runs_further_ahead_than_the_bound(adamctl: Runner, bound: int) -> None:
    found = with_one_stopped_for_a_while(adamctl, "--set", f"train.max_staleness={bound}")
    assert found["max_staleness"] == bound
    assert 0 < found["steps_ahead_max"] <= bound
    assert found["step_waits"] > 0 and found["step_wait_seconds"] > 1.0
    assert found["test_top1"] > 0.9


@pytest.mark.slow
def test_without_a_bound_one_runs_ahead(adamctl: Runner) -> None:
    found = with_one_stopped_for_a_while(adamctl)
    assert found["steps_ahead_max"] > 10
    assert found["step_waits"] == 0
