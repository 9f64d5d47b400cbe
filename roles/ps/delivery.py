"""Brings one push to its servers, each part until it has a final answer, however often it must be sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.ps.envelope import Envelope, cut_push
from adamctl.roles.ps.lane import Lane, pause
from adamctl.roles.ps.push_set import Numbers, PushSet
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PushReply

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

    def __init__(self, client: ParameterClient, number: int, push: PushSet, sequences: Numbers) -> None:
        self.staleness: list[int] = []
        self.refused: list[RefusedPart] = []
        self.updates = 0
        self._client, self._number, self._push, self.sequences = client, number, push, sequences
        self.unanswered: set[int] = set(np.flatnonzero(sequences).tolist())
        self._envelopes = 0

    async def run(self) -> None:
        """Returns when every part is applied or refused for good.

        Raises:
            RemoteError: the whole push is refused (unknown job, layout mismatch).
        """
        await self._send_all(cut_push(self._push, self.sequences.tolist(), self._client.routing))

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

    async def _send(self, envelope: Envelope) -> None:
        lane = self._client.lane(envelope.server)
        self._envelopes += 1
        order = (self._number, self._envelopes)
        unanswered = {part.shard for part in envelope.parts}
        async with lane.unfinished(order):
            attempt = 0
            while unanswered:
                await lane.turn(order)
                first = attempt == 0
                message = envelope.request(self._push, self._client.routing, None if first else unanswered)
                try:
                    reply = await lane.request(message, envelope.body, deadline_s=self._client.attempt_s)
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
                        elsewhere = {s for s in moved if self._client.routing.server_of(s) != envelope.server}
                        unanswered -= elsewhere
                        if elsewhere:
                            await self._send_all(
                                cut_push(self._push, self.sequences.tolist(), self._client.routing, elsewhere)
                            )
                    if not unanswered:
                        return
                await pause(attempt)
                attempt += 1

    def _settle(self, reply: PushReply, envelope: Envelope, unanswered: set[int], lane: Lane) -> set[int]:
        """Takes in final answers and returns the shards that may have moved."""
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
