"""Has everything moved off a parameter server of a run, by a record that parameter servers follow (`/drains/NODE`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from adamctl.config.records import BucketRecord, DrainRecord, NodeRecord, drain_key, encode, node_key
from adamctl.errors import AdamctlError
from adamctl.net.transport import Transport
from adamctl.roles.configuration import ConfigurationStore, read_record, readable
from adamctl.roles.controller.client import cluster_client
from adamctl.wire.messages import ConfigChanges, ConfigEntry, Hello

POLL_S = 0.2
WATCH_S = 2.0
DEADLINE_S = 5.0


async def drain(transport: Transport, controllers: Sequence[str], hello: Callable[[], Hello], node: str) -> str:
    """Returns when no bucket names the server any more: empty, or why it could not be emptied.

    The record stays: it is about the process that runs now, and holds until that ends.
    """
    store = cluster_client(transport, controllers, hello, deadline_s=DEADLINE_S)
    try:
        found = await read_record(store, node_key(node), NodeRecord)
        if found is None:
            return "it is no member of the cluster"
        await _mark(store, node, found[0].incarnation)
        revision, entries = await store.read("/jobs/")
        while any(_names(entry, node) for entry in entries):
            await store.watch("/jobs/", revision, WATCH_S)
            await asyncio.sleep(POLL_S)
            revision, entries = await store.read("/jobs/")
        return ""
    except AdamctlError as error:
        return str(error)
    finally:
        await store.close()


async def _mark(store: ConfigurationStore, node: str, incarnation: int) -> None:
    """Writes the record, unless it is there already."""
    key = drain_key(node)
    while True:
        known = await read_record(store, key, DrainRecord)
        if known is not None and known[0].incarnation == incarnation:
            return
        record = encode(DrainRecord(incarnation, time.time()))
        reply = await store.compare_and_set(ConfigChanges({key: known[1] if known is not None else 0}, {key: record}))
        if not reply.conflicts:
            return


def _names(entry: ConfigEntry, node: str) -> bool:
    record = readable(entry, BucketRecord) if "/buckets/" in entry.key else None
    return record is not None and node in (*record.in_sync, *record.learners)
