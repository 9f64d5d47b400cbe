"""A process dies, or a person interrupts, at any moment of a run (bar 4 of the first release)."""

from __future__ import annotations

import json
import random
import signal

import psutil
import pytest

from tests.e2e.conftest import EXAMPLES, Runner, files_named

DIGITS = EXAMPLES / "digits.toml"


def kill_a_worker(adamctl: Runner, seed: int) -> None:
    command = adamctl.start(
        "train", DIGITS, "--json", "--workers", "2", "--threads", "1", "--target", "0.95", "--passes", "400",
        "--set", "train.evaluate_every=1", "--set", "optimizer.schedule.type=constant", "--set", "optimizer.lr=0.05",
        "--set", "train.batch=32", "--seed", str(seed),
    )  # fmt: skip
    command.wait_until(command.trained)
    random.Random(seed).choice(command.roles("worker")).kill()
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.95


def kill_the_only_data_server(adamctl: Runner, seed: int) -> None:
    command = adamctl.start(
        "train", DIGITS, "--json", "--passes", "12", "--set", "train.checkpoint_every=1", "--seed", str(seed)
    )
    command.wait_until(lambda: files_named(adamctl.folder, "manifest.json"))
    command.roles("data")[0].kill()
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    assert "data-1 ended: killed by SIGKILL; restarting it" in stderr
    assert json.loads(stdout)["passes"] == 12


def kill_the_only_server(adamctl: Runner, seed: int) -> None:
    """It keeps its part of the model on disk: it is started again, and the run reaches its target."""
    command = adamctl.start(
        "train", DIGITS, "--json", "--workers", "2", "--threads", "1", "--target", "0.95", "--passes", "400",
        "--set", "train.evaluate_every=1", "--set", "optimizer.schedule.type=constant", "--set", "optimizer.lr=0.05",
        "--set", "train.batch=32", "--seed", str(seed),
    )  # fmt: skip
    command.wait_until(command.trained)
    command.roles("ps")[0].kill()
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    assert "ps-1 ended: killed by SIGKILL; restarting it" in stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.95
    assert not list(adamctl.folder.rglob("log.mdb")), "a finished run keeps its checkpoints only"


def kill_the_only_server_without_a_store(adamctl: Runner, seed: int) -> None:
    command = adamctl.start("train", DIGITS, "--passes", "2000", "--set", "cluster.store=none", "--seed", str(seed))
    command.wait_until(command.trained)
    command.roles("ps")[0].kill()
    code, _, stderr = command.wait(timeout_s=30)
    assert code == 1, stderr
    last = [line for line in stderr.splitlines() if line.strip()][-1]
    assert "ps" in stderr.rpartition("adamctl: error:")[2], stderr
    assert last, stderr


def kill_the_coordinator(adamctl: Runner, seed: int) -> None:
    """It alone knows how far the run is: the run ends, and goes on from its checkpoint when it is told to."""
    arguments = ("train", DIGITS, "--passes", "8", "--set", "train.checkpoint_every=1", "--seed", str(seed))
    command = adamctl.start(*arguments)
    command.wait_until(lambda: files_named(adamctl.folder, "manifest.json"))
    command.roles("coordinator")[0].kill()
    code, _, stderr = command.wait(timeout_s=30)
    assert code == 1, stderr
    assert "coordinator" in stderr.rpartition("adamctl: error:")[2], stderr
    again = adamctl.start(*arguments, "--resume", "auto", "--json")
    code, stdout, stderr = again.wait()
    assert code == 0, stderr
    assert "resumes from checkpoint" in stderr
    assert json.loads(stdout)["passes"] == 8


def end_all_processes(adamctl: Runner, seed: int) -> None:
    """SIGTERM to the command and all that it has started, as of `ray job stop`, Slurm or a service manager."""
    command = adamctl.start("train", DIGITS, "--passes", "2000", "--seed", str(seed))
    command.wait_until(command.trained)
    for process in [*psutil.Process(command.process.pid).children(recursive=True), command.process]:
        process.send_signal(signal.SIGTERM)
    code, _, stderr = command.wait(timeout_s=60)
    assert code == 143, stderr
    assert list(adamctl.folder.rglob("manifest.json")), f"no checkpoint\n{stderr}"


def interrupt(adamctl: Runner, seed: int) -> None:
    chance = random.Random(seed)
    command = adamctl.start("train", DIGITS, "--passes", "2000", "--seed", str(seed))
    begun = chance.random() < 0.7
    if begun:
        command.wait_until(command.trained)
    else:
        command.wait_until(lambda: command.roles(chance.choice(["controller", "worker", "ps"])))
    command.interrupt()
    code, _, stderr = command.wait(timeout_s=60)
    assert code == 130, stderr
    if begun:
        assert list(adamctl.folder.rglob("manifest.json")), f"no checkpoint\n{stderr}"


FAULTS = [
    kill_a_worker,
    kill_the_only_data_server,
    kill_the_only_server,
    kill_the_only_server_without_a_store,
    kill_the_coordinator,
    interrupt,
    end_all_processes,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(adamctl: Runner, fault) -> None:
    fault(adamctl, 1)
    assert not adamctl.commands[-1].family(), "processes left behind"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_ten_times(adamctl: Runner, fault, seed: int) -> None:
    fault(adamctl, seed)
    assert not adamctl.commands[-1].family(), "processes left behind"
