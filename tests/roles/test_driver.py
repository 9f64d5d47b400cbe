"""The driver: a role as a process, from its flags to its exit code."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from adamctl.errors import ConfigurationError, RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.configuration import nodes
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.process import CommonOptions, advertised, node_name, outward_host, unix_socket_address
from adamctl.roles.role_process import END_SIGNAL
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import RunJoinRequest, ShutdownRequest, StatusReply, StatusRequest
from tests.cluster import memory_cluster

SCRIPT = Path(__file__).with_name("role_under_test.py")
DEADLINE_S = 60


class Process:
    """A role's process with its ready report and, if it is owned by who started it, the lifeline."""

    def __init__(self, folder: Path, kind: str, owned: bool = True, **settings: Any) -> None:
        ready_read, ready_write = os.pipe()
        lifeline_read, self.lifeline = os.pipe()
        self.log = folder / f"{kind}.log"
        own = {"ready_fd": ready_write, "log_file": self.log} | ({"lifeline_fd": lifeline_read} if owned else {})
        self.popen = start(kind, pass_fds=(ready_write, lifeline_read), **own, **settings)
        os.close(ready_write)
        os.close(lifeline_read)
        self.ready_pipe: IO[str] = os.fdopen(ready_read)

    def ready(self) -> dict[str, Any]:
        line = self.ready_pipe.readline()
        assert line, self.popen.communicate(timeout=DEADLINE_S)
        report: dict[str, Any] = json.loads(line)
        return report

    def end(self) -> tuple[int, str]:
        """Returns exit code and stderr."""
        _, errors = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode, errors

    def close(self) -> None:
        self.ready_pipe.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate(timeout=DEADLINE_S)


def start(kind: str, *, pass_fds: tuple[int, ...] = (), **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), kind, *(f"{name}={value}" for name, value in settings.items())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=pass_fds)


@contextmanager
def process(folder: Path, kind: str, owned: bool = True, **settings: Any) -> Iterator[Process]:
    one = Process(folder, kind, owned, **settings)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def hasty_controller(tmp_path: Path) -> Iterator[str]:
    """One whose leases are short."""
    with process(tmp_path, "controller", port=0, **{"own.dir": tmp_path / "hasty", "own.lease": 0.5}) as one:
        yield one.ready()["addresses"][0]


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    with process(tmp_path, "controller", port=0, name="controller-0", **{"own.dir": tmp_path / "state"}) as one:
        yield one.ready()["addresses"][0]


