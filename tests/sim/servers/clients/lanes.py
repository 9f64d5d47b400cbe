"""The connections of a client to the servers: each tells first what is done, and may break or lose what is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import Refuse
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachReply, AttachRequest, Message
from tests.sim.engine import ViolationError

if TYPE_CHECKING:
    from tests.sim.servers.clients.push_client import SimPushClient

Reply = Message | Refuse
Respond = Callable[[Reply, object], None]
ATTEMPT_S = 0.5


class Served(Protocol):
    """A parameter server as its clients reach it."""

    name: str

    def request(
        self, connection: int, client: ClientKey, message: Message, body: memoryview, respond: Respond
    ) -> None: ...

    def disconnect(self, connection: int) -> None: ...


@dataclass
class Envelope:
    """Shards of one push that go to one server. `parts`: shard -> number, as long as it is not answered."""

    order: tuple[int, int]
    parts: dict[int, int]
    attempt: int = 0
    idle: bool = True
    later_s: float = 0.0
    gaps: int = 0


@dataclass
class Lane:
    """The way to one server. `connection` 0: none; `careful` is the last envelope that was unfinished at a trouble."""

    server: str
    connection: int = 0
    attached: bool = False
    attaching: int = 0
    unfinished: dict[tuple[int, int], Envelope] = field(default_factory=dict)
    careful: tuple[int, int] | None = None

    def is_next(self, envelope: Envelope) -> bool:
        """Returns whether no older envelope waits for an answer of one of its shards."""
        own = envelope.parts.keys()
        return all(own.isdisjoint(other.parts) for order, other in self.unfinished.items() if order < envelope.order)


class Lanes:
    """All connections of one client.

    Attributes:
        reply_sent_s: when the answer that is being taken was sent.
    """

    def __init__(self, client: SimPushClient) -> None:
        self._client, self._world = client, client.world
        self._lanes: dict[tuple[str, int], Lane] = {}
        self.reply_sent_s = 0.0

    def to(self, server: str, channel: int = 0) -> Lane:
        if (server, channel) not in self._lanes:
            self._lanes[server, channel] = Lane(server)
        return self._lanes[server, channel]

    def all(self) -> list[Lane]:
        return list(self._lanes.values())

    def attach(self, lane: Lane) -> None:
        """Makes a connection: the server is told what we know to be done, and tells what it knows of us."""
        if lane.attaching:
            return
        client = self._client
        lane.attaching = attaching = lane.connection = next(client.connections)
        settled = self._settled(lane.server)
        request = AttachRequest(client.job, client.layout.hash)

        def answered(reply: Reply | None, known: object = None) -> None:
            if lane.attaching != attaching:
                return
            lane.attaching = 0
            if isinstance(reply, AttachReply):
                lane.attached = True
                assert isinstance(known, list)
                client.take_known(known)
                client.pump(lane)
                return
            if isinstance(reply, Refuse):
                client.trouble = reply.message
                if reply.code == ErrorCode.INTERNAL:
                    client.job_failed()
                    return
                if reply.code not in (ErrorCode.NOT_READY, ErrorCode.SHUTTING_DOWN, ErrorCode.UNKNOWN_JOB):
                    raise ViolationError(f"{client.name} cannot attach to {lane.server}: {reply.code} {reply.message}")
            self.drop(lane)
            client.reread()
            self._world.after(0.05 + 0.1 * self._world.random.random(), lambda: client.pump(lane))

        self.request(lane, request, memoryview(settled.tobytes()), answered)

    def _settled(self, server: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Returns pairs of a shard and its last number before which all are answered."""
        client = self._client
        pairs: list[int] = []
        for shard, number in enumerate(client.issued):
            if client.home(shard) != server:
                continue
            for push, left in client.open.items():
                if shard in left:
                    number = min(number, client.numbers[push][shard] - 1)
            if number > 0:
                pairs += [shard, number]
        return np.array(pairs, "<i8")

    def drop(self, lane: Lane) -> None:
        """Closes a connection; the server hears of it later."""
        connection, lane.connection = lane.connection, 0
        lane.attached = False
        lane.attaching = 0
        if connection:
            server = self._client.servers[lane.server]
            self._world.send(self._client.name, server.name, lambda: server.disconnect(connection))

    def request(self, lane: Lane, message: Message, body: memoryview, answered: Callable[..., None]) -> None:
        """Calls `answered` at least once: with what the server says, or with None after a while."""
        client, world = self._client, self._world
        server, connection = client.servers[lane.server], lane.connection

        def respond(reply: Reply, arrays: object = None) -> None:
            sent_s = world.now_s

            def arrived() -> None:
                self.reply_sent_s = sent_s
                if arrays is None:
                    answered(reply)
                else:
                    answered(reply, arrays)

            world.send(server.name, client.name, arrived)

        world.send(client.name, server.name, lambda: server.request(connection, client.key, message, body, respond))
        world.after(ATTEMPT_S, lambda: answered(None))
