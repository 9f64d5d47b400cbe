"""Membership under leases of etcd: names, incarnations, beacons, the end of a node."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import msgspec
import pytest

from adamctl.config.records import RETIRED_KEY, NodeRecord, RetiredRecord, decode
from adamctl.errors import ConfigurationError, RemoteError, UnreachableError
from adamctl.net.address import host_id
from adamctl.roles.configuration import nodes, read_record, wait_for
from adamctl.roles.controller.etcd.client import EtcdClient
from adamctl.roles.controller.etcd.gateway import EtcdError, Json, _AskAgainError
from adamctl.roles.controller.etcd.nodes import Nodes
from adamctl.roles.ps.retired_clients import keep_retired
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry, NodeRegisterRequest
from tests.ports import free_ports
from tests.roles.controller.etcd_server import EtcdCluster, a_root, etcd_cluster

BOUND_S = 60.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(f"{etcd.url}{a_root()}?lost_after=4")
    yield client
    await client.close()


def process(node: str, number: int = 0, *addresses: str) -> NodeRegisterRequest:
    return NodeRegisterRequest(node, "ps", addresses, host_id(), os.getpid() + number, 7, (), ("tcp://r:1",), 8, 9)


async def gone(client: EtcdClient, node: str) -> None:
    def is_gone(entries: list[ConfigEntry]) -> bool:
        return all(decode(entry.value, NodeRecord).node != node for entry in entries)

    await wait_for(client, "/nodes/", is_gone, BOUND_S, f"the end of {node}")


class GatewayOfPuts:
    """Answers every request as etcd answers a put, at revision 5; so its callers need no etcd."""

    async def call(self, path: str, message: Json, deadline_s: float) -> Json:
        return {"header": {"revision": "5"}}


async def test_whatever_a_process_says_of_itself_it_is_recorded() -> None:
    """Also where a request has fields that a record does not keep."""
    request = msgspec.structs.replace(process("ps-0"), waits=True, stores=True, process=3, failure_domain="rack")
    made = Nodes(GatewayOfPuts(), lambda key: key)  # type: ignore[arg-type]
    record = await made._new_record(request, 1.0)
    assert record.incarnation == 5
    kept = set(record.__struct_fields__) - {"incarnation"}
    assert kept <= set(request.__struct_fields__)
    assert all(getattr(record, name) == getattr(request, name) for name in kept)


async def test_a_node_is_a_key_with_all_that_it_said(client: EtcdClient) -> None:
    reply = await client.register(process("ps-0"))
    assert (reply.lost_after_s, reply.lease_s, reply.beacon_interval_s) == (4.0, 3.2, 0.8)
    record = NodeRecord("ps-0", "ps", reply.incarnation, (), host_id(), os.getpid(), 7, (), ("tcp://r:1",), 8, 9)
    assert await nodes(client) == [record]
    await client.leave("ps-0", reply.incarnation)
    assert await nodes(client) == []


async def test_a_lease_that_runs_out_before_it_is_used_is_replaced(client: EtcdClient) -> None:
    """On a machine, or with an etcd, that stands still for long."""
    nodes_there, left = client._nodes, 2
    honest = nodes_there._new_record

    async def late(request: NodeRegisterRequest, deadline_s: float) -> NodeRecord:
        nonlocal left
        left -= 1
        if left:
            leases = (await client._gateway.call("lease/leases", {}, BOUND_S))["leases"]
            for lease in leases:
                await nodes_there._revoke(lease["ID"], BOUND_S)
        return await honest(request, deadline_s)

    nodes_there._new_record = late  # type: ignore[method-assign]
    reply = await client.register(process("ps-0"))
    assert not left and [record.incarnation for record in await nodes(client)] == [reply.incarnation]
    await client.beacon("ps-0", reply.incarnation)


async def test_a_silent_node_is_lost_and_told_so(client: EtcdClient) -> None:
    lost = await client.register(process("ps-0"))
    kept = await client.register(process("ps-1", 1))
    ending = asyncio.create_task(gone(client, "ps-0"))
    while not ending.done():
        await client.beacon("ps-1", kept.incarnation)
        await asyncio.sleep(kept.beacon_interval_s)
    await ending
    assert [record.node for record in await nodes(client)] == ["ps-1"]
    with pytest.raises(RemoteError, match="no longer a member") as caught:
        await client.beacon("ps-0", lost.incarnation)
    assert caught.value.code == ErrorCode.STALE_INCARNATION
    await client.leave("ps-1", kept.incarnation)


async def test_beacons_may_come_from_another_client(etcd: EtcdCluster, client: EtcdClient) -> None:
    """A thread of its own sends them, through a client of its own."""
    reply = await client.register(process("ps-0"))
    other = EtcdClient(client.addresses[0])
    for _ in range(7):
        await other.beacon("ps-0", reply.incarnation)
        await asyncio.sleep(reply.beacon_interval_s)
    assert [record.node for record in await nodes(client)] == ["ps-0"]
    await client.leave("ps-0", reply.incarnation)
    with pytest.raises(RemoteError, match="no longer a member"):
        await other.beacon("ps-0", reply.incarnation)
    await other.close()


async def test_incarnations_are_never_issued_twice(etcd: EtcdCluster, client: EtcdClient) -> None:
    clients = [EtcdClient(client.addresses[0]) for _ in range(4)]
    replies = await asyncio.gather(
        *(clients[number % 4].register(process(f"ps-{number}", number)) for number in range(12))
    )
    issued = {reply.incarnation for reply in replies}
    assert len(issued) == 12 and 0 not in issued
    for number, reply in enumerate(replies):
        await client.leave(f"ps-{number}", reply.incarnation)
    again = await client.register(process("ps-0"))
    assert again.incarnation > max(issued)
    for one in clients:
        await one.close()


async def test_the_same_process_may_register_again(client: EtcdClient) -> None:
    first = await client.register(process("ps-0"))
    second = await client.register(process("ps-0"))
    assert second.incarnation > first.incarnation
    await client.beacon("ps-0", second.incarnation)
    with pytest.raises(RemoteError, match="taken over by incarnation") as caught:
        await client.beacon("ps-0", first.incarnation)
    assert caught.value.code == ErrorCode.STALE_INCARNATION
    await client.leave("ps-0", first.incarnation)
    assert len(await nodes(client)) == 1


async def test_a_registration_that_comes_again_deposes_nobody(etcd: EtcdCluster, client: EtcdClient) -> None:
    """Its key stays as it is, and lives on: a new revision would tell others that its process has ended."""
    request = msgspec.structs.replace(process("ps-0"), process=77)
    first = await client.register(request)
    entries = await client.read("/nodes/")
    other = EtcdClient(client.addresses[0])
    assert await other.register(request) == first
    assert await client.read("/nodes/") == entries
    for _ in range(6):  # longer than a lease
        await other.beacon("ps-0", first.incarnation)
        await asyncio.sleep(first.beacon_interval_s)
    assert [record.incarnation for record in await nodes(client)] == [first.incarnation]
    another = await other.register(msgspec.structs.replace(request, process=78))
    assert another.incarnation > first.incarnation  # after the lease: it may be another container's process 1
    await other.close()


async def test_a_registration_that_was_under_way_when_others_came_deposes_nobody(
    etcd: EtcdCluster, client: EtcdClient
) -> None:
    """What it asked of etcd arrives when its name has been another's; and again when it is nobody's."""
    honest = client._gateway._attempt
    late: list[Json] = []

    async def attempt(path: str, message: Json, deadline_s: float, stream: bool) -> Json:
        if path == "kv/txn":
            late.append(message)
            raise _AskAgainError("still on its way", sent=True)
        return await honest(path, message, deadline_s, stream)

    client._gateway._attempt = attempt  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match="still on its way"):
        await client.register(process("ps-0"), deadline_s=1.0)
    other = EtcdClient(client.addresses[0])
    reply = await other.register(process("ps-0", 1))
    entries = await other.read("/nodes/")
    with suppress(EtcdError):
        await honest("kv/txn", late[0], 10.0, False)
    assert await other.read("/nodes/") == entries
    await other.leave("ps-0", reply.incarnation)
    with pytest.raises(EtcdError, match="lease not found"):
        await honest("kv/txn", late[0], 10.0, False)
    assert await nodes(other) == []
    await other.close()


async def test_the_name_of_one_who_listens_is_refused(client: EtcdClient) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await client.register(process("ps-0", 0, f"tcp://127.0.0.1:{port}"))
    with pytest.raises(ConfigurationError, match="belongs to a living ps"):
        await client.register(process("ps-0", 1, "tcp://127.0.0.1:1"), deadline_s=BOUND_S)
    server.close()
    await server.wait_closed()


async def test_the_name_of_one_whose_lease_is_renewed_is_refused(client: EtcdClient) -> None:
    """It cannot be asked; so its lease is waited for."""
    first = await client.register(process("ps-0"))
    wanted = asyncio.create_task(client.register(process("ps-0", 1), deadline_s=BOUND_S))
    while not wanted.done():
        await client.beacon("ps-0", first.incarnation)
        await asyncio.sleep(first.beacon_interval_s)
    with pytest.raises(ConfigurationError, match="belongs to a living ps"):
        await wanted
    await client.beacon("ps-0", first.incarnation)


async def test_the_name_of_one_who_fell_silent_is_free_when_its_lease_has_run_out(etcd: EtcdCluster) -> None:
    """After 2 s, the shortest that etcd grants by default."""
    client = EtcdClient(f"{etcd.url}{a_root()}?lost_after=2")
    first = await client.register(process("ps-0"))
    second = await client.register(process("ps-0", 1), deadline_s=BOUND_S)
    assert second.incarnation > first.incarnation and second.lost_after_s == 2.0
    await client.close()


@pytest.mark.parametrize("where", ["elsewhere", "in its place"])
async def test_the_name_of_one_who_has_ended_is_free_at_once(etcd: EtcdCluster, where: str) -> None:
    client = EtcdClient(f"{etcd.url}{a_root()}?lost_after=3600")
    port, other = free_ports(2)
    await client.register(process("ps-0", 0, f"tcp://127.0.0.1:{port}"))
    new = f"tcp://127.0.0.1:{other if where == 'elsewhere' else port}"
    async with asyncio.timeout(BOUND_S):
        await client.register(process("ps-0", 1, new))
    assert [record.pid for record in await nodes(client)] == [os.getpid() + 1]
    await client.close()


async def test_names_that_cannot_be_keys_are_refused(client: EtcdClient) -> None:
    for name in ("", "a/b", "x" * 300):
        with pytest.raises(ConfigurationError, match="not a valid node name"):
            await client.register(process(name))


async def test_a_node_outlives_a_restart_of_etcd(tmp_path_factory: pytest.TempPathFactory) -> None:
    with etcd_cluster(tmp_path_factory.mktemp("restart")) as cluster:
        client = EtcdClient(f"{cluster.url}?lost_after=3", attempt_s=0.5)
        reply = await client.register(process("ps-0"))
        cluster.kill(0)
        await asyncio.sleep(3.5)
        cluster.start(0)
        await client.beacon("ps-0", reply.incarnation)
        assert len(await nodes(client)) == 1
        await client.close()


async def test_a_cluster_has_one_identity_whoever_registers_first(etcd: EtcdCluster, client: EtcdClient) -> None:
    other = EtcdClient(client.addresses[0])
    stranger = EtcdClient(f"{etcd.url}{a_root()}?lost_after=4")
    try:
        one, two = await asyncio.gather(client.register(process("ps-0")), other.register(process("ps-1", 1)))
        assert one.cluster == two.cluster and len(one.cluster) == 16 and int(one.cluster, 16) >= 0
        assert (await stranger.register(process("ps-0", 2))).cluster not in ("", one.cluster)
        await client.leave("ps-0", one.incarnation)
        assert (await client.register(process("ps-0", 3))).cluster == one.cluster
    finally:
        await other.close()
        await stranger.close()


async def test_who_has_gone_is_retired_and_who_lives_is_not(client: EtcdClient) -> None:
    server = await client.register(process("ps-0"))
    gone = await client.register(process("ps-1", 1))
    task = asyncio.create_task(keep_retired(client, "ps-0", logging.getLogger("test"), 0.5))
    await asyncio.sleep(0.2)
    await client.leave("ps-1", gone.incarnation)
    async with asyncio.timeout(BOUND_S):
        found = None
        while found is None or not found[0].has(gone.incarnation):
            found = await read_record(client, RETIRED_KEY, RetiredRecord)
            await asyncio.sleep(0.05)
    assert not found[0].has(server.incarnation)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
