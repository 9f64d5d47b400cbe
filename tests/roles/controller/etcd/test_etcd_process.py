"""Processes that find each other through etcd, as users start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.controller.etcd_server import EtcdCluster, etcd_cluster

BOUND_S = 120.0
DIGITS = Path(__file__).resolve().parents[4] / "examples" / "digits.toml"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """With the limits that etcd has by itself."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), flags=()) as cluster:
        yield cluster


class Site:
    """Commands and roles that all have the same etcd."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "ADAMCTL_CONFIG_STORE": url, "ADAMCTL_TOKEN": "", "ADAMCTL_CONTROLLER": ""}
        self.roles: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{arguments[3]}.log").open("ab") as log:
            command = [sys.executable, "-m", "adamctl", *arguments]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment)
        self.roles.append(process)
        return process

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "adamctl", *arguments]
        environment = {**self._environment, **environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, env=environment)

    def status(self) -> dict[str, Any]:
        """Returns what `adamctl status` says; nobody is there while etcd does not answer."""
        result = self.run("status", "--json")
        if result.returncode == 3:
            return {"controller": {}, "nodes": [], "jobs": []}
        assert result.returncode == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def wait_for(self, *names: str) -> dict[str, Any]:
        """Returns the status as soon as these nodes, and no others, are there."""
        until_s = time.monotonic() + BOUND_S
        while True:
            status = self.status()
            found = {node["node"]: node["answers"] for node in status["nodes"]}
            if found == dict.fromkeys(names, True) and status["controller"]:
                return status
            assert time.monotonic() < until_s, f"expected {names}, found {found}"
            time.sleep(0.2)


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, etcd: EtcdCluster) -> Iterator[Site]:
    """Nodes are lost after 10 seconds, or as the test's parameter says."""
    lost_after_s = getattr(request, "param", 10)
    site = Site(tmp_path, f"{etcd.url}/{tmp_path.name}?lost_after={lost_after_s}")
    yield site
    for role in site.roles:
        if role.poll() is None:
            role.kill()
        role.wait(timeout=BOUND_S)


def test_a_role_joins_leaves_and_is_lost(site: Site, etcd: EtcdCluster) -> None:
    first, second = (site.start("data", "start", "--name", f"data-{number}") for number in (1, 2))
    status = site.wait_for("data-1", "data-2")
    assert status["controller"]["state"] == "etcd" and status["controller"]["leader"] == "etcd-0"
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=BOUND_S) == 143
    site.wait_for("data-2")
    second.kill()
    site.wait_for()
    text = site.run("status").stdout
    assert "no node has registered yet" in text


@pytest.mark.parametrize("site", [3600], indirect=True)
def test_a_name_is_taken_while_its_process_lives(site: Site) -> None:
    first = site.start("data", "start", "--name", "data-1")
    site.wait_for("data-1")
    refused = site.run("data", "start", "--name", "data-1")
    assert refused.returncode == 2 and "belongs to a living data" in refused.stderr
    first.kill()
    first.wait(timeout=BOUND_S)
    site.start("data", "start", "--name", "data-1")
    site.wait_for("data-1")


def test_an_etcd_that_is_not_there_is_named(site: Site) -> None:
    refused = site.run("status", ADAMCTL_CONFIG_STORE="etcd://127.0.0.1:1")
    assert refused.returncode == 3 and "etcd at etcd://127.0.0.1:1 did not answer" in refused.stderr


def test_nothing_that_controllers_alone_can_do_is_asked_of_etcd(site: Site) -> None:
    refused = site.run("controller", "replace", "a", "--with", "b=h:1")
    assert refused.returncode == 2 and "etcdctl" in refused.stderr


@pytest.mark.slow
def test_a_run_survives_a_restart_of_etcd(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    with etcd_cluster(tmp_path / "etcd", flags=()) as cluster:
        site = Site(tmp_path, cluster.url)
        try:
            names = [f"ps-{number}" for number in (1, 2)] + ["data-1", "worker-1"]
            for name in names:
                site.start(name.partition("-")[0], "start", "--name", name)
            site.wait_for(*names)
            arguments = ("--config-store", cluster.url, "--workers", "1", "--ps", "2", "--passes", "40", "--plain")
            command = [sys.executable, "-m", "adamctl", "train", str(DIGITS), *arguments, "--json"]
            runs = ("--run-dir", str(tmp_path / "runs"))
            train = subprocess.Popen([*command, *runs], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            until_s = time.monotonic() + BOUND_S
            while not any(job["state"] == "running" for job in site.status()["jobs"]):
                assert time.monotonic() < until_s
            cluster.kill(0)
            time.sleep(2.0)
            cluster.start(0)
            stdout, stderr = train.communicate(timeout=BOUND_S)
            assert train.returncode == 0, stderr
            assert json.loads(stdout)["best_test_top1"] > 0.9
        finally:
            for role in site.roles:
                role.kill()
                role.wait(timeout=BOUND_S)
