"""Delivers one push to its servers: sends each part again until it has a final answer."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from contextlib import suppress
from functools import partial

import numpy as np

from adamctl.errors import RemoteError, UnreachableError
from adamctl.net.transport import Connection
from adamctl.roles.ps.client.envelope import Envelope, cut_push
from adamctl.roles.ps.client.outcomes import RefusedPart
from adamctl.roles.ps.client.push_set import Numbers, PushSet
from adamctl.roles.ps.client.rounding import Rounding
from adamctl.roles.ps.client.server_channel import Order, ServerChannel
from adamctl.roles.ps.client.session import Session
from adamctl.roles.ps.client.shared_memory import forget_regions
from adamctl.roles.ps.core.admission import APPLIED
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PushReply, PushRequest

LATER = frozenset({ErrorCode.SEQUENCE_GAP, ErrorCode.NEWER_EPOCH, ErrorCode.NOT_READY, ErrorCode.OVER_QUOTA})
"""A part answered with one of these is sent again with the same number after a pause: it was not consumed, or the
server says that it was, see `Delivery._unsure`."""

GAPS_MAX = 4
"""After this many SEQUENCE_GAP answers in a row to the oldest push, the client tells the server its numbers again."""

MOVED = frozenset({ErrorCode.STALE_EPOCH, ErrorCode.UNKNOWN_SHARD})
"""Another server may hold the part now; the routing is read again first."""

LOOK = frozenset({ErrorCode.NOT_READY, ErrorCode.NEWER_EPOCH})
"""Likewise if buckets have copies: the server may have lost its lease, or may no longer be the primary."""

REQUEST_LATER = frozenset(
    {
        ErrorCode.NOT_READY,
        ErrorCode.OVER_QUOTA,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.DEADLINE_PASSED,
        ErrorCode.NEWER_EPOCH,
    }
)


async def is_for_later(channel: ServerChannel, error: RemoteError) -> bool:
    """Returns whether a request that a server has refused as a whole may be sent again as it is.

    If not, the server no longer knows the connection, which is dropped: the next one attaches again. Raises the error
    if trying again does not help.
    """
    channel.trouble = str(error)
    if error.code == ErrorCode.LAYOUT_MISMATCH:
        await channel.drop()
        return False
    if error.code not in REQUEST_LATER:
        raise error
    return True


async def follow(session: Session, codes: Set[int]) -> None:
    """Reads the routing again if one of the codes of a reply's parts says that another server may hold them.

    Where nobody can be asked just now, the caller goes on as before: it hears the same again, until its own deadline.
    """
    if codes & MOVED:
        with suppress(UnreachableError):
            await session.reread()
    elif session.copies and codes & LOOK:
        await session.look()


class Delivery:
    """One push in flight.

    Attributes:
        staleness, ages, refused, updates: as in `PushOutcome`, complete when `run` has returned.
        sequences: per shard of the layout, this push's number there.
        unanswered: shards that have not given a final answer to this push.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        push: PushSet,
        sequences: Numbers,
        rounding: Rounding | None = None,
        whole: bool = True,
    ) -> None:
        """`rounding`: the push in 16 bits, sent instead. `whole`: every shard of its tensors has a number."""
        self.staleness: list[int] = []
        self.ages: list[int] = []
        self.refused: list[RefusedPart] = []
        self.updates = 0
        self._session, self._number, self.sequences = session, number, sequences
        self._push = push if rounding is None else rounding.push
        self.unanswered: set[int] = set(np.flatnonzero(sequences).tolist())
        self._whole = whole
        self._unsure: set[int] = set()  # sent at least once without an answer, or applied where that may not last
        self._envelopes = 0
        # Unanswered requests that name shared memory instead of carrying values -> the connection last used.
        self._shown: dict[Order, Connection] = {}
        self._given_up: dict[Order, set[Connection]] = {}
        self._rounding = rounding
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Returns when every part is applied or refused for good.

        Raises:
            RemoteError: the whole push is refused (unknown job, layout mismatch).
        """
        try:
            only = None if self._whole else self.unanswered
            await self._send_all(cut_push(self._push, self.sequences.tolist(), self._session.routing, only))
        finally:
            # After an abandoned or rerouted request a server may still read memory that the caller may now change.
            try:
                shown = {*self._shown.values(), *(one for given_up in self._given_up.values() for one in given_up)}
                if shown:
                    self._shown, self._given_up = {}, {}
                    self._session.shared.renew(*self._push.arrays())
                    await forget_regions(shown)
            finally:
                if self._rounding is not None:
                    self._rounding.give_back()

    async def _send_all(self, envelopes: list[Envelope]) -> None:
        """Sends envelopes, and further ones for shards that move meanwhile; returns when all are answered."""
        if len(envelopes) > 1:
            self._begin(envelopes)
        try:
            if len(envelopes) == 1:
                await self._send(envelopes[0])
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._tasks -= done
                for task in done:
                    task.result()
        finally:
            tasks, self._tasks = self._tasks, set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # the arrays belong to the caller again

    def _begin(self, envelopes: list[Envelope]) -> None:
        self._tasks.update(asyncio.create_task(self._send(envelope)) for envelope in envelopes)

    async def _send(self, envelope: Envelope) -> None:
        channel = self._session.channel(*envelope.route)
        self._envelopes += 1
        order = (self._number, self._envelopes)
        unanswered = {part.shard for part in envelope.parts}
        async with channel.unfinished(order, unanswered):
            if self._rounding is not None:
                await self._rounding.until(envelope)
            attempt, gaps = 0, 0
            while unanswered:
                if await channel.turn(order):
                    self._move(envelope, unanswered)  # buckets may have moved meanwhile
                    if not unanswered:
                        break
                codes = await self._attempt(channel, order, envelope, unanswered, attempt)
                gaps = gaps + 1 if ErrorCode.SEQUENCE_GAP in codes and channel.is_next(order) else 0
                if gaps >= GAPS_MAX:  # no older push is in flight: the server lost acknowledged ones
                    gaps = 0
                    await self._session.tell_numbers(channel)
                self._move(envelope, unanswered)
                if unanswered:
                    await channel.answered()
                    await self._session.pause(attempt)
                    attempt += 1

    async def _attempt(
        self, channel: ServerChannel, order: Order, envelope: Envelope, unanswered: set[int], attempt: int
    ) -> set[int]:
        """Sends what is unanswered once and takes in the answer; reads the routing again if something went wrong.

        Returns the codes of the shards that must be sent again.
        """
        session = self._session
        whole = len(unanswered) == len(envelope.parts)
        message = envelope.request(self._push, session.routing, None if whole else unanswered)
        request = channel.request(
            message,
            envelope.body,
            deadline_s=session.attempt_s,
            direct=partial(self._direct, order, envelope, message),
        )
        try:
            reply = await session.answer(channel, request, unanswered)
        except UnreachableError:  # deadlines included
            self._unsure |= unanswered
            shown = self._shown.pop(order, None)
            if shown is not None:
                self._given_up.setdefault(order, set()).add(shown)
            channel.be_careful()
            if session.copies:
                await session.look()
            return set()
        except RemoteError as error:
            self._answered(order)
            channel.trouble = str(error)
            channel.be_careful()
            if APPLIED in error.details:
                self._unsure |= unanswered
            if error.code == ErrorCode.LAYOUT_MISMATCH and attempt == 0:
                await channel.drop()  # the server no longer knows this connection; attach again
            elif error.code not in REQUEST_LATER:
                raise
            elif session.copies:
                await session.look()
            return set()
        self._answered(order)
        assert isinstance(reply.message, PushReply)
        codes = self._settle(reply.message, envelope, unanswered, channel)
        await follow(session, codes)
        return codes

    def _answered(self, order: Order) -> None:
        """Notes that a server has answered: neither this nor earlier requests on the connection use the memory now."""
        shown = self._shown.pop(order, None)
        if shown is not None and order in self._given_up:
            self._given_up[order].discard(shown)

    def _move(self, envelope: Envelope, unanswered: set[int]) -> None:
        """Removes shards that have moved from an envelope's unanswered ones and sends them to their new server."""
        routing = self._session.routing
        elsewhere = {shard for shard in unanswered if routing.route_of(shard) != envelope.route}
        if elsewhere:
            unanswered -= elsewhere
            moved = cut_push(self._push, self.sequences.tolist(), routing, elsewhere)
            for other in moved:  # older pushes may be moving there too, so send in order
                self._session.channel(*other.route).be_careful()
            self._begin(moved)

    async def _direct(
        self, order: Order, envelope: Envelope, message: PushRequest, connection: Connection
    ) -> PushRequest | None:
        """Returns a request that names shared memory, or None if the server cannot map all of the envelope's arrays."""
        if connection.kind == "tcp":
            return None
        found = self._session.shared.direct_push(message, envelope)
        if found is None or not await connection.share(found.region, deadline_s=self._session.attempt_s):
            return None
        self._shown[order] = connection
        return found.message

    def _settle(self, reply: PushReply, envelope: Envelope, unanswered: set[int], channel: ServerChannel) -> set[int]:
        """Takes in final answers and returns the codes of the others."""
        self._session.measured.told(envelope.server, reply.load)
        codes: set[int] = set()
        by_shard = {part.shard: part for part in envelope.parts}
        layout = self._session.layout
        for result in reply.results:
            if result.shard not in unanswered:
                continue
            code = result.code
            if code == ErrorCode.OK:
                self.staleness.append(result.staleness)
                self.ages.append(result.age)
                source = envelope.sources[by_shard[result.shard].source]
                factor = source.examples if source.kind == UpdateKind.FACTORS else 1
                self.updates += layout.shards[result.shard].size * factor
            elif code in LATER or code in MOVED:
                channel.trouble = f"shard {result.shard}: {result.message or ErrorCode(code).name}"
                channel.be_careful()
                codes.add(code)
                if code == ErrorCode.STALE_EPOCH and result.version:
                    self._unsure.add(result.shard)
                continue
            else:
                self.refused.append(RefusedPart(result.shard, code, result.message, result.shard in self._unsure))
            unanswered.discard(result.shard)
            self.unanswered.discard(result.shard)
        return codes
