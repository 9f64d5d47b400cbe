"""Reports at once to the membership service that a process has ended, so that nobody waits for missed beacons.

Only the parent that reaped a process knows for certain; others must wait until its lease is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adamctl.errors import AdamctlError
from adamctl.launch.supervision import RoleEnd, describe_status
from adamctl.net.transport import Transport
from adamctl.wire.messages import Hello

if TYPE_CHECKING:
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.roles.controller.etcd.client import EtcdClient

TELL_DEADLINE_S = 5.0
CLOSE_S = 1.0


class Deaths:
    """The reports of one supervisor. Used by one event loop."""

    def __init__(self, transport: Transport, hello: Hello) -> None:
        self._transport = transport
        self._hello = hello
        self._client: ControllerClient | EtcdClient | None = None
        self._former: list[ControllerClient | EtcdClient] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def controllers_at(self, addresses: Sequence[str]) -> None:
        """Sets the addresses of the controllers, or of etcd; nothing can be reported before. More may become known."""
        from adamctl.roles.controller.client import cluster_client  # while roles are starting, not before

        self._former += [] if self._client is None else [self._client]
        self._client = cluster_client(
            self._transport, addresses, lambda: self._hello, deadline_s=TELL_DEADLINE_S, attempt_s=1.0
        )

    def tell(self, end: RoleEnd) -> None:
        """Starts to report a reaped process, if it ever was a member."""
        if self._client is not None and end.incarnation:
            task = asyncio.create_task(self._tell(self._client, end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Gives pending reports a moment to arrive: the end of a process may end the run."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in (*self._former, *(() if self._client is None else (self._client,))):
            await client.close()

    async def _tell(self, client: ControllerClient | EtcdClient, end: RoleEnd) -> None:
        try:
            await client.leave(end.node, end.incarnation, why=f"has ended: {describe_status(end.status)}")
        except AdamctlError:
            return  # its beacons will be missed
