"""Follows which client incarnations are retired, so that shards need not remember them for ever."""

from __future__ import annotations

import asyncio
import logging

from adamctl.config.records import RETIRED_KEY, RetiredRecord, decode
from adamctl.errors import UnreachableError
from adamctl.roles.configuration import ConfigurationStore, follow
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.wire.unreadable import UNREADABLE

CONTROLLER_PAUSE_S = 0.5


async def follow_retired(store: ConfigurationStore, core: ServerCore, log: logging.Logger) -> None:
    """Passes each new record of retired incarnations to the core. Never returns."""
    while True:
        try:
            async for changes in follow(store, RETIRED_KEY):
                for entry in changes.entries:
                    if entry.key == RETIRED_KEY:
                        _take(core, entry.value, log)
        except UnreachableError as error:
            log.debug("the controller cannot be reached, so no clients are retired: %s", error)
            await asyncio.sleep(CONTROLLER_PAUSE_S)


def _take(core: ServerCore, value: bytes, log: logging.Logger) -> None:
    try:
        record = decode(value, RetiredRecord)
    except UNREADABLE as error:
        log.warning("%s cannot be read: %s", RETIRED_KEY, error)
        return
    if tuple(sorted(record.kept)) == record.kept:
        core.retired = record
