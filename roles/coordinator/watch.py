"""Detects within seconds that a node the run needs is gone: a broken connection, a deleted key, a new incarnation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from adamctl.config.records import NodeRecord
from adamctl.errors import ProtocolError, UnreachableError
from adamctl.net.transport import Connection
from adamctl.roles.configuration import ConfigurationStore, follow, nodes_of
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator.core.membership import Membership

LOOK_EVERY_S = 0.25
CONNECT_S = 4.0


async def watch_server(context: RoleContext, record: NodeRecord, gone: Callable[[str], None]) -> None:
    """Keeps a connection to a server; calls `gone` once, with the cause, when the server is gone.

    A server that does not answer may just be busy: it counts as gone when it refuses, and `watch_nodes` notices the
    rest.
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
                if connection.peer.incarnation == 0:
                    await connection.close()  # the controllers have registered it, but it has not heard of that yet
                elif connection.peer.incarnation != record.incarnation:
                    gone("it has restarted, and what it held is lost")
                    return
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        if connection is not None:
            await connection.close()


async def watch_nodes(store: ConfigurationStore, members: Membership, gone: Callable[[str, int], None]) -> None:
    """Follows `/nodes/`; calls `gone(node, incarnation)` for every process that is no longer a member."""
    async for changes in follow(store, "/nodes/"):
        found = {record.node: record.incarnation for record in nodes_of(changes.entries)}
        deleted = {key.removeprefix("/nodes/") for key in changes.deleted}
        for node, incarnation in members.take(found, deleted, changes.reset, changes.revision):
            gone(node, incarnation)
