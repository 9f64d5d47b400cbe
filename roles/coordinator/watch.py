"""Notices within seconds that a node the run needs is gone: a broken connection, a vanished key, a new incarnation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from adamctl.config.records import NodeRecord, node_key
from adamctl.errors import ProtocolError, UnreachableError
from adamctl.net.transport import Connection
from adamctl.roles.configuration import ConfigurationStore, follow, nodes_of
from adamctl.roles.context import RoleContext

LOOK_EVERY_S = 0.25
CONNECT_S = 4.0


async def watch_server(context: RoleContext, record: NodeRecord, gone: Callable[[str], None]) -> None:
    """Keeps a connection to a server; calls `gone` once, with the cause, when it is there no more.

    A server that does not answer may only be busy: it counts as gone when it refuses, and `watch_nodes` sees the rest.
    """
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        while True:
            if connection is None or connection.closed:
                asked_s = loop.time()
                try:
                    connection = await context.connect(record, CONNECT_S)
                except (UnreachableError, ProtocolError) as error:
                    if loop.time() - asked_s < CONNECT_S / 2:
                        gone(str(error))
                        return
                    continue
                if connection.peer.incarnation != record.incarnation:
                    gone("it has restarted, and what it held is lost")
                    return
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        if connection is not None:
            await connection.close()


async def watch_nodes(store: ConfigurationStore, expected: Mapping[str, int], gone: Callable[[str, int], None]) -> None:
    """Follows `/nodes/`; calls `gone(node, incarnation)` for every process that is no longer a member.

    `expected` (node -> incarnation) were members a moment ago, and may be gone already.
    """
    known = dict(expected)
    async for changes in follow(store, "/nodes/"):
        found = {record.node: record.incarnation for record in nodes_of(changes.entries)}
        left = _left(known, found, changes.deleted, changes.reset)
        known = found if changes.reset else {k: v for k, v in known.items() if k not in left} | found
        for node, incarnation in left.items():
            gone(node, incarnation)


def _left(known: Mapping[str, int], found: Mapping[str, int], deleted: tuple[str, ...], reset: bool) -> dict[str, int]:
    """Returns who of `known` is gone: deleted, missing from a whole reading, or replaced by a newer incarnation."""
    return {
        node: incarnation
        for node, incarnation in known.items()
        if (node in found and found[node] != incarnation)
        or (node not in found and (reset or node_key(node) in deleted))
    }
