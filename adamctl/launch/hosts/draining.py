"""Has everything moved off parameter servers of a run, by a record that parameter servers follow (`/drains/NODE`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from adamctl.config.records import BucketRecord, DrainRecord, NodeRecord, drain_key, encode, node_key
from adamctl.errors import AdamctlError
from adamctl.launch.hosts.decisions import Decision, Say
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.roles_there import RolesThere
from adamctl.launch.hosts.starter import Starter
from adamctl.net.transport import Transport
from adamctl.roles.configuration import ConfigurationStore, read_record, readable
from adamctl.roles.controller.client import cluster_client
from adamctl.wire.messages import ConfigChanges, ConfigEntry, Hello

POLL_S = 0.2
WATCH_S = 2.0
DEADLINE_S = 5.0
AGAIN_S = 1.0


class Emptying:
    """Empties the parameter servers of hosts that will be taken away. Used by the front's event loop only."""

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        keeper: HostKeeper,
        starter: Starter,
        there: RolesThere,
        decide: Callable[[Iterable[Decision]], None],
    ) -> None:
        """`decide` carries out what the keeper decides."""
        self._transport, self._hello, self._keeper = transport, hello, keeper
        self._starter, self._there, self._decide = starter, there, decide

    async def empty(self, node: str) -> None:
        """Tries again as long as the server is where it was: the run may be starting, or controllers be silent."""
        placed, told = self._keeper.placed.get(node), False
        while placed is not None and self._keeper.placed.get(node) == placed:
            controllers, problem = self._starter.controllers, "it is not known yet where the controllers are"
            if controllers:
                problem = await drain(self._transport, controllers, lambda: self._hello, node)
            if not problem:
                if node in self._there.roles and self._keeper.placed.get(node) == placed:
                    self._decide(self._keeper.drained(node))
                return
            if not told:
                told = True
                self._decide([Say(f"{node} cannot be emptied yet: {problem}")])
            await asyncio.sleep(AGAIN_S)


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
