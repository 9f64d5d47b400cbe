"""`metrics`: the list, what is refused before anything begins, and a server for a cluster of real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.bench.metrics import scrape
from adamctl.cli.main import application
from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.launch.joining import find_controller
from adamctl.metrics.catalogue import METRICS
from tests.roles.test_driver import process

pytest.importorskip("prometheus_client")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
DEADLINE_S = 60


def test_the_list_has_every_metric() -> None:
    shown = CliRunner().invoke(application, ["metrics", "list"]).stdout
    assert all(f"| `{metric.name}` |" in shown for metric in METRICS)


def test_an_address_for_others_needs_a_flag() -> None:
    error = CliRunner().invoke(application, ["metrics", "serve", "--bind", "0.0.0.0"]).exception
    assert isinstance(error, ConfigurationError) and "say with --open" in str(error)


def test_who_finds_no_cluster_hears_of_the_flag_of_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adamctl.launch.joining.find_controller", partial(find_controller, deadline_s=0.1))
    error = CliRunner().invoke(application, ["metrics", "serve", "--controller", "127.0.0.1:1"]).exception
    assert isinstance(error, UnreachableError) and "check that it is running and that --controller" in str(error)


def test_a_run_whose_port_is_taken_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = CliRunner().invoke(application, ["train", str(EXAMPLE), "--metrics-port", str(port)]).exception
    assert isinstance(error, ConfigurationError) and f"--metrics-port {port}: port {port} is taken" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_it_serves_a_cluster_until_it_is_told_to_end(tmp_path: Path) -> None:
    with process(tmp_path, "controller", port=0, name="keeper", **{"own.dir": tmp_path / "state"}) as keeper:
        address = keeper.ready()["addresses"][0]
        for number in (signal.SIGTERM, signal.SIGINT):
            reading, writing = os.pipe()
            line = [sys.executable, "-m", "adamctl", "metrics", "serve", "--controller", address, "--port", "0"]
            server = subprocess.Popen([*line, "--ready-fd", str(writing)], pass_fds=(writing,))
            os.close(writing)
            try:
                with os.fdopen(reading) as ready:
                    served = json.loads(ready.readline())["addresses"][0].removeprefix("tcp://")
                text = asyncio.run(scrape(f"http://{served}/metrics"))
                assert 'adamctl_node_up{node="keeper",role="controller"} 1.0' in text
                assert 'adamctl_controller_leads{node="keeper",role="controller"} 1.0' in text
                server.send_signal(number)
                assert server.wait(DEADLINE_S) == 128 + number
            finally:
                server.kill()
                server.wait()
