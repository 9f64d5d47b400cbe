"""Planted faults of the parameter client: how it numbers, sends, sends again, goes elsewhere, and what it believes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from adamctl.errors import DeadlineError
from adamctl.net.transport import Reply
from adamctl.roles.ps.client import delivery
from adamctl.roles.ps.client import session as session_module
from adamctl.roles.ps.client.delivery import LATER, Delivery
from adamctl.roles.ps.client.envelope import Envelope
from adamctl.roles.ps.client.pull import Puller
from adamctl.roles.ps.client.push_set import Numbers, PushSet
from adamctl.roles.ps.client.rollback import PushUnderWay
from adamctl.roles.ps.client.routing import JobRouting
from adamctl.roles.ps.client.server_channel import Order, ServerChannel
from adamctl.roles.ps.client.session import Session
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message, PullReply, PushRequest
from tests.sim.servers.cluster import ServerFault

# --- numbers and their order ----------------------------------------------------------------------------------------


def _newest_first(self: ServerChannel, order: Order) -> bool:
    return not self._unfinished or order >= max(self._unfinished)


def _numbered_again(self: Delivery, envelope: Envelope, unanswered: set[int]) -> None:
    """What goes elsewhere takes the next number there."""
    session = self._session
    for shard in unanswered:
        if session.routing.route_of(shard) != envelope.route:
            session.issued[shard] += 1
            self.sequences[shard] = session.issued[shard]
    _move(self, envelope, unanswered)


def _all_settled(issued: Numbers, pushes: Iterable[PushUnderWay]) -> Numbers:
    """Whatever has a number is taken for settled."""
    return issued.copy()


def _nothing_settled(settled: Numbers, shards: Iterable[int]) -> Sequence[Any]:
    """Servers are not told what became of pushes."""
    return ()


_move = Delivery._move

# --- answers --------------------------------------------------------------------------------------------------------


async def _any_answer(
    self: ServerChannel, message: Message, body: Any = (), *, deadline_s: float, **others: Any
) -> Reply:
    """An answer is taken for that to whichever request waits, also if it is to one that was given up."""
    others.pop("direct", None)
    connection = await self.connected()
    given_up = self.__dict__.setdefault("given_up", [])
    asking = asyncio.create_task(connection.request(message, body, deadline_s=3 * deadline_s, **others))
    same = [one for kind, one in given_up if kind is type(message)]
    try:
        done, _ = await asyncio.wait([*same, asking], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not asking.done():
            given_up.append((type(message), asking))
    for one in done:
        given_up[:] = [(kind, left) for kind, left in given_up if left is not one]
        return one.result()
    raise DeadlineError(f"{self.node} did not answer in time")


async def _done_with_the_first(self: Delivery, envelopes: list[Envelope]) -> None:
    """A push is done when one of its servers has answered."""
    self._begin(envelopes)
    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)


def _forgets_what_moved(self: Delivery, envelope: Envelope, unanswered: set[int]) -> None:
    routing = self._session.routing
    unanswered -= {shard for shard in unanswered if routing.route_of(shard) != envelope.route}


def _sent_whole_again(
    self: Envelope, push: PushSet, routing: JobRouting, unanswered: set[int] | None = None
) -> PushRequest:
    """Parts that were answered are sent again beside those that were not."""
    return _request(self, push, routing)


def _others_left_out(self: Puller, reply: PullReply, body: memoryview) -> list[tuple[int, int]]:
    """What a server did not give is not asked for again."""
    _take(self, reply, body)
    return []


async def _broken_and_whole(self: Puller, route: Any, shards: list[int]) -> list[int]:
    """What was being received when a connection broke is taken for whole."""
    left = await _pull(self, route, shards)
    return [] if left == shards and self._session.channel(*route).kind == "" else left


_request, _take, _pull = Envelope.request, Puller._take, Puller._request

# --- who holds what -------------------------------------------------------------------------------------------------


async def _epochs_kept(self: Session) -> None:
    """Who the primary is, is read anew; of which epoch, is not."""
    before = self.routing
    await _read(self)
    object.__setattr__(self.routing, "epochs", before.epochs)


async def _not_read(self: Session) -> None:
    """Who holds a bucket that has moved is not asked."""


_read = Session._read_routing


MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "newest-first",
            "after trouble the newest envelope is sent alone, and not the oldest",
            [(ServerChannel, "is_next", _newest_first)],
        ),
        ServerFault(
            "numbered-again",
            "a part that goes to another server takes a new number",
            [(Delivery, "_move", _numbered_again)],
        ),
        ServerFault(
            "all-settled",
            "a client says that all its numbers are settled",
            [(session_module, "settled_numbers", _all_settled)],
        ),
        ServerFault(
            "nothing-settled",
            "a client does not say which of its numbers are settled",
            [(session_module, "settled_body", _nothing_settled)],
        ),
        ServerFault(
            "any-answer",
            "the answer to an attempt that was given up is taken for that to another request",
            [(ServerChannel, "request", _any_answer)],
        ),
        ServerFault(
            "done-with-the-first",
            "a push is done when one of its servers has answered",
            [(Delivery, "_send_all", _done_with_the_first)],
        ),
        ServerFault(
            "moved-and-forgotten",
            "parts that have moved to another server are not sent there",
            [(Delivery, "_move", _forgets_what_moved)],
        ),
        ServerFault(
            "refused-sent-again",
            "a part that was refused for good is sent again",
            [(delivery, "LATER", LATER | {ErrorCode.NOT_FINITE})],
        ),
        ServerFault(
            "sent-whole-again",
            "an envelope is sent again with the parts that were answered",
            [(Envelope, "request", _sent_whole_again)],
        ),
        ServerFault(
            "pulled-in-part",
            "what a server did not give of a pull is not asked for again",
            [(Puller, "_take", _others_left_out)],
        ),
        ServerFault(
            "broken-and-whole",
            "what was being received when a connection broke is taken for whole",
            [(Puller, "_request", _broken_and_whole)],
        ),
        ServerFault(
            "epochs-kept",
            "of which epoch a bucket is, is not read again",
            [(Session, "_read_routing", _epochs_kept)],
        ),
        ServerFault(
            "not-read-again",
            "who holds a bucket that has moved is not asked",
            [(Session, "reread", _not_read), (Session, "look", _not_read)],
        ),
    )
}
