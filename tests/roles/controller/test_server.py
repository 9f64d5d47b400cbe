"""The controller's shell and a whole in-memory cluster around it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from adamctl.config.records import NodeRecord, encode, node_key
from adamctl.errors import ConfigurationError, RemoteError, RunFailedError, UnreachableError
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.configuration import nodes, wait_for
from adamctl.roles.context import RoleContext
from adamctl.roles.controller import server
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.core.instructions import Append, Persist
from adamctl.roles.controller.core.service.controller_core import ControllerConfig, ControllerCore
from adamctl.roles.controller.core.service.state import Effect
from adamctl.roles.controller.store import LogStore
from adamctl.roles.controller.testing.memory import VolatileStore
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetRequest,
    Empty,
    NodeRegisterRequest,
    RunJoinRequest,
    StatusReply,
    StatusRequest,
)
from tests.cluster import memory_cluster
from tests.roles.controller.driven_core import OpenCore

LOG = logging.getLogger("adamctl.test")


@asynccontextmanager
async def controller_on(
    folder: Path, addresses: Sequence[str], config: ControllerConfig | None = None
) -> AsyncIterator[tuple[str, ...]]:
    """Runs a controller with its store on real sockets; yields its addresses."""
    context = RoleContext(
        role="controller",
        node="controller-0",
        options={},
        transport=StreamTransport(),
        controller=None,
        stopping=asyncio.Event(),
        log=LOG,
        listen=tuple(addresses),
    )
    store = LogStore(folder)
    task = asyncio.create_task(server.serve(context, OpenCore(config), store))
    try:
        async with asyncio.timeout(10):
            while not context.ready:
                if task.done():
                    task.result()
                await asyncio.sleep(0.005)
        yield context.addresses
    finally:
        context.stop("the test ends")
        await asyncio.gather(task, return_exceptions=True)
        await context.close()
        store.close()


def client_of(addresses: Sequence[str], role: str = "front", node: str = "test", **options: float) -> ControllerClient:
    return ControllerClient(StreamTransport(), addresses, lambda: make_hello(role, node), log=LOG, **options)  # type: ignore[arg-type]


async def serve_nothing(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    await context.stopping.wait()


async def test_a_node_joins_is_seen_reached_and_leaves() -> None:
    async with memory_cluster(1) as cluster:
        context = await cluster.start("ps", "ps-0", serve_nothing)
        assert context.incarnation == 1
        assert [node.node for node in await nodes(cluster.client, "ps")] == ["ps-0"]
        other = await cluster.context("front")
        connection = await other.connect("ps-0", 5)
        assert connection.peer.incarnation == 1
        reply = await connection.request(StatusRequest(), deadline_s=5)
        assert isinstance(reply.message, StatusReply) and reply.message.status["node"] == "ps-0"
        await cluster.stop("ps-0")
        assert await nodes(cluster.client, "ps") == []
        with pytest.raises(UnreachableError, match="there is no living node ps-0"):
            await other.connect("ps-0", 5)


def test_a_killed_node_is_lost_when_its_beacons_are_missing() -> None:
    async def scenario() -> None:
        async with memory_cluster(2) as cluster:
            await cluster.start("ps", "ps-0", serve_nothing)
            await cluster.start("ps", "ps-1", serve_nothing)
            await asyncio.sleep(60)
            assert len(await nodes(cluster.client, "ps")) == 2
            await cluster.kill("ps-0")
            assert len(await nodes(cluster.client, "ps")) == 2
            await wait_for(cluster.client, "/nodes/", lambda entries: len(entries) == 1, 8, "the loss of ps-0")
            assert [node.node for node in await nodes(cluster.client)] == ["ps-1"]

    run_virtual(scenario())


def test_a_partitioned_node_ends_when_it_hears_that_it_was_given_up() -> None:
    async def scenario() -> None:
        async with memory_cluster(3) as cluster:
            context = await cluster.start("ps", "ps-0", serve_nothing)
            cluster.network.partition("ps-0", "controller-0", both_ways=True)
            await wait_for(cluster.client, "/nodes/", lambda entries: not entries, 8, "the loss of ps-0")
            assert not context.stopping.is_set()
            cluster.network.heal()
            async with asyncio.timeout(10):
                await context.stopping.wait()
            assert isinstance(context.failure, RunFailedError)
            assert "no longer part of the cluster" in str(context.failure)

    run_virtual(scenario())


def test_a_role_gives_up_a_controller_that_is_gone_for_too_long(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with memory_cluster(4) as cluster:
            context = await cluster.start("ps", "ps-0", serve_nothing)
            loop = asyncio.get_running_loop()
            before_s = loop.time()
            cluster.network.crash("controller-0")
            await context.stopping.wait()
            assert 59 < loop.time() - before_s < 70
            assert isinstance(context.failure, UnreachableError) and context.exit_code == 3
            assert "memory://controller-0" in str(context.failure)
            context.membership = None

    run_virtual(scenario())
    assert "waiting for the controller at memory://controller-0 since 2" in caplog.text


async def test_a_restarted_controller_knows_what_it_knew(tmp_path: Path) -> None:
    async with controller_on(tmp_path, ["tcp://127.0.0.1:0"]) as addresses:
        client = client_of(addresses)
        await client.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b"1"}))
        worker = client_of(addresses, "worker", "w")
        first = await worker.register(NodeRegisterRequest("w", "worker", (), "h", 1))
    async with controller_on(tmp_path, addresses):  # the same port: the client comes back by itself
        _, entries = await client.read("/")
        assert [entry.key for entry in entries] == ["/jobs/t/a", "/nodes/w"]
        await worker.beacon("w", first.incarnation)
        second = await worker.register(NodeRegisterRequest("w", "worker", (), "h", 1))
        assert second.incarnation == first.incarnation + 1
        await worker.close()
        await client.close()


async def test_what_was_read_from_the_disk_is_not_kept_beside_what_it_became(tmp_path: Path) -> None:
    async with controller_on(tmp_path, ["tcp://127.0.0.1:0"]) as addresses:
        client = client_of(addresses)
        await client.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b"1"}))
        await client.close()
    store = LogStore(tmp_path)
    assert store.entries
    core = ControllerCore()
    server.ControllerServer(core, store, log=LOG)
    assert core.state.get("/jobs/t/a") is not None
    assert store.entries == () and store.snapshot is None
    store.close()


async def test_a_node_whose_process_has_ended_is_lost_before_its_beacons_are_missed(tmp_path: Path) -> None:
    config = ControllerConfig(lost_after_s=600.0)
    async with controller_on(tmp_path, ["tcp://127.0.0.1:0"], config) as addresses:
        dying, client = client_of(addresses, "ps", "ps-0"), client_of(addresses)
        transport = StreamTransport()
        listening = await transport.serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0"), lambda request: None)
        await dying.register(NodeRegisterRequest("ps-0", "ps", listening.addresses, host_id(), 1))
        await listening.close()
        await dying.close()
        await wait_for(client, "/nodes/", lambda entries: not entries, 30, "the loss of ps-0")
        await client.close()


async def test_a_controller_refuses_what_it_does_not_do() -> None:
    async with memory_cluster(6) as cluster:
        worker, front = await cluster.context("worker", "w"), await cluster.context("front")
        connection = await cluster.network.connect("memory://controller-0", worker.hello(), deadline_s=5)
        with pytest.raises(RemoteError) as caught:
            await connection.request(RunJoinRequest("w", 0, 1), deadline_s=5)
        assert caught.value.code == ErrorCode.UNKNOWN_OPCODE
        await connection.close()
        connection = await cluster.network.connect("memory://controller-0", front.hello(), deadline_s=5)
        not_text = msgspec.msgpack.encode(ConfigChanges({}, {"/key": b""})).replace(b"/key", b"/ke\xff")
        for body in (b"\xc1", not_text):
            with pytest.raises(RemoteError, match="not a ConfigChanges") as caught:
                await connection.request(ConfigCompareAndSetRequest("s", 1), (body,), deadline_s=5)
            assert caught.value.code == ErrorCode.BAD_MESSAGE
        await connection.close()


async def test_a_request_that_finds_too_many_others_waiting_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows keys for as long as it lives must not end for that."""
    async with memory_cluster(6) as cluster:
        monkeypatch.setattr(server, "EVENTS_MAX", 0)
        reading = asyncio.create_task(cluster.client.read("/"))
        await asyncio.sleep(0.2)
        assert not reading.done()
        monkeypatch.undo()
        assert await reading == (0, [])


