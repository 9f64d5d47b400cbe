"""The client of the configuration service when things go wrong."""

from __future__ import annotations

import asyncio

import pytest

from adamctl.errors import ConfigurationError, HandshakeError, RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, Empty, NodeRegisterRequest
from tests.cluster import ClusterInMemory, memory_cluster


def client_in(cluster: ClusterInMemory, address: str = "memory://controller-0", **options: float) -> ControllerClient:
    return _client_as(cluster, address, "front", "alone", **options)


def _client_as(cluster: ClusterInMemory, address: str, role: str, node: str, **options: float) -> ControllerClient:
    hello = make_hello(role, node)
    return ControllerClient(cluster.network, [address], lambda: hello, session="alone", **options)  # type: ignore[arg-type]


def test_nothing_waits_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            client = client_in(cluster, "memory://nowhere", deadline_s=7.0)
            with pytest.raises(UnreachableError, match=r"memory://nowhere did not answer within 7 s .*--controller"):
                await client.read("/")

    run_virtual(scenario())
    assert "waiting for the controller at memory://nowhere since" in caplog.text


def test_a_request_survives_the_loss_of_its_connection() -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            client = client_in(cluster)
            await client.read("/")
            cluster.network.partition("controller-0", "alone")  # the request arrives, its answer does not
            changing = asyncio.create_task(client.compare_and_set(ConfigChanges({"/jobs/t/a": 0}, {"/jobs/t/a": b"1"})))
            await asyncio.sleep(4.0)
            assert not changing.done() and cluster.controller_core.state.revision == 1
            cluster.network.heal()
            assert (await changing).conflicts == ()  # done once, and answered as done
            assert (await client.read("/"))[0] == 1
            await client.close()

    run_virtual(scenario())


def test_a_forgotten_session_begins_anew() -> None:
    async def scenario() -> None:
        async with memory_cluster(config=ControllerConfig(sessions_max=2)) as cluster:
            client = client_in(cluster)
            await client.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b"1"}))
            for number in range(3):
                other = client_in(cluster)
                other._session = f"other-{number}"
                await other.compare_and_set(ConfigChanges({}, {"/jobs/t/b": b""}))
                await other.close()
            reply = await client.compare_and_set(ConfigChanges({"/jobs/t/a": 1}, {"/jobs/t/a": b"2"}))
            assert reply.conflicts == ()
            await client.close()

    run_virtual(scenario())


def test_a_forgotten_request_that_was_sent_twice_is_an_error_never_a_second_application() -> None:
    async def scenario() -> None:
        async with memory_cluster(config=ControllerConfig(sessions_max=2)) as cluster:
            client = client_in(cluster)
            await client.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b"1"}))
            cluster.network.partition("controller-0", "alone")
            changing = asyncio.create_task(client.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b"2"})))
            await asyncio.sleep(1.0)
            for number in range(3):
                other = ControllerClient(
                    cluster.network, client.addresses, lambda: make_hello("front", "o"), session=f"s{number}"
                )
                await other.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b"3"}))
                await other.close()
            cluster.network.heal()
            with pytest.raises(RemoteError) as caught:
                await changing
            assert caught.value.code == ErrorCode.CLIENT_EVICTED
            assert (await client.read("/jobs/t/a"))[1][0].value == b"3"
            await client.close()

    run_virtual(scenario())


async def test_a_refused_request_does_not_disturb_the_next() -> None:
    async with memory_cluster() as cluster:
        client = client_in(cluster)
        for _ in range(2):
            with pytest.raises(RemoteError):
                await client.compare_and_set(ConfigChanges({}, {"bad": b""}))
        assert (await client.compare_and_set(ConfigChanges({}, {"/jobs/t/good": b""}))).revision == 1
        await client.close()


async def test_the_wrong_token_is_refused_at_once() -> None:
    async with memory_cluster() as cluster:
        hello = make_hello("front", "alone", token="wrong")
        client = ControllerClient(cluster.network, ["memory://controller-0"], lambda: hello)
        with pytest.raises(HandshakeError, match="token"):
            await client.read("/")


async def test_who_is_no_controller_is_named() -> None:
    async with memory_cluster() as cluster:
        server = await cluster.network.serve(["memory://ps-0"], make_hello("ps", "ps-0"), lambda r: r.reply(Empty()))
        client = client_in(cluster, "memory://ps-0")
        with pytest.raises(ConfigurationError, match="expected a controller at memory://ps-0, found ps ps-0"):
            await client.read("/")
        await server.close()


async def test_a_taken_name_is_a_configuration_error() -> None:
    async with memory_cluster() as cluster:
        one, two = (_client_as(cluster, "memory://controller-0", "worker", "w") for _ in range(2))
        await one.register(NodeRegisterRequest("w", "worker", (), "h", 1))
        with pytest.raises(ConfigurationError, match="choose another --name"):
            await two.register(NodeRegisterRequest("w", "worker", (), "h", 2))
        await one.close()
        await two.close()


async def test_a_process_that_waits_for_a_name_gets_it_when_the_other_one_has_left() -> None:
    async with memory_cluster() as cluster:
        one, two = (_client_as(cluster, "memory://controller-0", "worker", "w") for _ in range(2))
        first = await one.register(NodeRegisterRequest("w", "worker", (), "h", 1))
        waiting = asyncio.create_task(
            two.register(NodeRegisterRequest("w", "worker", (), "h", 2, waits=True), deadline_s=60)
        )
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await one.leave("w", first.incarnation)
        assert (await asyncio.wait_for(waiting, 10)).incarnation > first.incarnation
        await one.close()
        await two.close()


def test_a_client_needs_an_address() -> None:
    with pytest.raises(ConfigurationError, match="ADAMCTL_CONTROLLER"):
        ControllerClient(None, [], lambda: make_hello("t", "t"))  # type: ignore[arg-type]
