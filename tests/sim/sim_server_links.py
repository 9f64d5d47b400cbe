"""What a simulated server asks of other servers, and answers them, over links on which anything may happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adamctl.roles.ps.core_copies import HeldShard
from adamctl.roles.ps.core_instructions import Refuse
from adamctl.roles.ps.core_replication_events import Ask, Reply
from adamctl.roles.ps.replica_body import CopyRecord, decode_body, encode_body
from adamctl.wire.messages import Message
from tests.sim.server_ledger import done_of

if TYPE_CHECKING:
    from tests.sim.sim_server import SimServer


@dataclass(frozen=True, eq=False)
class PeerRequest:
    """Another server's request. `respondent`: the incarnation that answers."""

    peer: str
    incarnation: int
    message: Message
    body: bytes
    respond: Callable[[Message, bytes, int], None]
    refuse: Callable[[Refuse], None]
    broken: Callable[[], None]
    respondent: int = 0


class ServerLinks:
    """The links of one process to the other servers."""

    def __init__(self, server: SimServer) -> None:
        self._server, self._view = server, server.view
        self._orders: dict[int, str] = {}

    def ask(self, ask: Ask) -> None:
        """Sends a request; its body is read off the arrays a little later, when they are held for the last time."""
        self._orders[ask.order] = ask.peer
        server, view, incarnation = self._server, self._view, self._server.incarnation
        peer = server.peers[ask.peer]

        def respond(message: Message, body: bytes, peer_incarnation: int) -> None:
            server.gate(view.run, lambda: answered(message, body, peer_incarnation))

        def answered(message: Message, body: bytes, peer_incarnation: int) -> None:
            if self._orders.pop(ask.order, None) is not None:
                records = decode_body(memoryview(body)) if body else []
                now = server.clock.now()
                server.do(server.replication.answered(ask.order, message, records, peer_incarnation, now))

        def refuse(answer: Refuse) -> None:
            server.gate(view.run, lambda: refused(answer))

        def refused(answer: Refuse) -> None:
            if self._orders.pop(ask.order, None) is not None:
                server.do(server.replication.refused(ask.order, answer.message, server.clock.now()))

        def broken() -> None:
            view.after(0.0, lambda: self.broken(ask.peer))

        def sent() -> None:
            body = b"".join(encode_body(ask.records)) if ask.records else b""
            for image in ask.images:
                image.release()
            request = PeerRequest(server.name, incarnation, ask.message, body, respond, refuse, broken)
            view.send_reliably(peer.name, lambda: peer.peer_request(request), broken)

        server.soon(bool(ask.images), sent)
        view.after(server.clock.true_length_s(ask.deadline_s), lambda: self._failed(ask.order, "no answer in time"))

    def _failed(self, order: int, why: str) -> None:
        server = self._server
        if self._orders.pop(order, None) is not None and server.core is not None:
            server.do(server.replication.failed(order, why, server.clock.now()))

    def broken(self, peer: str) -> None:
        """A connection has ended, and nobody will answer over it."""
        for order in [order for order, asked in self._orders.items() if asked == peer]:
            self._failed(order, "the connection is closed")

    def requested(self, request: PeerRequest) -> None:
        """Takes a request of another server; each state that comes with it is one that there was."""
        server = self._server
        if server.core is None:
            return
        request = replace(request, respondent=server.incarnation)
        body = memoryview(request.body)
        records = [CopyRecord(r.copy, [a.copy() for a in r.arrays]) for r in decode_body(body)] if body else []
        now = server.clock.now()
        server.do(server.replication.requested(request, request.peer, request.message, records, now))
        for record in records:
            held = server.owner_of(record.copy.shard)
            if isinstance(held, HeldShard) and held.copy is not None:
                version = (held.copy.epoch, held.copy.counter)
                done = done_of(held.memory.record())
                server.invariants.ledger.holds(server.name, held.index, version, held.arrays[0], done)

    def reply(self, reply: Reply) -> None:
        request: PeerRequest = reply.token

        def sent() -> None:
            body = b"".join(encode_body(reply.records)) if reply.records else b""
            for image in reply.images:
                image.release()
            self._view.send_reliably(
                request.peer, lambda: request.respond(reply.message, body, request.respondent), request.broken
            )

        self._server.soon(bool(reply.images), sent)

    def refuse(self, request: PeerRequest, answer: Refuse) -> None:
        self._view.send_reliably(request.peer, lambda: request.refuse(answer), request.broken)
