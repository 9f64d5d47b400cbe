"""Another user of the machine, who knows every port and path: no role lets him in, and he reads nothing of the run."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from adamctl.errors import AdamctlError
from adamctl.launch.run_token import read_token
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.wire.messages import StatusRequest
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.ports import free_ports

EVE = 65534
ROLES = ("controller", "ps", "data", "worker", "coordinator")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def as_eve(addresses: list[str], folders: list[str], pipe: Any) -> None:
    """What Eve gets: for each address why she is refused, and the files that she can read."""
    os.setgroups([])
    os.setgid(EVE)
    os.setuid(EVE)
    pipe.send(({address: asyncio.run(knock(address)) for address in addresses}, readable(folders)))


async def knock(address: str) -> str:
    try:
        connection = await StreamTransport().connect(address, make_hello("front", "eve"), deadline_s=10)
        await connection.request(StatusRequest(), deadline_s=10)
    except AdamctlError as error:
        return str(error)
    await connection.close()
    return ""


def readable(folders: list[str]) -> list[str]:
    found = []
    for folder in folders:
        for where, _, names in os.walk(folder):
            found += [path for name in names if os.access(path := os.path.join(where, name), os.R_OK)]
    return found


def eve(addresses: list[str], *folders: Path) -> tuple[dict[str, str], list[str]]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=as_eve, args=(addresses, [str(folder) for folder in folders], theirs))
    process.start()
    assert ours.poll(60), "Eve did not come back"
    result: tuple[dict[str, str], list[str]] = ours.recv()
    process.join(10)
    return result


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="eve-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def addresses_of(process: psutil.Process) -> list[str]:
    """Returns where a process listens, over TCP and Unix sockets, as every user can find out."""
    found = [f"tcp://127.0.0.1:{one.laddr.port}" for one in process.net_connections("tcp") if one.status == "LISTEN"]
    return found + [f"unix://{one.laddr}" for one in process.net_connections("unix") if one.laddr]


def both_kinds(addresses: list[str]) -> list[str]:
    """Returns the addresses if there is one of each kind among them."""
    return addresses if {address.partition(":")[0] for address in addresses} == {"tcp", "unix"} else []


def listening(command: Command, *roles: str) -> dict[str, list[str]]:
    """Returns role -> addresses, once every role listens."""

    def look() -> dict[str, list[str]]:
        found = {role: both_kinds([a for one in command.roles(role) for a in addresses_of(one)]) for role in roles}
        return found if all(found.values()) else {}

    found: dict[str, list[str]] = command.wait_until(look)
    return found


def assert_refused(found: dict[str, list[str]], token: str, folder: Path) -> None:
    problems, files = eve([address for at in found.values() for address in at], folder)
    for address, problem in problems.items():
        expected = "token" if address.startswith("tcp:") else "another user|Permission denied|No such file"
        assert re.search(expected, problem), (address, problem)
        assert token not in problem
    assert not files


@needs_root
def test_another_user_is_refused_by_every_role_of_a_cluster_by_hand(adamctl: Runner, open_folder: Path) -> None:
    token = "made by hand"
    port = free_ports(1)[0]
    around = {"ADAMCTL_TOKEN": token, "ADAMCTL_CONTROLLER": f"127.0.0.1:{port}"}
    adamctl.start("controller", "start", "--port", str(port), "--dir", str(open_folder / "controller"), **around)
    adamctl.start("ps", "start", "--store", str(open_folder / "store"), **around)
    adamctl.start("data", "start", **around)
    adamctl.start("worker", "start", **around)
    found: dict[str, list[str]] = {}
    for command, role in zip(adamctl.commands, ROLES, strict=False):
        found[role] = command.wait_until(lambda one=command: both_kinds(addresses_of(psutil.Process(one.process.pid))))
    assert_refused(found, token, open_folder)


@needs_root
def test_another_user_is_refused_by_every_role_of_train(adamctl: Runner, open_folder: Path) -> None:
    runs = open_folder / "runs"
    command = adamctl.start(
        "train", str(EXAMPLES / "digits.toml"), "--passes", "100000", "--run-dir", str(runs), "--plain"
    )
    found = listening(command, *ROLES)
    run = next(runs.glob("digits*/001"))
    token = read_token(run)
    assert len(token) >= 40
    family = command.family()
    assert token not in json.dumps([one.cmdline() for one in (*family, psutil.Process(command.process.pid))])
    assert_refused(found, token, run)
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert stat.S_IMODE((run / "secrets").stat().st_mode) == 0o700
    assert stat.S_IMODE((run / "secrets" / "token").stat().st_mode) == 0o600
    tcp = next(address for address in found["controller"] if address.startswith("tcp:")).removeprefix("tcp://")
    code, stdout, stderr = adamctl.run("status", "--controller", tcp, "--json", timeout_s=30)
    assert code in (0, 4), stderr
    assert {node["role"] for node in json.loads(stdout)["nodes"]} >= {"ps", "data", "worker"}
    command.interrupt()
    command.wait()
    assert not (run / "secrets").exists()
    texts = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    assert texts and not any(token.encode() in text for text in texts)
