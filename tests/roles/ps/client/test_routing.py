"""What clients read about a job, and what is said when it is not there."""

from __future__ import annotations

import pytest

from adamctl.config.records import JobRecord, NodeRecord, encode, job_key, node_key
from adamctl.errors import RemoteError, UnreachableError
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.ps.client.routing import read_node, read_routing
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges
from tests.roles.ps.core.test_job_records import LAYOUT, entries


async def store_with(*found: tuple[str, bytes]) -> MemoryConfigurationStore:
    store = MemoryConfigurationStore()
    await store.compare_and_set(ConfigChanges({}, dict(found)))
    return store


async def test_routing_names_the_server_of_every_shard() -> None:
    store = await store_with(*((entry.key, entry.value) for entry in entries()))
    routing = await read_routing(store, "a")
    assert routing.servers == {"ps-0": tuple(range(len(routing.layout.shards)))}
    assert routing.epochs_of([0]) == {0: 1} and routing.primary[routing.layout.bucket_of_shard[3]] == "ps-0"
    again = await read_routing(store, "a", routing.layout)
    assert again.layout is routing.layout


@pytest.mark.parametrize(("state", "keep", "code"), [("running", 0, 32), ("ended", 99, 65), ("running", 5, 42)])
async def test_a_job_that_is_not_ready_is_told_from_one_that_is_not_there(state: str, keep: int, code: int) -> None:
    store = await store_with(*((entry.key, entry.value) for entry in entries(state=state)[:keep]))
    with pytest.raises(RemoteError) as caught:
        await read_routing(store, "a")
    assert caught.value.code == code


async def test_a_job_without_layout_is_not_ready() -> None:
    record = JobRecord("running", LAYOUT.layout().hash, RuleConfig("sgd"), 1)
    with pytest.raises(RemoteError) as caught:
        await read_routing(await store_with((job_key("a"), encode(record))), "a")
    assert caught.value.code == ErrorCode.NOT_READY


async def test_nodes_are_found_by_their_whole_name() -> None:
    record = NodeRecord("ps-10", "ps", 1, ("memory://ps-10",), "host", 1)
    store = await store_with((node_key("ps-10"), encode(record)))
    assert await read_node(store, "ps-10") == record
    with pytest.raises(UnreachableError, match="ps-1 is not registered"):
        await read_node(store, "ps-1")
