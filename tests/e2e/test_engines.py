"""Whole trainings on hosts that a real Ray and a real Slurm give, over TLS, of which one is killed, removed or frozen.

A client beside the run adds 1 to every value of a job with three copies and counts what was acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Protocol

import numpy as np
import psutil
import pytest

import adamctl as adam
from tests.e2e.conftest import EXAMPLES, Command, Runner, files_named
from tests.launch.places.ray_cluster import RayCluster, ray_cluster
from tests.launch.places.slurm_cluster import SlurmCluster, slurm_cluster

DIGITS = EXAMPLES / "digits.toml"
HOSTS = 3
COPIES = ("--ps", "3", "--set", "cluster.replication=3")
LONG = ("--passes", "100000")
KILLS = int(os.environ.get("ADAMCTL_ENGINE_KILLS", "20"))
DEADLINE_S = 180.0

pytestmark = pytest.mark.slow


class Machines(Protocol):
    """A cluster with one node more than a run has hosts."""

    engine: str
    environment: dict[str, str]

    def processes(self) -> list[psutil.Process]:
        """Returns what runs on the nodes for runs of ours."""
        ...

    def signal_node_of(self, agent: psutil.Process, number: signal.Signals) -> None:
        """Kills, stops or continues the node on which an agent runs."""
        ...

    def mend(self) -> None:
        """Makes all nodes usable again."""
        ...

    def given(self) -> int:
        """Returns how many jobs, or groups of actors, the engine has for us."""
        ...


def ours(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and "adamctl" in process.cmdline()[:4]:
                found.append(process)
    return found


class OnRay:
    engine = "ray"

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self.environment = cluster.environment

    def processes(self) -> list[psutil.Process]:
        return ours([one for node in self._cluster.nodes for one in self._cluster.processes(node)])

    def signal_node_of(self, agent: psutil.Process, number: signal.Signals) -> None:
        node = self._cluster.node_of(agent.pid)
        if number == signal.SIGKILL:
            self._cluster.remove_node(node)
        else:
            self._cluster.signal_node(node, number)

    def mend(self) -> None:
        while len(self._cluster.nodes) < HOSTS + 1:
            self._cluster.add_node()

    def given(self) -> int:
        return self._cluster.given()


class OnSlurm:
    engine = "slurm"

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self.environment = cluster.environment
        self._lost: set[str] = set()

    def processes(self) -> list[psutil.Process]:
        found = []
        for node in self._cluster.nodes:
            for pid in self._cluster.processes(node):
                with suppress(psutil.Error):
                    found.append(psutil.Process(pid))
        return ours(found)

    def signal_node_of(self, agent: psutil.Process, number: signal.Signals) -> None:
        node = agent.environ()["SLURMD_NODENAME"]
        self._cluster.signal_node(node, number)
        if number == signal.SIGKILL:
            self._lost.add(node)

    def mend(self) -> None:
        while self._lost:
            self._cluster.start_node(self._lost.pop())
        count = str(len(self._cluster.nodes))
        self._cluster.until(lambda: self._cluster.command("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == count)

    def given(self) -> int:
        return len(self._cluster.jobs())


@pytest.fixture(scope="module", params=["ray", "slurm"])
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if request.param == "ray":
        with ray_cluster() as cluster:
            yield OnRay(cluster)
    else:
        with slurm_cluster(tmp_path_factory.mktemp("slurm"), HOSTS + 1) as slurm:
            yield OnSlurm(slurm)


@pytest.fixture(autouse=True)
def mended(machines: Machines) -> None:
    machines.mend()


class Count:
    """Adds 1 to every value as often as it can; `acknowledged` is how often that was acknowledged."""

    def __init__(self, controller: str, certificate: Path) -> None:
        self.acknowledged = 0
        self.error: Exception | None = None
        self._client = adam.ParameterClient(f"adam://{controller}/count", tls_dir=certificate)
        self._client.register({"w": np.zeros(5000, np.float32)}, replication=3)
        self._going = True
        self._thread = threading.Thread(target=self._add)
        self._thread.start()

    def _add(self) -> None:
        try:
            while self._going:
                self._client.add({"w": np.ones(5000, np.float32)})
                self._client.wait()
                self.acknowledged += 1
                time.sleep(0.01)
        except Exception as error:
            self.error = error

    def end(self) -> np.ndarray:
        """Returns the values."""
        self._going = False
        self._thread.join()
        try:
            if self.error is not None:
                raise self.error
            values: np.ndarray = self._client.pull()["w"].copy()
            return values
        finally:
            self._client.close()


def controller_of(folder: Path) -> str:
    """Returns the address of a controller of the live run, as it tells other commands."""
    (file,) = (folder / "state" / "runs").glob("*.json")
    addresses = json.loads(file.read_text())["controllers"]
    return next(str(one).removeprefix("tcp://") for one in addresses if one.startswith("tcp://"))


def begin(adamctl: Runner, machines: Machines, *more: str) -> Command:
    state = {"ADAMCTL_STATE": str(adamctl.folder / "state")}
    environment = {**machines.environment, **state}
    hosts = ("--on", machines.engine, "--hosts", str(HOSTS))
    return adamctl.start("train", DIGITS, "--plain", *hosts, *LONG, *COPIES, *more, **environment)


def agents(machines: Machines) -> dict[str, psutil.Process]:
    """Returns agents by the names of their hosts."""
    found = {}
    for process in machines.processes():
        with suppress(psutil.Error):
            line = process.cmdline()
            if "host" in line[:5] and "--name" in line:
                found[line[line.index("--name") + 1]] = process
    return found


def trained(folder: Path) -> int:
    """Returns how many examples the run has counted last."""
    count = 0
    for metrics in files_named(folder, "metrics.jsonl"):
        for line in metrics.read_text().splitlines():
            with suppress(ValueError):
                count = max(count, int(json.loads(line).get("examples", 0)))
    return count


@pytest.mark.parametrize("fault", ["agent", "node", "frozen"])
def test_a_run_goes_on_without_a_host_and_gets_another(adamctl: Runner, machines: Machines, fault: str) -> None:
    train = begin(adamctl, machines)
    train.wait_until(train.trained, DEADLINE_S)
    (certificate,) = adamctl.folder.glob("runs/*/001/secrets/tls/operator")
    count = Count(controller_of(adamctl.folder), certificate)
    try:
        train.wait_until(lambda: count.acknowledged > 100, DEADLINE_S)
        before = agents(machines)
        assert len(before) == HOSTS
        host, agent = sorted(before.items())[0]
        if fault == "agent":
            agent.kill()
        else:
            machines.signal_node_of(agent, signal.SIGKILL if fault == "node" else signal.SIGSTOP)
        train.wait_until(lambda: len(agents(machines).keys() - before.keys()) == 1, DEADLINE_S)
        acknowledged, examples = count.acknowledged, trained(adamctl.folder)
        train.wait_until(lambda: count.acknowledged > acknowledged + 100, DEADLINE_S)
        train.wait_until(lambda: trained(adamctl.folder) > examples, DEADLINE_S)
    finally:
        values = count.end()
        if fault == "frozen":
            machines.signal_node_of(agent, signal.SIGCONT)
    assert np.all(values == count.acknowledged), "acknowledged additions are there, and once"
    train.interrupt()
    code, _, stderr = train.wait(120)
    assert code == 130, stderr
    assert stderr.count(f"{host} is lost:") == 1, stderr
    nothing_left(train, machines)


@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("fault", ["front", "agent", "node"])
def test_nothing_is_left(adamctl: Runner, machines: Machines, fault: str, seed: int) -> None:
    chance = Random(seed)
    train = begin(adamctl, machines)
    train.wait_until(lambda: len(agents(machines)) == HOSTS, DEADLINE_S)
    time.sleep(chance.uniform(0.0, 6.0))
    if fault != "front":
        agent = chance.choice(sorted(agents(machines).items()))[1]
        if fault == "agent":
            agent.kill()
        else:
            machines.signal_node_of(agent, signal.SIGKILL)
        time.sleep(chance.uniform(0.0, 3.0))
    train.process.kill()
    train.process.communicate()
    nothing_left(train, machines)


def nothing_left(train: Command, machines: Machines) -> None:
    """Returns when all has ended that was started on this machine and on the nodes, and the engine holds nothing."""
    until_s = time.monotonic() + DEADLINE_S
    while (train.family() or machines.processes() or machines.given()) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert [" ".join(process.cmdline()) for process in machines.processes()] == []
    assert machines.given() == 0
