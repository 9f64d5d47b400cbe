"""Adds the gradient of one bundle to the sums on a job's servers (DistBelief 4.2, docs/decisions/0032)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from adamctl.errors import DeadlineError, RemoteError, UnreachableError
from adamctl.kernels.operation import Array
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.net.transport import Connection
from adamctl.roles.ps.client.delivery import LATER, MOVED, follow, is_for_later
from adamctl.roles.ps.client.route_table import Route
from adamctl.roles.ps.client.session import Session, gather_all
from adamctl.roles.ps.client.shared_memory import forget_regions
from adamctl.wire.constants import BODY_BYTES_MAX
from adamctl.wire.messages import AccumulateReply, AccumulateRequest

SHARDS_MAX = 800
"""Per request: their results must fit into a typed header of 64 KiB."""


@dataclass(frozen=True)
class BundleOutcome:
    """What became of a bundle. `refused`: shard -> (code, message), where it does not fit; elsewhere it is counted."""

    refused: dict[int, tuple[int, str]]


class BundlePush:
    """One bundle on its way. Every shard counts it once, so it is sent until every shard has answered.

    Members of a group push a part of it each.
    """

    def __init__(
        self,
        session: Session,
        evaluation: int,
        bundle: int,
        weight: float,
        gradient: Array,
        shards: Sequence[int] | None = None,
    ) -> None:
        """Args:
        gradient: C-contiguous float32 [layout.flat_size]; it does not change until `run` has ended.
        shards: which of it is pushed, ascending; None: all.

        Raises:
            ValueError: it is something else.
        """
        layout = session.layout
        if gradient.dtype != np.float32 or gradient.shape != (layout.flat_size,) or not gradient.flags.c_contiguous:
            raise ValueError(
                f"expected a C-contiguous float32 vector of {layout.flat_size} elements; "
                f"found {gradient.dtype} {list(gradient.shape)}"
            )
        self._session, self._layout, self._gradient = session, layout, gradient
        self._evaluation, self._bundle, self._weight = evaluation, bundle, weight
        self._wanted = range(len(layout.shards)) if shards is None else tuple(shards)
        self._refused: dict[int, tuple[int, str]] = {}
        # Shards of unanswered requests that name shared memory -> the connections used.
        self._shown: dict[tuple[int, ...], set[Connection]] = {}

    async def run(self, deadline_s: float) -> BundleOutcome:
        """Raises DeadlineError if not all shards have answered, RemoteError if trying again does not help."""
        try:
            return await self._run(deadline_s)
        finally:
            if self._shown:  # a server may still read memory that the caller may now change
                shown = {one for connections in self._shown.values() for one in connections}
                self._session.shared.renew(self._gradient)
                await forget_regions(shown)

    async def _run(self, deadline_s: float) -> BundleOutcome:
        session, attempt = self._session, 0
        wanted = list(self._wanted)
        try:
            async with asyncio.timeout(deadline_s):
                while wanted:
                    requests = session.routing.cut(wanted, BODY_BYTES_MAX, SHARDS_MAX)
                    left = await gather_all(self._request(route, part) for route, part in requests)
                    wanted = [shard for part in left for shard in part]
                    if wanted:
                        await session.pause(attempt)
                        attempt += 1
        except TimeoutError as error:
            what = f"job {session.job!r}: bundle {self._bundle} lacks {len(wanted)} shards after {deadline_s:g} s"
            raise DeadlineError(f"{what}: {session.troubles()}") from error
        return BundleOutcome(self._refused)

    async def _request(self, route: Route, shards: list[int]) -> list[int]:
        """Sends the gradient of some shards to their server; returns those that have not answered for good."""
        session = self._session
        channel = session.channel(*route)
        pieces = [self._gradient[s.offset : s.offset + s.size] for s in (self._layout.shards[i] for i in shards)]
        starts = np.cumsum([0, *(piece.nbytes for piece in pieces)])[:-1].tolist()
        message = AccumulateRequest(
            session.job, session.routing.epochs_of(shards), self._evaluation, self._bundle, self._weight,
            tuple(shards), tuple(starts),
        )  # fmt: skip
        try:
            direct = partial(self._direct, message)
            request = channel.request(message, pieces, deadline_s=session.attempt_s, direct=direct)
            reply = await session.answer(channel, request, shards)
        except UnreachableError:
            if session.copies:
                await session.look()
            return shards
        except RemoteError as error:
            self._shown.pop(message.shards, None)
            if await is_for_later(channel, error) and session.copies:
                await session.look()
            return shards
        assert isinstance(reply.message, AccumulateReply)
        self._shown.pop(message.shards, None)
        return await self._take(reply.message, channel.node)

    async def _take(self, reply: AccumulateReply, node: str) -> list[int]:
        session, left = self._session, [result for result in reply.results if result.code in MOVED | LATER]
        self._refused |= {
            result.shard: (result.code, f"parameter server {node}, shard {result.shard}: {result.message}")
            for result in reply.results
            if result.code and result.code not in MOVED | LATER
        }
        await follow(session, {result.code for result in left})
        return [result.shard for result in left]

    async def _direct(self, message: AccumulateRequest, connection: Connection) -> AccumulateRequest | None:
        """Returns a request that names the gradient's memory, or None if the server cannot map it."""
        place = self._session.shared.find(self._gradient)
        if place is None or not await connection.share(place.region, deadline_s=self._session.attempt_s):
            return None
        self._shown.setdefault(message.shards, set()).add(connection)
        starts = [self._layout.shards[shard].offset * ELEMENT_BYTES for shard in message.shards]
        offsets = tuple(place.offset + start for start in starts)
        return msgspec.structs.replace(message, region=place.region.number, offsets=offsets)
