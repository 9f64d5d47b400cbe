"""Receives parameters from their servers directly into a flat vector."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import numpy as np

from adamctl.errors import DeadlineError, ProtocolError, RemoteError, UnreachableError
from adamctl.kernels.numeric.convert import NARROW, widened
from adamctl.kernels.operation import Array
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES
from adamctl.net.transport import Connection
from adamctl.roles.ps.client.delivery import LATER, MOVED, follow, is_for_later
from adamctl.roles.ps.client.outcomes import Pulled
from adamctl.roles.ps.client.push_set import Numbers
from adamctl.roles.ps.client.route_table import Route
from adamctl.roles.ps.client.session import Session
from adamctl.roles.ps.client.shared_memory import direct_pull, forget_regions
from adamctl.wire.constants import BODY_BYTES_MAX, ErrorCode
from adamctl.wire.messages import PullReply, PullRequest

PULL_SHARDS_MAX = 800  # per request: their parts must fit into a typed header of 64 KiB
ROUNDED_BYTES_MAX = 8 << 20  # of float32, per 16-bit request: one is rounded while others are sent and widened


class Puller:
    """One pull in flight."""

    def __init__(
        self,
        session: Session,
        into: Array,
        shards: Sequence[int] | None,
        exact: bool = False,
        vector: str = "",
        evaluation: int = 0,
    ) -> None:
        """`vector`, `evaluation`: see `PullRequest`.

        Raises ValueError if `into` is not a C-contiguous float32 vector of the layout's flat size.
        """
        self._session, self._layout = session, session.layout
        if into.dtype != np.float32 or into.shape != (self._layout.flat_size,) or not into.flags.c_contiguous:
            raise ValueError(
                f"expected a C-contiguous float32 vector of {self._layout.flat_size} elements; "
                f"found {into.dtype} {list(into.shape)}"
            )
        count = len(self._layout.shards)
        self._wire = "float32" if exact or vector else session.wire.pull
        self._vector, self._evaluation = vector, evaluation
        self._into = into
        # Shards of unanswered requests that name shared memory as their target -> the connection used.
        self._shown: dict[tuple[int, ...], Connection] = {}
        self._view = into.data.cast("B")
        self._wanted = range(count) if shards is None else tuple(shards)
        epochs, versions, pushes, sequences = (np.zeros(count, np.int64) for _ in range(4))
        self._pulled = Pulled(np.asarray(self._wanted, np.int64), epochs, versions, pushes, sequences)

    async def run(self, deadline_s: float) -> Pulled:
        """Raises DeadlineError with what is missing, RemoteError as `ParameterClient.pull`."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        settled = self._session.settled() if self._session.copies else None
        try:
            async with asyncio.timeout(deadline_s):
                await self._pull(self._wanted)
                if settled is not None:
                    await self._check(settled)
        except TimeoutError as error:
            routes = self._session.routing.runs
            trouble = "; ".join(f"{route.server}: {self._session.channel(*route).trouble}" for route in routes)
            what = f"job {self._session.job!r}: no parameters within {deadline_s:g} s ({trouble})"
            raise DeadlineError(what) from error
        size = sum(self._layout.shards[shard].size for shard in self._wanted)
        self._session.measured.pulled(size * ELEMENT_BYTES, loop.time() - started_s)
        return self._pulled

    async def _check(self, settled: Numbers) -> None:
        """Checks that shards contain all of this client's pushes that were answered before the pull.

        If not, they were rolled back while this client was already connected to their new server, which must now be
        told the client's numbers.
        """
        shards, sequences = self._pulled.shards, self._pulled.sequences
        behind = shards[sequences[shards] < settled[shards]]
        for route in sorted({self._session.routing.route_of(shard) for shard in behind.tolist()}):
            await self._session.tell_numbers(self._session.channel(*route))

    async def _pull(self, wanted: Sequence[int]) -> None:
        """Pulls shards from the servers that the routing names; tries again elsewhere if they have moved."""
        attempt = 0
        while wanted:
            bytes_max = BODY_BYTES_MAX if self._wire == "float32" else ROUNDED_BYTES_MAX
            requests = self._session.routing.cut(wanted, bytes_max, PULL_SHARDS_MAX)
            tasks = [asyncio.create_task(self._request(route, part)) for route, part in requests]
            try:
                unanswered = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)  # the target belongs to the caller again
                if self._shown:  # servers may still write answers to abandoned requests
                    shown, self._shown = self._shown, {}
                    self._session.shared.renew(self._into)
                    await forget_regions(shown.values())
            wanted = [shard for left in unanswered for shard in left]
            if wanted:
                await self._session.pause(attempt)
                attempt += 1

    def _targets(self, shards: list[int]) -> list[memoryview]:
        """Returns writable buffers for the shards' values in order, adjacent ranges joined."""
        ranges: list[list[int]] = []
        for index in shards:
            shard = self._layout.shards[index]
            start, stop = shard.offset * ELEMENT_BYTES, (shard.offset + shard.size) * ELEMENT_BYTES
            if ranges and ranges[-1][1] == start:
                ranges[-1][1] = stop
            else:
                ranges.append([start, stop])
        return [self._view[start:stop] for start, stop in ranges]

    async def _request(self, route: Route, shards: list[int]) -> list[int]:
        """Asks one server; returns the shards that are still missing."""
        session = self._session
        epochs, of = session.routing.epochs_of(shards), {"vector": self._vector, "evaluation": self._evaluation}
        message = PullRequest(session.job, epochs, tuple(shards), self._wire, **of)  # type: ignore[arg-type]
        channel = session.channel(*route)
        into = self._targets(shards) if self._wire == "float32" else None
        try:
            request = channel.request(
                message, deadline_s=session.attempt_s, into=into, direct=partial(self._direct, message)
            )
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
        assert isinstance(reply.message, PullReply)
        self._shown.pop(message.shards, None)
        try:
            if self._wire != "float32":
                await self._widen(reply.message, reply.body)
            left = self._take(reply.message, reply.body)
        finally:
            if len(reply.body):
                reply.release()
        await follow(session, {code for _, code in left})
        refusing = sorted({self._layout.bucket_of_shard[shard] for shard, code in left if code not in LATER | MOVED})
        for shard, code in left:
            channel.trouble = f"shard {shard}: {ErrorCode(code).name}"
            if code not in LATER and code not in MOVED:
                what = f"parameter server {route.server} refuses shard {shard}: {ErrorCode(code).name}"
                raise RemoteError(code, what, {"buckets": refusing})
        return [shard for shard, _ in left]

    async def _direct(self, message: PullRequest, connection: Connection) -> PullRequest | None:
        """Returns a request that names the shared memory to write into, or None if the server cannot map it."""
        place = self._session.shared.find(self._into) if message.dtype == "float32" else None
        if place is None or not await connection.share(place.region, deadline_s=self._session.attempt_s):
            return None
        self._shown[message.shards] = connection
        return direct_pull(message, place, [self._layout.shards[shard].offset for shard in message.shards])

    async def _widen(self, reply: PullReply, body: memoryview) -> None:
        """Widens 16-bit values to float32. Raises ProtocolError if they do not fit the shards."""
        parts = [part for part in reply.parts if part.code == ErrorCode.OK]
        width, start = WIRE_ELEMENT_BYTES[self._wire], 0
        for part in parts:
            size = self._layout.shards[part.shard].size
            if (part.size, part.offset) != (size, start * width):
                what = f"expected {size} elements of shard {part.shard} at byte {start * width}"
                raise ProtocolError(f"{what}; found {part.size} at {part.offset}")
            start += size
        if start * width != len(body):
            raise ProtocolError(f"expected {start} values of {self._wire}; found {len(body)} bytes")
        if not start:
            return
        values = np.frombuffer(body, NARROW[self._wire])

        def work() -> None:
            taken = 0
            for part in parts:
                shard = self._layout.shards[part.shard]
                widened(values[taken : taken + part.size], self._into[shard.offset : shard.offset + part.size])
                taken += part.size

        await self._session.wire.widen(start, work)

    def _take(self, reply: PullReply, body: memoryview) -> list[tuple[int, int]]:
        """Notes versions and copies values that did not arrive in place; returns (shard, code) of what failed."""
        failed: list[tuple[int, int]] = []
        pulled = self._pulled
        in_place = len(body) > 0 and np.may_share_memory(np.frombuffer(body, np.uint8), self._into)
        for part in reply.parts:
            shard = part.shard
            if part.code != ErrorCode.OK:
                failed.append((shard, part.code))
                continue
            if len(body) and not in_place and self._wire == "float32":
                start = self._layout.shards[shard].offset * ELEMENT_BYTES
                size_bytes = part.size * ELEMENT_BYTES
                self._view[start : start + size_bytes] = body[part.offset : part.offset + size_bytes]
            pulled.epochs[shard], pulled.versions[shard] = part.epoch, part.version
            pulled.pushes[shard], pulled.sequences[shard] = part.pushes, part.sequence
        return failed
