"""Every role in its own process, as examples/by_hand.md says; jobs side by side; a cluster that outlives its jobs."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.documents import commands_in, run_blocks
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.ports import free_ports

DIGITS = EXAMPLES / "digits.toml"


class Cluster:
    """A controller and other roles, each started by hand."""

    def __init__(self, runner: Runner, token: str = "", controller_flags: tuple[str, ...] = ()) -> None:
        self.runner = runner
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.environment = {"ADAMCTL_CONTROLLER": self.address} | ({"ADAMCTL_TOKEN": token} if token else {})
        port = self.address.rpartition(":")[2]
        self.start("controller", "--port", port, "--dir", str(runner.folder / "controller"), *controller_flags)

    def start(self, role: str, *arguments: str) -> Command:
        return self.runner.start(role, "start", *arguments, **self.environment)

    def nodes(self) -> dict[str, str]:
        code, stdout, _ = self.runner.run("status", "--json", timeout_s=30, **self.environment)
        return {node["node"]: node["role"] for node in json.loads(stdout)["nodes"]} if code in (0, 4) else {}

    def members(self, *names: str) -> None:
        self.runner.commands[0].wait_until(lambda: set(names) <= set(self.nodes()))


def by_hand(adamctl: Runner, experiment: Path, *settings: str, data: tuple[str, ...] = ()) -> float:
    """Does what examples/by_hand.md says and returns the best accuracy on the test set."""
    cluster = Cluster(adamctl)
    for name in ("ps-1", "ps-2"):
        cluster.start("ps", "--name", name)
    cluster.start("data", "--name", "data-1", *data)
    for name in ("worker-1", "worker-2"):
        cluster.start("worker", "--name", name, "--threads", "1")
    flags = [part for setting in ("cluster.workers=2", "cluster.ps=2", *settings) for part in ("--set", setting)]
    coordinator = cluster.start(
        "coordinator", "--experiment", str(experiment), *flags, "--run-dir", str(adamctl.folder / "by-hand")
    )
    code, _, stderr = coordinator.wait(timeout_s=300)
    assert code == 0, stderr
    summary = json.loads((adamctl.folder / "by-hand" / "summary.json").read_text())
    assert summary["roles"]["worker"] == 2 and summary["roles"]["ps"] == 2
    cluster.members("ps-1", "ps-2", "data-1", "worker-1", "worker-2")
    return float(summary["best_test_top1"])


@pytest.mark.slow
def test_mnist_by_hand_reaches_99_percent(adamctl: Runner, mnist_folder: Path) -> None:
    data = ("--data", str(mnist_folder))
    assert by_hand(adamctl, EXAMPLES / "mnist.toml", "train.passes=6", data=data) >= 0.99


def test_two_jobs_at_once_on_one_cluster_with_a_token(adamctl: Runner) -> None:
    cluster = Cluster(adamctl, token="secret")
    cluster.start("ps", "--name", "ps-1")
    cluster.start("data", "--name", "data-1")
    for name in ("worker-1", "worker-2"):
        cluster.start("worker", "--name", name, "--threads", "1")
    cluster.members("ps-1", "data-1", "worker-1", "worker-2")
    jobs = [
        adamctl.start(
            "train", DIGITS, "--join", cluster.address, "--json", "--seed", str(seed), "--passes", "25",
            "--target", "0.95", "--set", "train.evaluate_every=1", "--set", f'name="job{seed}"', **cluster.environment,
        )
        for seed in (1, 2)
    ]  # fmt: skip
    for job in jobs:
        code, stdout, stderr = job.wait()
        assert code == 0, stderr
        assert json.loads(stdout)["best_test_top1"] >= 0.95, stderr
    cluster.members("ps-1", "data-1", "worker-1", "worker-2")


@pytest.mark.slow
def test_a_killed_partition_is_replaced_by_the_spare_as_by_hand_says(adamctl: Runner) -> None:
    """With more passes, so that it is killed while it trains."""
    cluster = Cluster(adamctl)
    for name in ("ps-1", "ps-2"):
        cluster.start("ps", "--name", name)
    cluster.start("data", "--name", "data-1")
    first = cluster.start("worker", "--name", "worker-1", "--threads", "1")
    cluster.start("worker", "--name", "worker-2", "--threads", "1")
    (words,) = [
        words
        for line in run_blocks("examples/by_hand.md")
        for words in commands_in(line)
        if words[0] == "coordinator" and "cluster.partitions=2" in words
    ]
    words = [
        re.sub(r"^train\.passes=\d+$", "train.passes=40", word.replace("examples/", f"{EXAMPLES}/")) for word in words
    ]
    assert "train.passes=40" in words
    coordinator = adamctl.start(*words, **cluster.environment)
    coordinator.wait_until(coordinator.trained)
    cluster.start("worker", "--name", "worker-3", "--threads", "1")
    cluster.members("worker-3")
    first.process.kill()
    first.wait(30)
    code, _, stderr = coordinator.wait()
    assert code == 0, stderr
    assert "examples are handed out again" in stderr and "worker worker-3 takes part as partition" in stderr, stderr


def test_a_wrong_token_is_refused_with_a_clear_message(adamctl: Runner) -> None:
    cluster = Cluster(adamctl, token="secret")
    adamctl.commands[0].wait_until(lambda: cluster.nodes() is not None and cluster.runner.run(
        "status", "--json", timeout_s=30, **cluster.environment)[0] in (0, 4))  # fmt: skip
    code, _, stderr = adamctl.run("status", ADAMCTL_CONTROLLER=cluster.address, ADAMCTL_TOKEN="wrong", timeout_s=30)
    assert code == 2
    assert "token" in stderr and "Traceback" not in stderr


def test_an_unreachable_controller_ends_with_3_and_its_address(adamctl: Runner) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    code, _, stderr = adamctl.run("status", ADAMCTL_CONTROLLER=address, timeout_s=60)
    assert code == 3
    assert address in stderr


def test_a_busy_port_is_named(adamctl: Runner) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, stderr = adamctl.run("controller", "start", "--port", str(port), "--dir", str(adamctl.folder / "c"))
    assert code == 2
    assert str(port) in stderr and "Traceback" not in stderr
