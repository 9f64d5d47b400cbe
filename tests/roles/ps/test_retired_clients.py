"""From the end of a client to what parameter servers forget of it, through a controller and with etcd."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from adamctl.config.records import RETIRED_KEY, NodeRecord, RetiredRecord, decode, encode, node_key
from adamctl.model.rule import RuleConfig
from adamctl.roles.configuration import read_record, wait_for
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.ps.retired_clients import keep_retired
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, ConfigEntry, NodeRegisterRequest
from tests.cluster import ClusterInMemory, memory_cluster
from tests.roles.ps.ps_cluster import add_job, constant, make_layout, push_of, start_servers

SOON = ControllerConfig(beacon_interval_s=1.0, lost_after_s=8.0, retire_after_s=0.3)
BOUND_S = 20.0


async def member(cluster: ClusterInMemory, name: str) -> ParameterClient:
    """A client that is known to the controller, until it leaves."""
    context = await cluster.context("worker", name)
    assert isinstance(context.controller, ControllerClient)
    reply = await context.controller.register(NodeRegisterRequest(name, "worker", (), "h", 1, process=len(name)))
    context.incarnation = reply.incarnation
    client = ParameterClient.from_context(context, "a")
    await client.attach(deadline_s=BOUND_S)
    return client


async def test_who_has_been_gone_for_the_horizon_is_forgotten_and_refused() -> None:
    layout = make_layout()
    push = push_of(layout, constant(layout, 1.0), kind="delta")
    async with memory_cluster(config=SOON) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        gone = await member(cluster, "gone")
        assert not (await gone.push(push, deadline_s=BOUND_S)).refused
        incarnation = gone._session.hello().incarnation
        assert isinstance(gone._session.store, ControllerClient)
        await gone._session.store.leave("gone", incarnation)

        def retired(entries: list[ConfigEntry]) -> bool:
            return any(decode(entry.value, RetiredRecord).has(incarnation) for entry in entries)

        await wait_for(cluster.client, RETIRED_KEY, retired, BOUND_S, "the end of an incarnation")
        stays = await member(cluster, "stays")
        codes: set[int] = set()
        for _ in range(100):  # the server is told, and forgets with the next push
            assert not (await stays.push(push, deadline_s=BOUND_S)).refused
            codes = {part.code for part in (await gone.push(push, deadline_s=BOUND_S)).refused}
            if codes:
                break
        assert codes == {ErrorCode.CLIENT_EVICTED}
        await gone.close()
        await stays.close()


async def test_with_etcd_the_record_is_written_by_one_and_follows_the_nodes() -> None:
    """With a short horizon; the other server does nothing, and nobody who lives is retired."""
    store = MemoryConfigurationStore()
    for name, role, number in (("ps-0", "ps", 1), ("ps-1", "ps", 2), ("w-0", "worker", 3)):
        record = encode(NodeRecord(name, role, number, (), "host", 1))  # type: ignore[arg-type]
        assert not (await store.compare_and_set(ConfigChanges({}, {node_key(name): record}))).conflicts
    log = logging.getLogger("test")
    other = asyncio.create_task(keep_retired(store, "ps-1", log, 0.2))
    await asyncio.sleep(0.5)
    assert await read_record(store, RETIRED_KEY, RetiredRecord) is None, "it is not the first"
    tasks = [other, asyncio.create_task(keep_retired(store, "ps-0", log, 0.2))]
    await store.compare_and_set(ConfigChanges({}, {}, (node_key("w-0"),)))
    async with asyncio.timeout(20):
        while (found := await read_record(store, RETIRED_KEY, RetiredRecord)) is None or not found[0].has(3):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not found[0].has(1) and not found[0].has(2)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
