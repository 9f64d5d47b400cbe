"""Reads a cluster for its metrics: follows the configuration, and asks every node for its status within a bound.

One reading is in flight at a time, however many ask for it, and one question to each node: a node that is frozen gets
no second one before the first was answered or given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from adamctl.config.records import NodeRecord
from adamctl.errors import AdamctlError
from adamctl.metrics.cluster_view import ClusterView
from adamctl.metrics.samples import ClusterReading, NodeReading
from adamctl.net.address import prefer
from adamctl.net.transport import Connection, Transport
from adamctl.roles.configuration import ConfigurationStore
from adamctl.roles.controller.client import ControllerClient, cluster_client
from adamctl.roles.controller.known_addresses import KnownAddresses
from adamctl.wire.changes import Changes
from adamctl.wire.messages import Hello, StatusReply, StatusRequest

QUESTION_S: Final = 10.0
"""After this long without an answer a node is asked again, over a new connection."""
WATCH_S: Final = 5.0
AGAIN_S: Final = 1.0
NODE_DEADLINE_S: Final = 0.5
"""How long a reading waits for the slowest node."""

_log = logging.getLogger("adamctl.metrics")


class Question:
    """Asks one process for its status, again and again, over a connection that stays open."""

    def __init__(self, transport: Transport, address: str, hello: Callable[[], Hello]) -> None:
        self._transport, self._address, self._hello = transport, address, hello
        self._connection: Connection | None = None
        self._asking: asyncio.Task[dict[str, Any] | None] | None = None

    def ask(self) -> asyncio.Task[dict[str, Any] | None]:
        """Returns the question that is open, or a new one. Its result is None if the process does not answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return self._asking

    async def _ask(self) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(QUESTION_S):
                if self._connection is None or self._connection.closed:
                    self._connection = await self._transport.connect(
                        self._address, self._hello(), deadline_s=QUESTION_S
                    )
                reply = await self._connection.request(StatusRequest(), deadline_s=QUESTION_S)
        except (AdamctlError, TimeoutError) as error:
            _log.debug("%s does not answer: %s", self._address, error)
            await self._drop()
            return None
        return reply.message.status if isinstance(reply.message, StatusReply) else None

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._drop()


