"""Real role processes of an agent: what is reported of them, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from adamctl.errors import HandshakeError
from adamctl.launch.run_certificates import RunCertificates
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.roles.folder_lock import FolderLock
from adamctl.roles.host.core.instructions import StartProcess
from adamctl.roles.host.processes import LocalProcesses, free_ports, until_unused
from adamctl.roles.private_folder import private_folder
from adamctl.wire.messages import HostCredentials, HostEnded, HostFailing, HostServing, Report

WAIT_S = 30.0


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[LocalProcesses]:
    with private_folder() as sockets:
        made = LocalProcesses(tmp_path, sockets, "127.0.0.1", "127.0.0.1", dict(os.environ), "host-1")
        before = set(psutil.Process().children(recursive=True))
        try:
            yield made
        finally:
            made.close()
            left = [one for one in psutil.Process().children(recursive=True) if one not in before]
            assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def until(processes: LocalProcesses, found: list[Report], condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        found += processes.changes()
        assert time.monotonic() < until_s, found
        time.sleep(0.01)


def test_a_role_serves_is_killed_and_keeps_its_folder(processes: LocalProcesses, tmp_path: Path) -> None:
    found: list[Report] = []
    what = StartProcess("controller", "controller-1", 7, ("--port", "0"), True, ((str(tmp_path),),))
    assert processes.start(what) is None
    until(processes, found, lambda: found)
    serving = found.pop()
    assert isinstance(serving, HostServing) and (serving.node, serving.attempt) == ("controller-1", 7)
    assert any(address.startswith("tcp://127.0.0.1:") for address in serving.addresses)
    (reading,) = processes.readings()
    assert reading.node == "controller-1" and reading.memory_bytes > 1 << 20
    until(processes, found, lambda: any("ready on" in line for line in processes.tail("controller-1", 5)[1]))
    assert processes.tail("controller-1", 5)[0] == str(tmp_path / "logs" / "controller-1.log")
    os.kill(next(one.pid for one in psutil.Process().children() if "controller-1" in one.cmdline()), signal.SIGKILL)
    until(processes, found, lambda: found)
    assert found == [HostEnded("controller-1", 7, -signal.SIGKILL)]
    assert (tmp_path / "kept" / "controller-1").is_dir()
    processes.forget()
    assert not (tmp_path / "kept").exists() and (tmp_path / "logs").is_dir()


def test_what_was_kept_for_another_run_is_gone_before_a_role_starts(processes: LocalProcesses, tmp_path: Path) -> None:
    """A controller would go on with the store of another run, and never find that run's others."""
    left = tmp_path / "kept" / "controller-1" / "paxos.log"
    left.parent.mkdir(parents=True)
    left.write_text("of nobody knows which run")
    (tmp_path / "logs" / "controller-1.log").write_text("what it said")
    processes.forget_others("small/001 1")
    assert not left.exists() and (tmp_path / "logs" / "controller-1.log").exists()
    left.parent.mkdir(parents=True)
    left.write_text("of this run")
    again = LocalProcesses(tmp_path, tmp_path, "127.0.0.1", "127.0.0.1", dict(os.environ), "host-1")
    again.forget_others("small/001 1")
    assert left.exists(), "it may be the only copy"
    again.forget_others("small/001 2")
    assert not left.exists() and (tmp_path / "kept").is_dir(), "another front's run of the same name"
    again.close()


def test_an_agent_begins_when_the_roles_of_the_one_before_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = FolderLock(tmp_path / "kept" / "ps-1", "--store", "parameter server")
    waited = 0

    async def passes(wait_s: float) -> None:
        nonlocal waited
        waited += 1
        if waited == 3:
            lock.release()

    monkeypatch.setattr(asyncio, "sleep", passes)
    run(until_unused(tmp_path))
    assert waited == 3
    stopped = FolderLock(tmp_path / "kept" / "ps-1", "--store", "parameter server")
    run(until_unused(tmp_path))
    stopped.release()


def test_a_role_that_refuses_to_start_says_why(processes: LocalProcesses) -> None:
    found: list[Report] = []
    what = StartProcess("controller", "controller-1", 1, ("--port", "0", "--lease", "0"), True, ())
    assert processes.start(what) is None
    until(processes, found, lambda: any(isinstance(one, HostEnded) for one in found))
    ended = found[-1]
    assert isinstance(ended, HostEnded) and ended.status == 2 and "--lease" in ended.error and not ended.retry_helps
    assert all(isinstance(one, HostFailing) for one in found[:-1])


def test_what_is_not_here_is_named_with_its_host(processes: LocalProcesses, tmp_path: Path) -> None:
    missing = (str(tmp_path / "mnist"), str(tmp_path / "elsewhere"))
    ended = processes.start(StartProcess("data", "data-1", 3, (), False, ((str(tmp_path),), missing)))
    assert ended is not None and ended.error == f"host-1 has no {missing[0]} and no {missing[1]}"
    assert (ended.status, ended.attempt, ended.retry_helps) == (2, 3, False)
    assert processes.changes() == []


