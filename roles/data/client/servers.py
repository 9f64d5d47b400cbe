"""The data servers that a client reads from: which of them are alive, which came, and which come back.

A server that fails is not asked until it has opened the data again, in the background: so a dead one delays the reads
that it was asked for, and no others. Servers that join the cluster while a job runs are found by their registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from adamctl.config.records import NodeRecord
from adamctl.errors import AdamctlError, UnreachableError
from adamctl.roles.data.client.data_set import DataSet, elsewhere, open_again
from adamctl.roles.data.client.link import DataServerLink, connector_of_node

if TYPE_CHECKING:
    from adamctl.roles.context import RoleContext

REVIVAL_S: Final = 2.0
"""The longest pause between two tries of a server that failed; the first ones are shorter."""
OPENING_S: Final = 120.0
_FOLLOW_AGAIN_S: Final = 1.0

_log = logging.getLogger("adamctl.data.client")


class DataServers:
    """Links to the servers by name, and who of them gives parts of which data set."""

    def __init__(self, links: list[DataServerLink], context: RoleContext | None = None) -> None:
        """`context`: where servers that join are looked for; None: there are no others than these."""
        self.links = {link.name: link for link in links}
        self._given = set(self.links)
        self._context = context if context is not None and context.controller is not None else None
        self._serving: dict[str, set[str]] = {}  # by data set: the servers that have opened it and answer
        self._reviving: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # all that goes on in the background
        self._shared: dict[str, DataSet] = {}
        self._news = asyncio.Event()

    def share(self, data: DataSet, opened: list[str]) -> None:
        """Begins to share a data set out; `opened` have it open."""
        self._shared[data.dataset] = data
        self._serving[data.dataset] = set(opened)
        for name in set(self.links).difference(opened):
            self._revive(name, data)
        if self._context is not None and self._following is None:
            self._following = self._in_background(self._follow(self._context))

    def alive(self, data: DataSet) -> list[str]:
        """Returns who is asked for parts of a data set, sorted."""
        return sorted(self._serving[data.dataset])

    @property
    def several(self) -> bool:
        """Whether more than one server may give parts of the data sets that are shared out, now or later."""
        return len(self.links) > 1

    def failed(self, name: str, data: DataSet, error: Exception) -> None:
        """A server did not answer: it is not asked again before it has opened the data set anew."""
        link = self.links.get(name)
        if link is not None and name in self._serving[data.dataset]:
            link.failed(asyncio.get_running_loop().time(), error)
            self._serving[data.dataset].discard(name)
            self._revive(name, data)

    async def others(self) -> list[DataServerLink]:
        """Returns new links to data servers of the cluster that there are none to; none if it cannot be asked."""
        from adamctl.roles.configuration import nodes

        if self._context is None:
            return []
        assert self._context.controller is not None
        try:
            found = await nodes(self._context.controller, "data")
        except UnreachableError:
            return []
        return [self._link(self._context, record.node) for record in found if record.node not in self.links]

    def _link(self, context: RoleContext, name: str) -> DataServerLink:
        link = self.links[name] = DataServerLink(name, connector_of_node(context, name))
        return link

    async def wait_for_any(self, deadline: float) -> None:
        """Returns when a server has come, come back, or the deadline has passed."""
        self._news.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await self._news.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Closes all connections, and ends what goes on in the background."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self.links.values()))

    # --- in the background ------------------------------------------------------------------------------------------

    def _revive(self, name: str, data: DataSet) -> None:
        if (name, data.dataset) not in self._reviving:
            self._reviving[name, data.dataset] = self._in_background(self._until_back(name, data))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _until_back(self, name: str, data: DataSet) -> None:
        try:
            await self._try_again(name, data)
        finally:  # at once: it may fail again before this task counts as done
            if self._reviving.get((name, data.dataset)) is asyncio.current_task():
                del self._reviving[name, data.dataset]

    async def _try_again(self, name: str, data: DataSet) -> None:
        """Opens a data set on a server as soon as it can, and counts it as alive then; or says why it never will."""
        loop = asyncio.get_running_loop()
        while (link := self.links.get(name)) is not None:
            await asyncio.sleep(min(max(link.away_until_s - loop.time(), 0.0), REVIVAL_S))
            try:
                await open_again(link, data, OPENING_S)
            except AdamctlError as error:
                if isinstance(error, UnreachableError) or elsewhere(error):
                    continue
                link.failed(loop.time(), error)
                _log.warning("data server %s takes no part in serving %s: %s", name, data.config.source, error)
                return
            self._serving[data.dataset].add(name)
            self._news.set()
            return

    async def _follow(self, context: RoleContext) -> None:
        """Follows the cluster's members: data servers that come are asked, too, those that go are forgotten."""
        from adamctl.roles.configuration import follow, nodes_of

        assert context.controller is not None
        known: dict[str, int] = {}
        while True:
            try:
                async for changes in follow(context.controller, "/nodes/"):
                    found = {record.node: record for record in nodes_of(changes.entries, "data")}
                    gone = set(known).difference(found) if changes.reset else _names(changes.deleted)
                    for name in gone:
                        known.pop(name, None)
                        self._forget(name)
                    for name, record in found.items():
                        if known.get(name) != record.incarnation:
                            known[name] = record.incarnation
                            self._came(context, record)
            except AdamctlError as error:
                _log.info("cannot follow which data servers there are: %s", error)
                await asyncio.sleep(_FOLLOW_AGAIN_S)

    def _came(self, context: RoleContext, record: NodeRecord) -> None:
        name = record.node
        if name not in self.links:
            self._link(context, name)
        for data in self._shared.values():
            if name not in self._serving[data.dataset]:
                self._revive(name, data)

    def _forget(self, name: str) -> None:
        """Drops a server that has left the cluster, unless it was named to this client: that one may come back."""
        for serving in self._serving.values():
            serving.discard(name)
        if name in self._given:
            for data in self._shared.values():
                self._revive(name, data)
            return
        for key in [key for key in self._reviving if key[0] == name]:
            self._reviving.pop(key).cancel()
        link = self.links.pop(name, None)
        if link is not None:
            self._in_background(link.close())


def _names(keys: tuple[str, ...]) -> set[str]:
    return {key.rpartition("/")[2] for key in keys}
