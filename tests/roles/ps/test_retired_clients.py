"""From the end of a client to what parameter servers forget of it, through a controller."""

from __future__ import annotations

from adamctl.config.records import RETIRED_KEY, RetiredRecord, decode
from adamctl.model.rule import RuleConfig
from adamctl.roles.configuration import wait_for
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry, NodeRegisterRequest
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