def test_what_cannot_even_be_looked_at_is_not_here(processes: LocalProcesses, tmp_path: Path) -> None:
    path = str(tmp_path / ("long" * 100))
    ended = processes.start(StartProcess("data", "data-1", 3, (), False, ((path,),)))
    assert ended is not None and ended.error == f"host-1 has no {path}"


async def speak_plainly(address: str) -> None:
    await StreamTransport(tls=None).connect(address, make_hello("operator", "x"), deadline_s=10)


def of_role(folder: Path, role: str, node: str) -> HostCredentials:
    return RunCertificates("small/001", folder).issued(role, node)


def test_a_role_speaks_tls_with_a_certificate_that_is_gone_with_it(tmp_path: Path) -> None:
    """The key is in a private file, and neither on the command line nor in the environment; nor is the token."""
    environment = {**os.environ, "ADAMCTL_TOKEN": "a secret", "ADAMCTL_TOKEN_FILE": str(tmp_path / "token")}
    found: list[Report] = []
    with private_folder() as sockets:
        made = LocalProcesses(tmp_path, sockets, "127.0.0.1", "127.0.0.1", environment, "host-1")
        own = of_role(tmp_path, "controller", "head")
        try:
            what = StartProcess("controller", "head", 1, ("--port", "0"), True, (), own)
            assert made.start(what) is None
            until(made, found, lambda: found)
            (process,) = (one for one in psutil.Process().children() if "head" in one.cmdline())
            shown = " ".join((*process.cmdline(), *process.environ().values()))
            assert "PRIVATE KEY" not in shown and "a secret" not in shown and str(tmp_path / "token") not in shown
            (folder,) = (sockets / "tls").iterdir()
            assert str(folder) in process.cmdline() and stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == dict.fromkeys(
                ("ca.crt", "node.crt", "node.key"), 0o600
            )
            serving = found.pop()
            assert isinstance(serving, HostServing)
            address = next(one for one in serving.addresses if one.startswith("tcp://"))
            with pytest.raises(HandshakeError, match="speaks only TLS"):
                run(speak_plainly(address))
            made.signal("head")
            until(made, found, lambda: found)
            assert list((sockets / "tls").iterdir()) == []
            assert made.start(replace(what, attempt=2)) is None
        finally:
            made.close()
        assert not (sockets / "tls").exists()


def test_a_certificate_for_another_role_or_name_starts_nothing_and_is_removed(tmp_path: Path) -> None:
    with private_folder() as sockets:
        made = LocalProcesses(tmp_path, sockets, "127.0.0.1", "127.0.0.1", dict(os.environ), "host-1")
        for role, node in (("worker", "ps-1"), ("ps", "ps-2"), ("operator", "front")):
            what = StartProcess("ps", "ps-1", 1, (), False, (), of_role(tmp_path, role, node))
            ended = made.start(what)
            assert ended is not None and ended.status == 2 and not ended.retry_helps
            assert f"expected one for ps ps-1; found adam://small_001/{role}/{node}" in ended.error
        outside = made.start(StartProcess("ps", "..", 1, (), False, (), of_role(tmp_path, "ps", "..")))
        assert outside is not None and "expected a node without a point" in outside.error
        broken = HostCredentials(b"authorities", b"certificate", b"the key")
        ended = made.start(StartProcess("ps", "ps-1", 1, (), False, (), broken))
        assert ended is not None and "cannot be used on host-1" in ended.error and "the key" not in ended.error
        assert list((sockets / "tls").iterdir()) == [] and made.changes() == []
        made.close()


class Failing:
    """A process that has said why it fails, and still runs."""

    status, ready = None, None
    failure = {"error": "mine1, upward: ValueError", "exit_code": 1, "retry_helps": False, "ends_run": True}  # noqa: RUF012

    def read_reports(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


def test_why_a_role_fails_is_reported_whole(processes: LocalProcesses) -> None:
    processes._running["worker-1"] = (3, Failing())  # type: ignore[assignment]
    (found,) = processes.changes()
    assert isinstance(found, HostFailing) and (found.attempt, found.error) == (3, "mine1, upward: ValueError")
    assert (found.exit_code, found.retry_helps, found.ends_run) == (1, False, True)
    assert processes.changes() == [], "once"


def test_a_process_that_is_not_there_is_left_alone(processes: LocalProcesses) -> None:
    processes.signal("worker-1")
    processes.kill("worker-1")
    assert processes.tail("worker-1", 5)[1] == []


def test_free_ports_differ() -> None:
    found = free_ports(20, "127.0.0.1")
    assert len(set(found)) == 20
