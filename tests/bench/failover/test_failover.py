"""The failover benchmark on little: one kill, and a link cut where namespaces can be had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.bench import namespaces
from adamctl.bench.failover.cluster import FailoverCluster
from adamctl.bench.failover.failover import FAULTS, FailoverSettings, bar_s
from adamctl.bench.role_processes import CONTROLLER
from adamctl.cli.bench import failover as bench_failover
from adamctl.errors import ConfigurationError
from tests.roles.controller.etcd_server import etcd_cluster


def run(*arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "adamctl", "bench", "failover", "--json", "--lease", "1", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--model-megabytes", "0.2", *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert isinstance(result, dict)
    return result


def test_pushes_go_on_after_a_kill() -> None:
    result = run("--fault", "kill")
    assert result["rounds"] == 1
    assert result["pushes_applied"] == result["pushes_acknowledged"] > 0


def test_clients_are_not_retired_however_long_it_lasts(tmp_path: Path) -> None:
    """They have no node; a block of 25 faults took more than the ten minutes after which such ones are."""
    cluster = FailoverCluster(1, 1.0)
    cluster.folder = tmp_path
    command = cluster._command(CONTROLLER).arguments
    options = dict(zip(command[::2], command[1::2], strict=True))
    assert float(options["--retire-after"]) >= 24 * 3600


@pytest.mark.slow
def test_pushes_go_on_after_a_kill_where_etcd_keeps_the_configuration(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as etcd:
        assert run("--fault", "kill", "--config-store", etcd.url)["rounds"] == 1


def test_an_etcd_that_does_not_answer_and_links_to_one_are_refused_at_once() -> None:
    pytest.importorskip("aiohttp")
    command = [sys.executable, "-m", "adamctl", "bench", "failover", "--config-store", "etcd://127.0.0.1:1"]
    for fault, code, words in (("kill", 3, "did not answer within"), ("cut", 2, "leave it out")):
        done = subprocess.run([*command, "--fault", fault], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code and words in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(bool(namespaces.missing()), reason="needs network namespaces")
def test_pushes_go_on_after_a_cut() -> None:
    assert run("--fault", "cut")["rounds"] == 1


@pytest.mark.slow
def test_pushes_go_on_after_a_stop() -> None:
    assert run("--fault", "stop")["rounds"] == 1


def test_what_is_aimed_at() -> None:
    assert bar_s("kill", 4.0) == 1.5
    assert bar_s("stop", 4.0) == bar_s("cut", 4.0) == 7.0
    assert bar_s("stop", 1.0) == 2.5
    assert bar_s("stop", 8.0) == 12.0  # a beacon comes each second at the latest


def test_what_cannot_be_measured_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"--lease: expected at least 0\.4 seconds, found 0\.1"):
        FailoverSettings(leases_s=(1.0, 0.1))


def test_the_command_names_the_faults_there_are() -> None:
    assert bench_failover.FAULTS == FAULTS