async def test_a_leader_tells_its_status_however_many_nodes_there_are() -> None:
    count = 3_000
    async with memory_cluster(6) as cluster:
        core = cluster.controller_core
        for number in range(count):
            record = NodeRecord(f"worker-{number:0100d}", "worker", number + 1, (), "h", 1)
            changes = {node_key(record.node): encode(record)}
            core.state.apply(Effect(core.state.revision + 1, changes))
            core.nodes.follow(core.state, changes, -float(number))
        front = await cluster.context("front")
        connection = await cluster.network.connect("memory://controller-0", front.hello(), deadline_s=5)
        reply = await connection.request(StatusRequest(), deadline_s=5)
        assert isinstance(reply.message, StatusReply)
        status = reply.message.status
        assert status["nodes"] == count and 100 < len(status["last_seen_s"]) < count
        assert f"worker-{count - 1:0100d}" in status["last_seen_s"], "the most silent are named"
        await connection.close()


async def test_names_and_addresses_that_none_can_be_are_not_registered() -> None:
    async with memory_cluster(6) as cluster:
        for request in (
            NodeRegisterRequest("a b", "ps", ("tcp://h:1",), "h", 1),
            NodeRegisterRequest("ps-0", "\x1b[2J", ("tcp://h:1",), "h", 1),
            NodeRegisterRequest("ps-0", "ps", ("http://h",), "h", 1),
            NodeRegisterRequest("ps-0", "ps", ("tcp://h:1",), "h", -1),
            NodeRegisterRequest("ps-0", "ps", ("tcp://h:1",) * 100, "h", 1),
        ):
            client = (await cluster.context("ps", "ps-0")).controller
            assert client is not None
            with pytest.raises((RemoteError, ConfigurationError)) as caught:
                await client.register(request, deadline_s=5)  # type: ignore[attr-defined]
            assert str(caught.value).isprintable()
        assert await cluster.client.read("/nodes/") == (0, [])


class FailingStore(VolatileStore):
    def persist(self, instructions: Sequence[Persist]) -> None:
        if any(isinstance(instruction, Append) for instruction in instructions):
            raise RunFailedError("the disk is full")


async def test_nothing_is_answered_when_the_disk_fails() -> None:
    with pytest.raises(RunFailedError, match="the disk is full"):
        async with memory_cluster(7, store=FailingStore()) as cluster:
            assert (await cluster.client.read("/"))[0] == 0
            cluster.client.deadline_s = 0.3
            with pytest.raises(UnreachableError):
                await cluster.client.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b""}))
