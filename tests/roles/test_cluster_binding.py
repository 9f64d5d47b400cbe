"""A cluster's identity: an empty controller at a known address is no controller of those who know another cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.cluster_binding import NAME, bind, bound_to
from tests.ports import free_ports

WAIT_S = 30.0


def test_a_folder_is_bound_once(tmp_path: Path) -> None:
    assert bound_to(tmp_path) == ""
    bind(tmp_path, "")
    assert bound_to(tmp_path) == ""
    bind(tmp_path, "0a" * 8)
    bind(tmp_path, "0a" * 8)
    assert bound_to(tmp_path) == "0a" * 8
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="belongs to cluster 0a0a0a0a, not to 0b0b0b0b"):
        bind(tmp_path, "0b" * 8)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"../..", b"a" * 100])
def test_a_damaged_binding_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DamagedDataError, match="expected the identity of a cluster"):
        bound_to(tmp_path)


@contextmanager
def running(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ADAMCTL_")}
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "adamctl", *arguments], stdout=out, stderr=out, env=clean)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(WAIT_S)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.1)


def nodes(port: int) -> list[str]:
    command = [sys.executable, "-m", "adamctl", "status", "--controller", f"127.0.0.1:{port}", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    found: dict[str, Any] = json.loads(result.stdout) if result.returncode in (0, 4) else {"nodes": []}
    return [node["node"] for node in found["nodes"]]


def test_an_empty_controller_at_the_address_of_another_gets_no_server_of_its(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    log = tmp_path / "ps.log"
    known, empty = ("controller", "start", "--port", str(port), "--dir", str(tmp_path / "known")), tmp_path / "empty"
    server = ("ps", "start", "--name", "ps-1", "--controller", f"127.0.0.1:{port}", "--store", str(tmp_path / "store"))
    with running(log, *server) as living:
        with running(tmp_path / "c.log", *known):
            until(lambda: nodes(port) == ["ps-1"])
            cluster = bound_to(tmp_path / "store")
            assert len(cluster) == 16
        with running(tmp_path / "c.log", *known[:-1], str(empty)):
            until(lambda: (tmp_path / "c.log").read_text().count("join it with") == 2)
            time.sleep(2)  # many times what a server waits before it asks again
            assert nodes(port) == [] and living.poll() is None
            living.kill()
            living.wait()
            with running(log, *server, "--controller-deadline", "2") as again:
                assert again.wait(WAIT_S) == 3
            assert nodes(port) == []
    assert "belongs to cluster" in log.read_text() and cluster[:8] in log.read_text()
    assert bound_to(tmp_path / "store") == cluster
    with running(tmp_path / "c.log", *known), running(log, *server):
        until(lambda: nodes(port) == ["ps-1"])
