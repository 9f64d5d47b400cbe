"""The client of the configuration service when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from adamctl.errors import ConfigurationError, HandshakeError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.roles.controller.known_addresses import KnownAddresses
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


def test_one_controller_with_a_wrong_token_ends_nobody_who_has_been_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            other = make_hello("controller", "controller-9", token="other")
            wrong = await cluster.network.serve(["memory://controller-9"], other, lambda r: r.reply(Empty()))
            hello, known = (
                make_hello("front", "alone"),
                KnownAddresses(["memory://controller-9", "memory://controller-0"]),
            )
            client = ControllerClient(cluster.network, known, lambda: hello, deadline_s=7.0)
            with pytest.raises(HandshakeError, match="token"):
                await client.read("/")
            client._next_address = 1
            await client.read("/")
            beacons = ControllerClient(
                cluster.network, known, lambda: hello
            )  # of another thread, begins with the first
            await beacons.read("/")
            await beacons.close()
            await client.close()
            await cluster.kill("controller-0")
            with pytest.raises(UnreachableError, match="did not answer within 7 s"):
                await client.read("/")
            await wrong.close()

    run_virtual(scenario())


def test_others_at_the_address_of_a_lost_controller_end_nobody_who_has_been_answered() -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            server = await cluster.network.serve(["memory://lost"], make_hello("ps", "p"), lambda r: r.reply(Empty()))
            known, hello = KnownAddresses(["memory://lost", "memory://controller-0"]), make_hello("front", "alone")
            client = ControllerClient(cluster.network, known, lambda: hello, deadline_s=7.0)
            with pytest.raises(ConfigurationError, match="found ps p; give --controller its address"):
                await client.read("/")
            await client.read("/")
            await client.close()
            client._next_address = 0
            await client.read("/")
            await client.close()
            await server.close()

    run_virtual(scenario())


async def test_another_programme_at_the_address_of_a_lost_controller_ends_nobody_who_has_been_answered() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 3)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(speak, "127.0.0.1", 0)
    known, hello = (
        KnownAddresses([f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"]),
        make_hello("front", "a"),
    )
    client = ControllerClient(StreamTransport(), known, lambda: hello, deadline_s=1.0)
    with pytest.raises(ProtocolError, match="expected a frame"):
        await client.read("/")
    known.answered = True
    with pytest.raises(UnreachableError, match="did not answer within 1 s"):
        await client.read("/")
    listening.close()
    await listening.wait_closed()


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


RECORD = {"/jobs/t/a": b"1"}


@asynccontextmanager
async def replaced_by_an_empty_one(cluster: ClusterInMemory, *clients: ControllerClient) -> AsyncIterator[bytes]:
    """The clients know a cluster; its controller is lost, and another stands at its address. Yields a backup."""
    operator = _client_as(cluster, "memory://controller-0", "operator", "o")
    await cluster.client.compare_and_set(ConfigChanges({}, RECORD))
    backup = await operator.backup()
    for client in clients:
        assert [entry.key for entry in (await client.read("/jobs/t/"))[1]] == list(RECORD)
    await cluster.kill("controller-0")
    await cluster.open(identity=2)
    yield backup
    for client in (*clients, operator):
        await client.close()


def test_an_empty_controller_in_the_place_of_a_lost_one_is_not_believed_until_the_backup_is_restored() -> None:
    """Else it would be said that a job does not exist, in mid-work."""

    async def scenario() -> None:
        async with memory_cluster() as cluster:
            client, late = client_in(cluster), client_in(cluster, deadline_s=3.0)
            async with replaced_by_an_empty_one(cluster, client, late) as backup:
                reading = asyncio.create_task(client.read("/jobs/t/"))
                with pytest.raises(UnreachableError, match="belongs to cluster"):
                    await late.read("/jobs/t/")
                assert not reading.done()
                operator = _client_as(cluster, "memory://controller-0", "operator", "o")
                await operator.restore(backup)
                assert [entry.key for entry in (await reading)[1]] == list(RECORD)
                assert [entry.key for entry in (await operator.read("/jobs/t/"))[1]] == list(RECORD)
                await operator.close()

    run_virtual(scenario())


def test_a_member_of_a_cluster_does_not_believe_an_empty_controller_either() -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            worker = await cluster.context("worker", "w")
            await worker.serve(lambda request: request.reply(Empty()))
            assert worker.controller is not None
            async with replaced_by_an_empty_one(cluster) as backup:
                reading = asyncio.create_task(worker.controller.read("/jobs/t/"))
                await asyncio.sleep(3.0)
                assert not reading.done()
                operator = _client_as(cluster, "memory://controller-0", "operator", "o")
                await operator.restore(backup)
                assert [entry.key for entry in (await reading)[1]] == list(RECORD)
                await operator.close()

    run_virtual(scenario())


def test_who_has_seen_new_controllers_before_a_restore_goes_on_with_what_they_became() -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            early = client_in(cluster)
            async with replaced_by_an_empty_one(cluster) as backup:
                assert (await early.read("/"))[0] == 0
                operator = _client_as(cluster, "memory://controller-0", "operator", "o")
                await operator.restore(backup)
                await operator.close()
                for _ in range(2):
                    assert [entry.key for entry in (await early.read("/jobs/t/"))[1]] == list(RECORD)
                    await early.close()
                await early.close()

    run_virtual(scenario())
