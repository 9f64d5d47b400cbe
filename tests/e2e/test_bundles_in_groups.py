"""Replicas of two workers and a batch algorithm, as a user starts them: the same bits whatever is between members."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.trained_bits import digest

DIGITS = EXAMPLES / "digits_lbfgs.toml"
PASSES = 80


def started(adamctl: Runner, workers: int, *arguments: str, **environment: str) -> Command:
    cluster = ("--workers", str(workers), "--set", f"cluster.partitions={min(workers, 2)}", "--passes", str(PASSES))
    return adamctl.start("train", DIGITS, *cluster, *arguments, "--json", **environment)


def ended(command: Command) -> tuple[dict[str, Any], str]:
    """Returns what a run prints as JSON, and what it says."""
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    result: dict[str, Any] = json.loads(stdout)
    assert result["batch"]["evaluations"] == PASSES
    return result, stderr


def iterations(adamctl: Runner) -> int:
    """Returns how many iterations the run has made that is not for comparison."""
    metrics = adamctl.folder / "runs" / "digits_lbfgs" / "001" / "metrics.jsonl"
    return metrics.read_text().count('"kind": "iteration"') if metrics.exists() else 0


@pytest.mark.slow
def test_the_bits_depend_neither_on_the_network_nor_on_flights_threads_groups_and_servers(adamctl: Runner) -> None:
    found = [
        ended(started(adamctl, workers, *arguments, ADAMCTL_TRANSPORT=transport))[0]
        for workers, arguments, transport in (
            (2, ("--threads", "1", "--set", "cluster.flights=1"), "auto"),
            (2, ("--threads", "2", "--ps", "2"), "tcp"),
            (4, ("--threads", "1", "--set", "cluster.flights=4"), "unix"),
        )
    ]
    assert len({digest(one["run_folder"]) for one in found}) == 1
    alone = ended(started(adamctl, 1))[0]
    assert found[0]["batch"]["loss"] == pytest.approx(alone["batch"]["loss"], rel=0.2), "rounding alone differs"
    assert found[0]["test_top1"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_member_costs_no_bit(adamctl: Runner, transport: str, victim: int) -> None:
    right = digest(ended(started(adamctl, 2, "--set", "name=right"))[0]["run_folder"])
    command = started(adamctl, 2, ADAMCTL_TRANSPORT=transport)
    command.wait_until(lambda: iterations(adamctl) >= 10)
    command.roles("worker")[victim].kill()
    result, stderr = ended(command)
    assert "is dissolved: partition" in stderr
    assert digest(result["run_folder"]) == right and result["batch"]["restarts"] == 0


@pytest.mark.slow
def test_a_run_that_is_interrupted_goes_on_with_the_same_bits(adamctl: Runner) -> None:
    right = digest(ended(started(adamctl, 2, "--set", "name=right"))[0]["run_folder"])
    command = started(adamctl, 2)
    command.wait_until(lambda: iterations(adamctl) >= 10)
    command.interrupt()
    code, _, stderr = command.wait()
    assert code == 130, stderr
    result, _ = ended(started(adamctl, 4, "--ps", "2", "--resume", "auto"))
    assert digest(result["run_folder"]) == right