class ClusterFollower:
    """An async context manager; follows the cluster while the block lasts."""

    def __init__(
        self,
        transport: Transport,
        addresses: Sequence[str],
        hello: Callable[[], Hello],
        *,
        node_deadline_s: float = NODE_DEADLINE_S,
        log: logging.Logger = _log,
    ) -> None:
        """
        Args:
            addresses: of controllers, or the URL of an etcd cluster.
            hello: the identity to ask with; its role has to be one that may send STATUS.
            node_deadline_s: how long a reading waits for nodes that do not answer.
        """
        self._transport, self._hello, self._log = transport, hello, log
        self._addresses = KnownAddresses(addresses)
        self._node_deadline_s = node_deadline_s
        self.view = ClusterView()
        self._store: ConfigurationStore | None = None
        self._heard_s = 0.0
        self._questions: dict[tuple[str, str, int], Question] = {}
        self._controllers: dict[str, str] = dict.fromkeys(self._addresses.given, "")  # address -> name
        self._tasks: list[asyncio.Task[None]] = []
        self._reading: asyncio.Task[ClusterReading] | None = None

    async def __aenter__(self) -> ClusterFollower:
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        self._store = cluster_client(
            self._transport, self._addresses, self._hello, deadline_s=QUESTION_S, log=self._log
        )
        first: list[asyncio.Future[None]] = [loop.create_future(), loop.create_future()]
        self._tasks = [
            asyncio.create_task(self._follow("/nodes/", self.view.take_nodes, first[0])),
            asyncio.create_task(self._follow("/jobs/", self.view.take_jobs, first[1])),
        ]
        await asyncio.wait(first, timeout=self._node_deadline_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *((self._reading,) if self._reading is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(question.close() for question in self._questions.values()))
        if self._store is not None:
            await self._store.close()  # type: ignore[attr-defined]

    async def read(self) -> ClusterReading:
        """Returns the cluster as it is now; whoever calls meanwhile gets the same reading."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    # --- the configuration ------------------------------------------------------------------------------------------

    async def _follow(self, prefix: str, take: Callable[[Changes], None], first: asyncio.Future[None]) -> None:
        """Keeps the view up to date, whatever happens to the controllers."""
        assert self._store is not None
        loop, told = asyncio.get_running_loop(), False
        while True:
            try:
                revision, entries = await self._store.read(prefix)
                take(Changes(revision, tuple(entries), (), True))
                told = False
                while True:
                    self._heard_s = loop.time()
                    if not first.done():
                        first.set_result(None)
                    changes = await self._store.watch(prefix, revision, WATCH_S)
                    revision = changes.revision
                    take(changes)
            except AdamctlError as error:
                if not told:
                    self._log.warning("the configuration cannot be read: %s; trying again", error)
                told = True
                await asyncio.sleep(AGAIN_S)

    # --- one reading ------------------------------------------------------------------------------------------------

    async def _read(self) -> ClusterReading:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        records = [record for record in self.view.nodes if record.addresses]  # clients of others serve no requests
        self._know_controllers()
        wanted = {("controller", address, 0): address for address in self._controllers}
        for record in records:
            with suppress(AdamctlError):
                address = prefer(record.addresses_for("administration"), record.host, self._transport.kind)
                wanted[record.role, record.node, record.incarnation] = address
        await self._keep(wanted)
        answers = await self._answers()
        nodes = [*self._controller_readings(answers), *(self._reading_of(record, answers) for record in records)]
        roles = self.view.counts()
        seconds = loop.time() - began_s
        return ClusterReading(nodes, self.view.jobs(), max(began_s - self._heard_s, 0.0), seconds, roles)

    async def _keep(self, wanted: Mapping[tuple[str, str, int], str]) -> None:
        """Forgets processes that are gone and opens questions to new ones."""
        gone: list[Coroutine[Any, Any, None]] = [
            self._questions.pop(key).close() for key in self._questions.keys() - wanted.keys()
        ]
        await asyncio.gather(*gone)
        for key, address in wanted.items():
            if key not in self._questions:
                self._questions[key] = Question(self._transport, address, self._hello)

    async def _answers(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """Returns what those said who answered in time."""
        asked = {key: question.ask() for key, question in self._questions.items()}
        if asked:
            await asyncio.wait(asked.values(), timeout=self._node_deadline_s)
        found: dict[tuple[str, str, int], dict[str, Any]] = {}
        for key, asking in asked.items():
            status = asking.result() if asking.done() and not asking.cancelled() else None
            if status is not None:
                found[key] = status
        return found

    def _reading_of(self, record: NodeRecord, answers: Mapping[tuple[str, str, int], dict[str, Any]]) -> NodeReading:
        status = answers.get((record.role, record.node, record.incarnation))
        return NodeReading(record.role, record.node, status, self.view.restarts(record.node))

    # --- controllers ------------------------------------------------------------------------------------------------

    def _know_controllers(self) -> None:
        if not isinstance(self._store, ControllerClient):
            self._controllers = {}  # an etcd has metrics of its own

    def _controller_readings(self, answers: Mapping[tuple[str, str, int], dict[str, Any]]) -> list[NodeReading]:
        """Returns one reading for each known controller; what they say of each other says who they are."""
        said, told = dict[str, dict[str, Any] | None](), dict[str, str]()  # by name: one may be known by two addresses
        for address, known in self._controllers.items():
            status = answers.get(("controller", address, 0))
            name = str((status or {}).get("node", "")) or known or address
            self._controllers[address] = name
            if status is not None or name not in said:
                said[name] = status
            told |= {where: who for who, where in _members((status or {}).get("members"))}
        if told:
            self._addresses.learn(sorted(told))
            self._controllers = told | {
                address: name
                for address, name in self._controllers.items()
                if address in told or (address in self._addresses.given and (name == address or name in told.values()))
            }
            said = {name: said[name] for name in said if name in self._controllers.values()}  # others were replaced
        return [
            NodeReading("controller", name, status, self.view.controller_restarts(name, (status or {}).get("uptime_s")))
            for name, status in said.items()
        ]


def _members(said: Any) -> list[tuple[str, str]]:
    """Returns (name, address) of the controllers that a controller's status lists."""
    if not isinstance(said, (list, tuple)):
        return []
    pairs = [(one.get("name"), one.get("address")) for one in said if isinstance(one, dict)]
    return [(str(name), address) for name, address in pairs if isinstance(address, str) and "://" in address]
