"""Whoever reaps a process tells the controllers, which need not wait then."""

from __future__ import annotations

import asyncio
from pathlib import Path

from adamctl.launch.deaths import Deaths
from adamctl.launch.supervision import RoleEnd
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.configuration import nodes, wait_for
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.etcd.client import EtcdClient
from adamctl.wire.messages import Empty, NodeRegisterRequest
from tests.cluster import memory_cluster
from tests.roles.controller.etcd_server import etcd_cluster


async def serve(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    await context.stopping.wait()


def test_a_reaped_process_is_a_member_no_more_at_once_even_while_its_address_answers() -> None:
    async def scenario() -> None:
        async with memory_cluster(1) as cluster:
            first = await cluster.start("ps", "ps-0", serve)
            await cluster.start("ps", "ps-1", serve)
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            deaths = Deaths(cluster.network, make_hello("front", "front-1"))
            deaths.tell(RoleEnd("ps-0", -9, incarnation=first.incarnation))  # nobody knows where the controllers are
            deaths.controllers_at(["memory://controller-0"])
            deaths.tell(RoleEnd("ps-1", -9))  # it never was a member
            deaths.tell(RoleEnd("ps-1", -9, incarnation=99))  # this one was another
            deaths.tell(RoleEnd("ps-0", -9, incarnation=first.incarnation))
            await wait_for(cluster.client, "/nodes/", lambda entries: len(entries) == 1, 5, "the loss of ps-0")
            assert loop.time() - begun_s < first.lease.lease_s / 4
            assert [node.node for node in await nodes(cluster.client)] == ["ps-1"]
            await first.stopping.wait()
            assert "no longer part of the cluster" in first.stop_reason and not first.lease.valid()
            await deaths.close()

    run_virtual(scenario())


def test_controllers_that_do_not_answer_hold_up_nobody() -> None:
    async def scenario() -> None:
        async with memory_cluster(2) as cluster:
            cluster.network.crash("controller-0")
            deaths = Deaths(cluster.network, make_hello("front", "front-1"))
            deaths.controllers_at(["memory://controller-0"])
            deaths.tell(RoleEnd("ps-0", -9, incarnation=1))
            await asyncio.sleep(20)
            deaths.tell(RoleEnd("ps-0", -9, incarnation=1))
            await deaths.close()

    run_virtual(scenario())


async def test_etcd_is_told_in_the_place_of_controllers(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as etcd:
        client = EtcdClient(f"{etcd.url}?lost_after=3600")
        replies = [
            await client.register(NodeRegisterRequest(f"ps-{number}", "ps", (), host_id(), number)) for number in (0, 1)
        ]
        deaths = Deaths(StreamTransport(), make_hello("front", "front-1"))
        deaths.controllers_at(client.addresses)
        deaths.tell(RoleEnd("ps-0", -9, incarnation=replies[0].incarnation))
        deaths.tell(RoleEnd("ps-1", -9, incarnation=replies[1].incarnation + 1))  # this one was another
        await wait_for(client, "/nodes/", lambda entries: len(entries) == 1, 30, "the loss of ps-0")
        assert [node.node for node in await nodes(client)] == ["ps-1"]
        await deaths.close()
        await client.close()
