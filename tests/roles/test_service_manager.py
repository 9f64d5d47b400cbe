"""What a service manager such as systemd is told: ready, alive, stopping."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from adamctl.roles.role_process import role_environment
from adamctl.roles.service_manager import READY, STOPPING, VARIABLES, WATCHDOG, ServiceManager

SCRIPT = Path(__file__).with_name("role_under_test.py")
DEADLINE_S = 60


@contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(path.replace("@", "\0"))
        manager.settimeout(DEADLINE_S)
        yield manager


def received(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


@pytest.mark.parametrize("abstract", [False, True])
def test_lines_go_to_the_socket_that_the_environment_names(tmp_path: Path, abstract: bool) -> None:
    path = f"@adamctl-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify")
    with listening(path) as manager:
        ServiceManager.of({"NOTIFY_SOCKET": path}, 7).tell(READY, "STATUS=serving")
        assert received(manager) == ["READY=1", "STATUS=serving"]


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "-1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_a_watchdog_counts_if_it_is_for_this_process(environment: dict[str, str], watchdog_s: float) -> None:
    found = ServiceManager.of({"NOTIFY_SOCKET": "/run/notify", **environment}, 7)
    assert found.watchdog_s == watchdog_s


@pytest.mark.parametrize("path", ["", "notify", "vsock:2:1"])
async def test_without_a_manager_nobody_is_told(path: str) -> None:
    nobody = ServiceManager.of({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1"}, 7)
    assert nobody == ServiceManager()
    nobody.tell(READY)
    await asyncio.wait_for(nobody.beat(), DEADLINE_S)


def test_a_manager_that_is_gone_harms_nothing(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "none")).tell(READY)


def test_a_role_that_we_start_does_not_speak_for_us() -> None:
    environment = dict.fromkeys((*VARIABLES, "PATH"), "x")
    assert not {*VARIABLES} & role_environment(environment).keys()
    assert role_environment(environment)["PATH"] == "x"


@contextmanager
def role(kind: str, path: str, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
    command = [sys.executable, str(SCRIPT), kind, *settings]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=DEADLINE_S)


def until(manager: socket.socket, line: str) -> list[str]:
    """Returns what was told up to this line."""
    told: list[str] = []
    while line not in told:
        told += received(manager)
    return told


def test_a_role_says_that_it_serves_that_it_lives_and_that_it_stops(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listening(path) as manager, role("serve", path, "name=n") as process:
        assert until(manager, READY)[-2:] == [READY, "STATUS=serving as sample n"]
        for _ in range(3):
            assert until(manager, WATCHDOG) == [WATCHDOG]
        process.send_signal(signal.SIGTERM)
        assert set(until(manager, STOPPING)) - {WATCHDOG} == {STOPPING}
        assert process.wait(timeout=DEADLINE_S) == 143


def test_a_role_that_starts_over_does_not_say_that_it_stops(tmp_path: Path) -> None:
    """The service manager would end it, after the time that it gives services to stop."""
    path = str(tmp_path / "notify")
    once = f"own.once={tmp_path / 'once'}"
    with listening(path) as manager, role("lost_once", path, "name=n", "restarts=True", once) as process:
        first = process.pid
        until(manager, READY)
        assert STOPPING not in until(manager, READY)
        assert process.poll() is None
        assert process.pid == first
