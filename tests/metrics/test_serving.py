"""The endpoint, over HTTP: Prometheus gets a cluster's metrics; nobody else does by accident."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from adamctl.errors import ConfigurationError
from adamctl.metrics.serving import check_host, metrics_hello, metrics_once_known, serving_metrics
from adamctl.roles.context import RoleContext
from adamctl.wire.messages import Empty
from adamctl.wire.permissions import may_send
from tests.cluster import memory_cluster

pytest.importorskip("prometheus_client")


async def serve(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    await context.stopping.wait()


async def fetched(url: str) -> str:
    host, _, path = url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.rsplit(":", 1))
    try:
        async with asyncio.timeout(20):
            writer.write(f"GET /{path} HTTP/1.1\r\n\r\n".encode())
            return (await reader.read()).decode()
    finally:
        writer.close()


async def test_a_cluster_is_scraped_over_http() -> None:
    async with memory_cluster() as cluster:
        await cluster.start("ps", "ps-0", serve)
        async with serving_metrics(
            ["memory://controller-0"], metrics_hello(""), "127.0.0.1", 0, transport=cluster.network
        ) as url:
            async with asyncio.timeout(20):
                while 'adamctl_node_up{node="ps-0",role="ps"} 1.0' not in (answer := await fetched(url)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert answer.startswith("HTTP/1.1 200") and "adamctl_controller_leads{" in answer
            assert 'role="controller"' in answer
            assert (await fetched(url.removesuffix("/metrics"))).startswith("HTTP/1.1 404")


async def test_a_run_on_hosts_is_scraped_once_its_controllers_are_known() -> None:
    loop, said = asyncio.get_running_loop(), list[str]()
    controllers: asyncio.Future[list[str]] = loop.create_future()
    async with memory_cluster() as cluster:
        async with metrics_once_known(0, controllers, "", cluster.network, said.append):
            await asyncio.sleep(0)
            assert said == []
            controllers.set_result(["memory://controller-0"])
            async with asyncio.timeout(20):
                while not said:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            url = said[0].removeprefix("metrics at ")
            assert 'role="controller"' in await fetched(url)
        with pytest.raises(OSError):
            await fetched(url)


async def test_a_port_that_was_taken_meanwhile_is_told_and_ends_no_run() -> None:
    said = list[str]()
    async with memory_cluster() as cluster:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            known: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
            known.set_result(["memory://controller-0"])
            async with metrics_once_known(taken.getsockname()[1], known, "", cluster.network, said.append):
                async with asyncio.timeout(20):
                    while not said:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
    assert said[0].startswith("no metrics: ") and "is taken" in said[0]


async def test_a_run_that_ends_before_its_hosts_came_serves_nothing() -> None:
    controllers: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    async with memory_cluster() as cluster, metrics_once_known(0, controllers, "", cluster.network, [].append):
        await asyncio.sleep(0)
    assert controllers.cancelled()


def test_other_machines_reach_it_only_by_a_flag() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, False, "--open")
    for host in ("0.0.0.0", "192.0.2.1", "example.org"):
        check_host(host, True, "--open")
        with pytest.raises(ConfigurationError, match=f"found {host}.*say with --open"):
            check_host(host, False, "--open")


def test_its_role_asks_and_reads_and_changes_nothing() -> None:
    from adamctl.wire.constants import Opcode

    role = metrics_hello("")().role
    allowed = {opcode.name for opcode in Opcode if may_send(role, opcode)}
    assert allowed == {"HELLO", "PROVE", "STATUS", "CONFIG_READ", "CONFIG_WATCH"}


async def test_without_the_package_there_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'adamctl\[metrics\]'"):
        async with serving_metrics(["tcp://127.0.0.1:1"], metrics_hello(""), "127.0.0.1", 0):
            raise AssertionError
