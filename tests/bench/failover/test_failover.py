"""The failover benchmark on little: one kill, and a link cut where namespaces can be had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.bench.failover import namespaces
from adamctl.bench.failover.failover import FAULTS, FailoverSettings, bar_s
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


@pytest.mark.skipif(bool(namespaces.missing()), reason="needs network namespaces")
def test_what_runs_inside_has_a_network_of_its_own() -> None:
    code = (
        "import socket, sys; from adamctl.bench.failover.namespaces import is_inside, namespaces\n"
        "assert is_inside()\n"
        "with namespaces(('a', 'b')) as links:\n"
        "    import subprocess\n"
        "    listen = 'import socket, time; s = socket.create_server((\"0.0.0.0\", 4000)); print(1, flush=True); '\n"
        "    listen += 'time.sleep(60)'\n"
        "    child = subprocess.Popen([*links.prefix('a'), sys.executable, '-c', listen], stdout=subprocess.PIPE)\n"
        "    child.stdout.readline()\n"
        "    def reach():\n"
        "        try:\n"
        "            socket.create_connection((links.address('a'), 4000), 0.5).close()\n"
        "        except TimeoutError:\n"
        "            return False\n"
        "        return True\n"
        "    found = [reach()]\n"
        "    for way in ({'outward': False}, {'inward': False}, {}):\n"
        "        links.cut('a', **way); found.append(reach()); links.heal('a'); found.append(reach())\n"
        "    child.kill(); child.wait(); child.stdout.close()\n"
        "    assert found == [True, False, True, False, True, False, True], found\n"
    )
    environment = {**os.environ, namespaces.INSIDE: "1"}
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


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
