"""Follows which client incarnations are retired, so that shards need not remember them for ever.

The controllers write the record, `/retired`. If etcd keeps the configuration, parameter servers do: every one runs
`keep_retired`, but only one at a time writes.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from adamctl.config.records import RETIRED_KEY, NodeRecord, RetiredRecord, decode, encode
from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.configuration import ConfigurationStore, follow_on
from adamctl.roles.ps.core.ended_incarnations import EndedIncarnations, is_first
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.wire.messages import ConfigChanges, ConfigEntry
from adamctl.wire.unreadable import UNREADABLE

RETIRE_AFTER_S = 600.0
LOOKS_PER_HORIZON = 20


async def follow_retired(store: ConfigurationStore, core: ServerCore, log: logging.Logger) -> None:
    """Passes each new record of retired incarnations to the core. Never returns."""
    away = partial(log.debug, "the controller cannot be reached, so no clients are retired: %s")
    async for changes in follow_on(store, RETIRED_KEY, away):
        for entry in changes.entries:
            if entry.key == RETIRED_KEY:
                _take(core, entry.value, log)


def _take(core: ServerCore, value: bytes, log: logging.Logger) -> None:
    try:
        record = decode(value, RetiredRecord)
    except UNREADABLE as error:
        log.warning("%s cannot be read: %s", RETIRED_KEY, error)
        return
    if tuple(sorted(record.kept)) == record.kept:
        core.retired = record


async def keep_retired(
    store: ConfigurationStore, node: str, log: logging.Logger, horizon_s: float = RETIRE_AFTER_S
) -> None:
    """Reads the live nodes periodically and retires incarnations gone for `horizon_s`. Never returns."""
    ended, loop = EndedIncarnations(horizon_s), asyncio.get_running_loop()
    while True:
        try:
            await _look(store, node, ended, loop.time())
        except (UnreachableError, RemoteError) as error:
            log.debug("no clients can be retired at present: %s", error)
        await asyncio.sleep(horizon_s / LOOKS_PER_HORIZON)


async def _look(store: ConfigurationStore, node: str, ended: EndedIncarnations, now: float) -> None:
    revision, entries = await store.read("/nodes/")
    living = [record for record in map(_node, entries) if record is not None]
    ended.note(now, revision, (record.incarnation for record in living))
    if not is_first(node, living):
        return
    _, found = await store.read(RETIRED_KEY)
    entry = next((one for one in found if one.key == RETIRED_KEY), None)
    wanted = ended.record(now, _known(entry))
    if wanted is not None:
        before = entry.revision if entry is not None else 0
        await store.compare_and_set(ConfigChanges({RETIRED_KEY: before}, {RETIRED_KEY: encode(wanted)}))


def _node(entry: ConfigEntry) -> NodeRecord | None:
    try:
        return decode(entry.value, NodeRecord)
    except UNREADABLE:
        return None


def _known(entry: ConfigEntry | None) -> RetiredRecord:
    """Returns the current record; an unreadable one counts as empty, so it is overwritten."""
    try:
        return decode(entry.value, RetiredRecord) if entry is not None else RetiredRecord()
    except UNREADABLE:
        return RetiredRecord()
