from __future__ import annotations

import asyncio

from adamctl.config.records import JobRecord  # noqa: F401
from adamctl.roles.controller.client import nodes
from adamctl.wire.messages import ConfigChanges, Empty, ShutdownRequest, StatusReply, StatusRequest
from tests.cluster import memory_cluster


async def test_a_node_joins_is_seen_and_leaves() -> None:
    async with memory_cluster(1) as cluster:
        async def run(context) -> None:
            await context.serve(lambda request: request.reply(Empty()))
            await context.stopping.wait()
        ctx = await cluster.start("ps", "ps-0", run)
        assert ctx.incarnation == 1
        assert [n.node for n in await nodes(cluster.client, "ps")] == ["ps-0"]
        other = await cluster.context("worker")
        connection = await other.connect("ps-0", 5)
        reply = await connection.request(StatusRequest(), deadline_s=5)
        print(reply.message)
        assert connection.peer.incarnation == 1
        await cluster.stop("ps-0")
        assert await nodes(cluster.client, "ps") == []
        await cluster.client.compare_and_set(ConfigChanges({}, {"/x": b"1"}))