def test_a_role_says_when_it_is_ready_and_where(tmp_path: Path, controller: str) -> None:
    with process(tmp_path, "serve", controller=controller) as one:
        report = one.ready()
        assert report["role"] == "sample" and report["pid"] == one.popen.pid and report["incarnation"] == 1
        assert re.fullmatch("sample-[0-9a-f]{6}", report["node"])
        assert report["addresses"][0].startswith("tcp://127.0.0.1:")
        socket_path = Path(report["addresses"][1].removeprefix("unix://"))
        assert socket_path.is_socket() and socket_path.parent.stat().st_mode & 0o077 == 0
        one.popen.send_signal(END_SIGNAL)
        assert one.end()[0] == 128 + END_SIGNAL
        assert one.ready_pipe.read() == "", "it has not failed"
        assert not socket_path.parent.exists()
        line = r"(?m)^\d{4}-\d\d-\d\dT\S+ INFO sample sample-\S+ stopping: received SIGUSR1$"
        assert re.search(line, one.log.read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_role_with_its_code(tmp_path: Path, number: int, code: int) -> None:
    with process(tmp_path, "serve", owned=False) as one:
        one.ready()
        one.popen.send_signal(number)
        assert one.end()[0] == code


def test_a_role_that_another_process_owns_leaves_it_to_that_when_to_end(tmp_path: Path) -> None:
    """Queues, `ray job stop` and service managers send SIGTERM to all processes of a run; it first saves its work."""
    with process(tmp_path, "serve") as one:
        one.ready()
        for number in (signal.SIGTERM, signal.SIGINT):
            one.popen.send_signal(number)
            until_s = time.monotonic() + DEADLINE_S
            while f"received {number.name}; ends when its parent does" not in one.log.read_text():
                assert time.monotonic() < until_s and one.popen.poll() is None
                time.sleep(0.01)
        one.popen.send_signal(END_SIGNAL)
        assert one.end()[0] == 128 + END_SIGNAL


async def test_a_member_answers_status_and_shutdown(tmp_path: Path, controller: str) -> None:
    with process(tmp_path, "serve", controller=controller, name="here") as one:
        address = one.ready()["addresses"][0]
        transport = StreamTransport()
        client = ControllerClient(transport, [controller], lambda: make_hello("front", "test"))
        assert [node.node for node in await nodes(client)] == ["here"]
        connection = await transport.connect(address, make_hello("front", "test"), deadline_s=10)
        assert connection.peer.node == "here" and connection.peer.incarnation == 1
        reply = await connection.request(StatusRequest(), deadline_s=10)
        assert isinstance(reply.message, StatusReply)
        assert {"role", "node", "incarnation", "uptime_s"} <= reply.message.status.keys()
        await connection.request(ShutdownRequest("enough"), deadline_s=10)
        assert one.end()[0] == 0
        assert await nodes(client) == []  # it has said goodbye
        await connection.close()
        await client.close()


def test_a_role_whose_run_is_over_exits_0(tmp_path: Path) -> None:
    with process(tmp_path, "finish") as one:
        assert one.end()[0] == 0


def test_circles_of_old_objects_are_freed(tmp_path: Path) -> None:
    with process(tmp_path, "lets_go") as one:
        code, errors = one.end()
        assert code == 0, errors


def test_an_error_of_ours_is_one_message_with_its_exit_code(tmp_path: Path) -> None:
    with process(tmp_path, "damaged") as one:
        assert one.ready() == {
            "role": "sample",
            "node": one_node(one),
            "pid": one.popen.pid,
            "error": "the file is damaged; delete it",
            "exit_code": 5,
            "retry_helps": False,
            "ends_run": False,
            "failed_s": pytest.approx(time.monotonic(), abs=DEADLINE_S),
        }
        code, errors = one.end()
        assert code == 5 and "the file is damaged; delete it" in errors and "Traceback" not in errors


def one_node(one: Process) -> str:
    found = re.search(r"sample-[0-9a-f]{6}", one.log.read_text())
    assert found
    return found[0]


def test_a_bug_is_a_traceback_and_exit_1(tmp_path: Path) -> None:
    with process(tmp_path, "bug") as one:
        code, errors = one.end()
        assert code == 1 and "Traceback" in errors and "ValueError: an ordinary bug" in one.log.read_text()


def test_a_role_says_why_it_fails_before_it_says_goodbye(tmp_path: Path, controller: str) -> None:
    """Or its peers' complaints would come first. Here the goodbye waits until the test has read the cause."""
    with process(tmp_path, "fail_while_serving", controller=controller, **{"own.wait_for": tmp_path / "read"}) as one:
        assert one.ready()["incarnation"] == 1
        report = one.ready()
        assert (report["error"], report["exit_code"]) == ("ValueError: an ordinary bug", 1)
        assert "ValueError: an ordinary bug" in one.log.read_text(), "whoever reads the report may read the log, too"
        (tmp_path / "read").touch()
        code, errors = one.end()
        assert code == 1 and errors.count("Traceback") == 1


def test_a_misconfigured_role_says_that_to_try_again_does_not_help(tmp_path: Path) -> None:
    with process(tmp_path, "serve", bind="nowhere.invalid") as one:
        report = one.ready()
        assert (report["exit_code"], report["retry_helps"]) == (2, False), report


def test_no_role_outlives_whoever_started_it(tmp_path: Path) -> None:
    with process(tmp_path, "serve") as one:
        one.ready()
        os.close(one.lifeline)
        one.lifeline = -1
        code, errors = one.end()
        assert code == 3 and "the process that started this role is gone" in errors


def test_a_role_that_does_not_stop_is_stopped(tmp_path: Path) -> None:
    for really in ("", "1"):
        with process(tmp_path, "stubborn", stop_deadline_s=0.1, **{"own.really": really}) as one:
            one.ready()
            one.popen.send_signal(END_SIGNAL)
            code, errors = one.end()
            assert code == (1 if really else 128 + END_SIGNAL) and "did not end within 0.1 s" in errors


def test_peers_that_stop_first_are_no_failure(tmp_path: Path) -> None:
    with process(tmp_path, "late") as one:
        one.ready()
        one.popen.send_signal(END_SIGNAL)
        assert one.end()[0] == 128 + END_SIGNAL


@pytest.mark.parametrize("restarts", [True, False])
def test_a_process_that_slept_too_long_is_another_incarnation_or_ends(
    tmp_path: Path, hasty_controller: str, restarts: bool
) -> None:
    with process(tmp_path, "serve", controller=hasty_controller, port=0, restarts=restarts) as role:
        first = role.ready()
        os.kill(role.popen.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(role.popen.pid, signal.SIGCONT)
        if restarts:
            second = role.ready()
            assert second["pid"] == first["pid"] and second["incarnation"] > first["incarnation"]
            assert "starting over" in role.log.read_text()
        else:
            code, errors = role.end()
            assert code == 1 and "no longer part of the cluster" in errors


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with process(tmp_path, "serve") as one:
        port = one.ready()["addresses"][0].rpartition(":")[2]
        with process(tmp_path, "serve", port=port) as two:
            assert two.ready()["exit_code"] == 2
            code, errors = two.end()
            assert code == 2 and port in errors and "taken by another process" in errors


def test_a_role_that_finds_no_controller_says_whom_it_waits_for_and_exits_3(tmp_path: Path) -> None:
    with process(tmp_path, "serve", controller="127.0.0.1:9", controller_deadline_s=2.5) as one:
        code, errors = one.end()
        assert code == 3
        assert "waiting for the controller at tcp://127.0.0.1:9 since" in errors
        assert "the controller at tcp://127.0.0.1:9 did not answer within 2.5 s" in errors


def test_a_wrong_token_is_refused_with_exit_2(tmp_path: Path) -> None:
    with process(tmp_path, "controller", port=0, token="right", **{"own.dir": tmp_path / "s"}) as controller:
        address = controller.ready()["addresses"][0]
        with process(tmp_path, "serve", controller=address, token="wrong") as one:
            code, errors = one.end()
            assert code == 2 and "token" in errors and "right" not in errors


def test_the_name_of_a_living_node_is_refused_with_exit_2(tmp_path: Path, controller: str) -> None:
    with process(tmp_path, "serve", controller=controller, name="me", socket_folder=tmp_path) as one:
        one.ready()
        with process(tmp_path, "serve", controller=controller, name="me") as two:
            code, errors = two.end()
            assert code == 2 and "'me' belongs to a living sample" in errors
        one.popen.kill()  # but after its death the name is free at once
        one.popen.wait(DEADLINE_S)
        with process(tmp_path, "serve", controller=controller, name="me") as three:
            assert three.ready()["incarnation"] == 2


def test_a_second_controller_on_one_folder_is_refused(tmp_path: Path, controller: str) -> None:
    with process(tmp_path, "controller", port=0, **{"own.dir": tmp_path / "state"}) as two:
        code, errors = two.end()
        assert code == 2 and "another controller" in errors and "--dir" in errors


def test_damaged_configuration_is_refused_with_exit_5(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "log-00000001").write_bytes(b"not a log")
    with process(tmp_path, "controller", port=0, **{"own.dir": tmp_path / "state"}) as one:
        code, errors = one.end()
        assert code == 5 and "is damaged" in errors and "move that folder away" in errors


def test_a_role_started_by_hand_says_where_it_is(tmp_path: Path) -> None:
    popen = start("controller", port=0, name="c", **{"own.dir": tmp_path / "state"})
    assert popen.stdout is not None
    first, second, _, last = (popen.stdout.readline() for _ in range(4))
    found = re.fullmatch(r"controller c ready on (tcp://127\.0\.0\.1:\d+)\n", first)
    assert found and f"adamctl ps start --controller {found[1]}" in second
    popen.send_signal(signal.SIGINT)
    popen.communicate(timeout=DEADLINE_S)
    assert popen.returncode == 130 and "--bind 0.0.0.0" in last


# --- inside one process ---------------------------------------------------------------------------------------------


async def test_before_it_is_a_member_a_role_answers_not_ready() -> None:
    async with memory_cluster() as cluster:
        context = await cluster.context("ps", "ps-0")
        cluster.network.partition("ps-0", "controller-0")
        serving = asyncio.create_task(context.serve(lambda request: None))
        other = await cluster.context("worker", "w")
        while True:
            try:
                connection = await cluster.network.connect("memory://ps-0", other.hello(), deadline_s=5)
                break
            except UnreachableError:
                await asyncio.sleep(0.01)
        with pytest.raises(RemoteError) as caught:
            await connection.request(RunJoinRequest("w", 0, 1), deadline_s=5)
        assert caught.value.code == ErrorCode.NOT_READY
        await connection.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_role_serves_once() -> None:
    async with memory_cluster() as cluster:
        context = await cluster.context("ps")
        await context.serve(lambda request: None)
        with pytest.raises(RuntimeError, match="serves once"):
            await context.serve(lambda request: None)


def test_names_are_checked() -> None:
    assert re.fullmatch("ps-[0-9a-f]{6}", node_name("ps", CommonOptions()))
    assert node_name("ps", CommonOptions(name="mine")) == "mine"
    for name in ("a/b", "a b", "x" * 200, "ä", "a\x1b[2Jb"):
        with pytest.raises(ConfigurationError, match="--name"):
            node_name("ps", CommonOptions(name=name))


def test_others_are_told_addresses_that_they_can_use() -> None:
    assert advertised(("tcp://0.0.0.0:7",), CommonOptions(advertise="head")) == ("tcp://head:7",)
    assert advertised(("tcp://0.0.0.0:7", "unix:///x/s"), CommonOptions()) == ("tcp://127.0.0.1:7", "unix:///x/s")
    assert advertised(("memory://ps-0",), CommonOptions()) == ("memory://ps-0",)
    assert outward_host(("tcp://127.0.0.1:7070",)) == "127.0.0.1"


def test_a_socket_folder_of_somebody_else_stays(tmp_path: Path) -> None:
    with unix_socket_address("ps-0", tmp_path) as address:
        assert address is None or address == f"unix://{tmp_path}/ps-0.s"
    assert tmp_path.exists()
    deep = tmp_path / ("x" * 120)
    with unix_socket_address("ps-0", deep) as address:
        assert address is None


ALLOCATING = """
import ctypes, sys, threading
from adamctl.roles.process import bound_arenas
library = ctypes.CDLL(None)
library.malloc.restype = library.fopen.restype = ctypes.c_void_p
bounded = sys.argv[1] != "0" and bound_arenas(int(sys.argv[1]))
together = threading.Barrier(6)
def allocate():
    library.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
stream = ctypes.c_void_p(library.fopen(sys.argv[2].encode(), b"w"))
library.malloc_info(0, stream)
library.fclose(stream)
print(bounded)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_threads_share_the_arenas_of_the_c_library(tmp_path: Path) -> None:
    def arenas(count: int, **environment: str) -> tuple[str, int]:
        line = [sys.executable, "-c", ALLOCATING, str(count), str(tmp_path / "malloc")]
        own = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
        done = subprocess.run(line, env={**own, **environment}, capture_output=True, text=True, timeout=DEADLINE_S)
        return done.stdout.strip(), (tmp_path / "malloc").read_text().count("<heap nr=")

    assert arenas(0)[1] > 2
    assert arenas(2) == ("True", 2)
    assert arenas(2, MALLOC_ARENA_MAX="3") == ("False", 3), "what the user has set is left alone"
