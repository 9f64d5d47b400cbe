"""A batch algorithm ends with the same parameters, to the last bit, on any cluster, and after it was resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.test_by_hand import Cluster
from tests.e2e.trained_bits import digest

PASSES = 40
TRANSPORTS = ("auto", "unix", "tcp")
CLUSTERS = [
    (ps, workers, 1 + (ps + workers) % 3, TRANSPORTS[(ps + 2 * workers) % 3])
    for ps in (1, 2, 3) for workers in (1, 2, 3)
]  # fmt: skip


def started(adamctl: Runner, algorithm: str, *arguments: str, transport: str = "auto") -> Command:
    experiment = EXAMPLES / f"digits_{algorithm}.toml"
    budget = ("--passes", str(PASSES), "--set", "train.checkpoint_every=8")
    return adamctl.start("train", experiment, *budget, *arguments, "--json", ADAMCTL_TRANSPORT=transport)


def ended(command: Command) -> str:
    """Returns the hash of a run's parameters."""
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    result: dict[str, Any] = json.loads(stdout)
    assert (result["batch"]["evaluations"], result["batch"]["restarts"]) == (PASSES, 0), result
    return digest(result["run_folder"])


def iterations(adamctl: Runner, algorithm: str) -> int:
    """Returns how many iterations the first run of an algorithm has made."""
    metrics = adamctl.folder / "runs" / f"digits_{algorithm}" / "001" / "metrics.jsonl"
    return metrics.read_text().count('"kind": "iteration"') if metrics.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["lbfgs", "cg", "owlqn"])
def test_the_bits_depend_neither_on_servers_nor_workers_threads_and_networks(adamctl: Runner, algorithm: str) -> None:
    clusters = CLUSTERS if algorithm == "lbfgs" else CLUSTERS[::4]
    found = {
        (ps, workers, threads, transport): ended(
            started(
                adamctl, algorithm, "--ps", str(ps), "--workers", str(workers), "--threads", str(threads),
                transport=transport,
            )
        )
        for ps, workers, threads, transport in clusters
    }  # fmt: skip
    assert len(set(found.values())) == 1, found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["lbfgs", "cg", "owlqn"])
@pytest.mark.parametrize("how", ["interrupted", "coordinator killed", "all killed"])
def test_a_run_that_has_ended_goes_on_with_the_same_bits_on_another_number_of_servers(
    adamctl: Runner, algorithm: str, how: str
) -> None:
    right = ended(started(adamctl, algorithm, "--set", "name=straight"))
    command = started(adamctl, algorithm, "--ps", "1", "--workers", "2")
    command.wait_until(lambda: iterations(adamctl, algorithm) >= 10)
    if how == "interrupted":
        command.interrupt()
        assert command.wait()[0] == 130
    elif how == "coordinator killed":
        command.roles("coordinator")[0].kill()
        assert command.wait()[0] not in (0, 130)
    else:
        for process in command.family():
            process.kill()
        command.process.kill()
        command.wait()
    resumed = ("--ps", "3", "--workers", "1", "--resume", "auto")
    assert ended(started(adamctl, algorithm, *resumed, transport="tcp")) == right
    assert Path(adamctl.folder / "runs" / f"digits_{algorithm}" / "001").exists()


@pytest.mark.slow
def test_a_worker_with_other_kernels_is_refused_and_the_run_says_why(adamctl: Runner) -> None:
    cluster = Cluster(adamctl)
    cluster.start("ps", "--name", "ps-1")
    cluster.start("data", "--name", "data-1")
    cluster.start("worker", "--name", "worker-1", "--threads", "1")
    settings = ("train.passes=300", "cluster.workers=2")
    flags = [part for setting in settings for part in ("--set", setting)]
    folder = adamctl.folder / "by-hand"
    experiment = EXAMPLES / "digits_lbfgs.toml"
    coordinator = cluster.start("coordinator", "--experiment", str(experiment), "--run-dir", str(folder), *flags)
    coordinator.wait_until(coordinator.trained)
    cluster.environment["ADAMCTL_KERNELS"] = "numpy"
    cluster.start("worker", "--name", "worker-2", "--threads", "1")
    code, _, stderr = coordinator.wait()
    assert code == 0, stderr
    assert "worker worker-2 computes otherwise than the workers of this run: kernels is numpy, expected" in stderr
