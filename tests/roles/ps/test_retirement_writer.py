"""Who writes `/retired` where etcd keeps the configuration."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from adamctl.config.records import RETIRED_KEY, NodeRecord, RetiredRecord, encode, node_key
from adamctl.roles.configuration import read_record
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.ps.retirement_writer import keep_retired
from adamctl.wire.messages import ConfigChanges


async def test_the_record_is_written_by_one_and_follows_the_nodes() -> None:
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
