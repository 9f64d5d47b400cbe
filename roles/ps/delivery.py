"""Brings one push to its servers, each part until it has a final answer, however often it must be sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adamctl.errors import RemoteError, UnreachableError
from adamctl.net.transport import Connection
from adamctl.roles.ps.envelope import Envelope, cut_push
from adamctl.roles.ps.lane import Lane, Order, pause
from adamctl.roles.ps.push_set import Numbers, PushSet
from adamctl.roles.ps.rounding import Rounding
from adamctl.roles.ps.sharing import forget_regions
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PushReply, PushRequest

if TYPE_CHECKING:
    from adamctl.roles.ps.client import ParameterClient

LATER = frozenset({ErrorCode.SEQUENCE_GAP, ErrorCode.NEWER_EPOCH, ErrorCode.NOT_READY, ErrorCode.OVER_QUOTA})
"""A part with one of these was not consumed; the same number is sent again after a pause."""

MOVED = frozenset({ErrorCode.STALE_EPOCH, ErrorCode.UNKNOWN_SHARD})
"""Another server may hold the part now; the routing is read again first."""

REQUEST_LATER = frozenset(
    {
        ErrorCode.NOT_READY,
        ErrorCode.OVER_QUOTA,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.DEADLINE_PASSED,
        ErrorCode.NEWER_EPOCH,
    }
)


@dataclass(frozen=True)
class RefusedPart:
    """A shard to which nothing was applied. `code` is a member of `ErrorCode`."""

    shard: int
    code: int
    message: str


class Delivery:
    """One push under way.

    Attributes:
        staleness, refused, updates: as in `PushOutcome`, complete when `run` has returned.
        sequences: per shard of the layout, this push's number there.
        unanswered: shards of which we do not know yet what became of this push.
    """

    def __init__(
        self,
        client: ParameterClient,
        number: int,
        push: PushSet,
        sequences: Numbers,
        rounding: Rounding | None = None,
    ) -> None:
        """`rounding`: the push in 16 bits, which is sent in its place."""
        self.staleness: list[int] = []
        self.refused: list[RefusedPart] = []
        self.updates = 0
        self._client, self._number, self.sequences = client, number, sequences
        self._push = push if rounding is None else rounding.push
        self.unanswered: set[int] = set(np.flatnonzero(sequences).tolist())
        self._envelopes = 0
        # Named to servers by where they lie, and not yet answered: on which connection last.
        self._shown: dict[Order, Connection] = {}
        self._rounding = rounding

    async def run(self) -> None:
        """Returns when every part is applied or refused for good.

        Raises:
            RemoteError: the whole push is refused (unknown job, layout mismatch).
        """
        try:
            await self._send_all(cut_push(self._push, self.sequences.tolist(), self._client.routing))
        except BaseException:
            # Servers may go on reading what the caller is now free to change.
            if self._shown:
                shown, self._shown = self._shown, {}
                self._client.shared.renew(*self._push.arrays())
                await forget_regions(shown.values())
            raise
        finally:
            if self._rounding is not None:
                self._rounding.give_back()

    async def _send_all(self, envelopes: list[Envelope]) -> None:
        if len(envelopes) == 1:
            await self._send(envelopes[0])
            return
        tasks = [asyncio.create_task(self._send(envelope)) for envelope in envelopes]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # what they send is the caller's again

    async def _send(self, envelope: Envelope) -> None:
        lane = self._client.lane(*envelope.way)
        self._envelopes += 1
        order = (self._number, self._envelopes)
        unanswered = {part.shard for part in envelope.parts}
        async with lane.unfinished(order):
            if self._rounding is not None:
                await self._rounding.until(envelope)
            attempt = 0
            while unanswered:
                await lane.turn(order)
                first = attempt == 0
                message = envelope.request(self._push, self._client.routing, None if first else unanswered)
                try:
                    reply = await lane.request(
                        message,
                        envelope.body,
                        deadline_s=self._client.attempt_s,
                        direct=partial(self._direct, order, envelope, message),
                    )
                except UnreachableError:  # deadlines included
                    lane.be_careful()
                except RemoteError as error:
                    lane.trouble = str(error)
                    lane.be_careful()
                    if error.code == ErrorCode.LAYOUT_MISMATCH and attempt == 0:
                        await lane.drop()  # a connection that the server no longer knows; attach again
                    elif error.code not in REQUEST_LATER:
                        raise
                else:
                    assert isinstance(reply.message, PushReply)
                    moved = self._settle(reply.message, envelope, unanswered, lane)
                    if moved:
                        await self._client.reread()
                        elsewhere = {s for s in moved if self._client.routing.way_of(s) != envelope.way}
                        unanswered -= elsewhere
                        if elsewhere:
                            await self._send_all(
                                cut_push(self._push, self.sequences.tolist(), self._client.routing, elsewhere)
                            )
                    if not unanswered:
                        self._shown.pop(order, None)
                        return
                await pause(attempt)
                attempt += 1

    async def _direct(
        self, order: Order, envelope: Envelope, message: PushRequest, connection: Connection
    ) -> PushRequest | None:
        """Returns the request for a server that has mapped the memory which all of the envelope's arrays lie in."""
        found = self._client.shared.direct_push(message, envelope)
        if found is None or not await connection.share(found.region, deadline_s=self._client.attempt_s):
            return None
        self._shown[order] = connection
        return found.message

    def _settle(self, reply: PushReply, envelope: Envelope, unanswered: set[int], lane: Lane) -> set[int]:
        """Takes in final answers and returns the shards that may have moved."""
        self._client.measured.told(envelope.server, reply.load)
        moved: set[int] = set()
        by_shard = {part.shard: part for part in envelope.parts}
        layout = self._client.layout
        for result in reply.results:
            if result.shard not in unanswered:
                continue
            code = result.code
            if code == ErrorCode.OK:
                self.staleness.append(result.staleness)
                source = envelope.sources[by_shard[result.shard].source]
                factor = source.examples if source.kind == UpdateKind.FACTORS else 1
                self.updates += layout.shards[result.shard].size * factor
            elif code in LATER or code in MOVED:
                lane.trouble = f"shard {result.shard}: {result.message or ErrorCode(code).name}"
                lane.be_careful()
                if code in MOVED:
                    moved.add(result.shard)
                continue
            else:
                self.refused.append(RefusedPart(result.shard, code, result.message))
            unanswered.discard(result.shard)
            self.unanswered.discard(result.shard)
        return moved
