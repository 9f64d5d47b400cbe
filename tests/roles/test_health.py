"""`/livez` and `/readyz`: what a probe gets while a role starts, works, loses its lease and ends."""

from __future__ import annotations

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.controller import server as controller_server
from adamctl.roles.health import serve_health, why_not_ready
from adamctl.roles.lease import Lease
from adamctl.roles.ps import server as ps_server
from tests.cluster import memory_cluster
from tests.ports import free_ports
from tests.roles.test_driver import process

DEADLINE_S = 60


@dataclass
class Role:
    ready: bool = True
    ending: bool = False
    lease: Lease = field(default_factory=Lease.endless)
    problem: str = ""

    def unready(self) -> str:
        return self.problem


async def fetched(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            return int(head.split(" ")[1]), body
    finally:
        writer.close()


async def until(port: int, path: str, wanted: tuple[int, str]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if await fetched(port, path) == wanted:
                    return
            except OSError:
                pass  # it does not listen yet
            await asyncio.sleep(0.02)


def test_a_role_is_ready_as_a_member_with_a_lease_and_its_work_at_hand() -> None:
    assert why_not_ready(Role()) == ""
    assert why_not_ready(Role(ready=False)) == "it has not joined its cluster"
    assert why_not_ready(Role(lease=Lease(4.0))) == "its lease does not hold"
    assert why_not_ready(Role(problem="buckets are on their way")) == "buckets are on their way"
    assert why_not_ready(Role(ready=False, ending=True)) == "it is ending", "readiness goes first"


async def test_a_probe_gets_what_it_asks_for_and_nothing_else() -> None:
    role = Role(problem="buckets are on their way")
    server = await serve_health("127.0.0.1:0", role)
    try:
        assert await fetched(server.port, "/livez") == (200, "ok\n")
        assert await fetched(server.port, "/readyz") == (503, "not ready: buckets are on their way\n")
        role.problem = ""
        assert await fetched(server.port, "/readyz") == (200, "ok\n")
        for path in ("/", "/metrics", "/livez/", "/readyz2"):
            assert (await fetched(server.port, path))[0] == 404
    finally:
        await server.close()


async def test_a_loop_that_does_not_move_answers_nobody() -> None:
    """That is how a probe notices: here another thread asks while the loop is held up."""
    server = await serve_health("127.0.0.1:0", Role())

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.3) as probe:
            probe.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            try:
                return probe.recv(100)
            except TimeoutError:
                return b""

    try:
        assert (await asyncio.to_thread(ask)).startswith(b"HTTP/1.1 200")
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(ask).result() == b"", "the loop waits for the thread, so it cannot answer"
    finally:
        await server.close()


async def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--health: expected HOST:PORT; found 'here'"):
        await serve_health("here", Role())


async def test_a_process_is_alive_before_it_is_ready(tmp_path: Path) -> None:
    """Its controller is not there yet."""
    (keeper,) = free_ports(1)
    with process(tmp_path, "serve", controller=f"127.0.0.1:{keeper}", health="127.0.0.1:0") as one:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := re.search(r"health at port (\d+)", one.log.read_text() if one.log.exists() else "")):
                assert one.popen.poll() is None, one.end()
                await asyncio.sleep(0.02)
        port = int(found[1])
        assert await fetched(port, "/livez") == (200, "ok\n")
        assert await fetched(port, "/readyz") == (503, "not ready: it has not joined its cluster\n")
        with process(tmp_path, "controller", port=keeper, **{"own.dir": tmp_path / "state"}):
            await until(port, "/readyz", (200, "ok\n"))


async def test_a_controller_is_ready_once_it_knows_a_leader() -> None:
    async with memory_cluster() as cluster:
        assert cluster.controller.unready() == ""
    alone = SimpleNamespace(core=SimpleNamespace(leader=None))
    assert controller_server.ControllerServer.unready(alone) == "no leader is known"  # type: ignore[arg-type]


async def test_a_server_without_its_buckets_is_not_ready() -> None:
    async with memory_cluster() as cluster:
        context = await cluster.start("ps", "ps-0", ps_server.run)
        async with asyncio.timeout(DEADLINE_S):
            while why_not_ready(context) == "its lease does not hold":  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until its first beacon is answered
        assert why_not_ready(context) == ""
        core = context.unready.__self__.core  # type: ignore[attr-defined]

        class Coming:
            failed, building, taking = None, {3: 1}, set[int]()

        context.leaving = True
        assert why_not_ready(context) == "it is ending", "while it serves on, and moves off what it holds"
        context.leaving = False
        core.jobs["j"] = Coming()
        assert why_not_ready(context) == "buckets are on their way"
        Coming.failed = (1, "it is broken")  # type: ignore[assignment]
        assert why_not_ready(context) == "", "one bad job does not take the server away from others"
        del core.jobs["j"]
