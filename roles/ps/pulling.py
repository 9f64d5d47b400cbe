"""Receives parameters from their servers straight into a flat vector."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DeadlineError, RemoteError, UnreachableError
from adamctl.kernels.operation import Array
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.roles.ps.delivery import LATER, MOVED, REQUEST_LATER
from adamctl.roles.ps.lane import pause
from adamctl.roles.ps.push_set import Base, Numbers
from adamctl.wire.constants import BODY_BYTES_MAX, ErrorCode
from adamctl.wire.messages import PullReply, PullRequest

if TYPE_CHECKING:
    from adamctl.roles.ps.client import ParameterClient

PULL_SHARDS_MAX = 800  # per request: their parts must fit into a typed header of 64 KiB


@dataclass(frozen=True)
class Pulled:
    """What arrived, per shard of the layout; zeros where a shard was not asked for.

    Attributes:
        shards: the indices that were asked for.
        epochs, versions: the version (epoch, counter) each shard is at.
        pushes: pushes of everybody that it contains.
        sequences: the last of this client's own pushes that it contains.
    """

    shards: NDArray[np.int64]
    epochs: Numbers
    versions: Numbers
    pushes: Numbers
    sequences: Numbers

    @property
    def base(self) -> Base:
        """What gradients computed from these parameters name as their base."""
        return Base(self.pushes, self.sequences)


class Puller:
    """One pull under way."""

    def __init__(self, client: ParameterClient, into: Array, shards: Sequence[int] | None) -> None:
        """Raises ValueError if `into` is not a C-contiguous float32 vector of the layout's flat size."""
        self._client, self._layout = client, client.layout
        if into.dtype != np.float32 or into.shape != (self._layout.flat_size,) or not into.flags.c_contiguous:
            raise ValueError(
                f"expected a C-contiguous float32 vector of {self._layout.flat_size} elements; "
                f"found {into.dtype} {list(into.shape)}"
            )
        count = len(self._layout.shards)
        self._into = into
        self._view = into.data.cast("B")
        self._wanted = range(count) if shards is None else tuple(shards)
        epochs, versions, pushes, sequences = (np.zeros(count, np.int64) for _ in range(4))
        self._pulled = Pulled(np.asarray(self._wanted, np.int64), epochs, versions, pushes, sequences)

    async def run(self, deadline_s: float) -> Pulled:
        """Raises DeadlineError with what is missing, RemoteError if the job is unknown."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._pull(self._wanted)
        except TimeoutError as error:
            trouble = "; ".join(f"{node}: {self._client.lane(node).trouble}" for node in self._client.servers)
            what = f"job {self._client.job!r}: no parameters within {deadline_s:g} s ({trouble})"
            raise DeadlineError(what) from error
        return self._pulled

    async def _pull(self, wanted: Sequence[int]) -> None:
        """Pulls shards from where the routing says, again from elsewhere if they have moved."""
        attempt = 0
        while wanted:
            by_server: dict[str, list[int]] = {}
            for shard in wanted:
                by_server.setdefault(self._client.routing.server_of(shard), []).append(shard)
            requests = [(node, part) for node, shards in by_server.items() for part in self._split(shards)]
            tasks = [asyncio.create_task(self._request(node, part)) for node, part in requests]
            try:
                unanswered = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            wanted = [shard for left in unanswered for shard in left]
            if wanted:
                await pause(attempt)
                attempt += 1

    def _split(self, shards: list[int]) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        filled_bytes = 0
        for shard in shards:
            size_bytes = self._layout.shards[shard].size * ELEMENT_BYTES
            if parts[-1] and (filled_bytes + size_bytes > BODY_BYTES_MAX or len(parts[-1]) == PULL_SHARDS_MAX):
                parts.append([])
                filled_bytes = 0
            parts[-1].append(shard)
            filled_bytes += size_bytes
        return parts

    def _targets(self, shards: list[int]) -> list[memoryview]:
        """Returns writable buffers for the shards' values in order, neighbours joined."""
        ranges: list[list[int]] = []
        for index in shards:
            shard = self._layout.shards[index]
            start, stop = shard.offset * ELEMENT_BYTES, (shard.offset + shard.size) * ELEMENT_BYTES
            if ranges and ranges[-1][1] == start:
                ranges[-1][1] = stop
            else:
                ranges.append([start, stop])
        return [self._view[start:stop] for start, stop in ranges]

    async def _request(self, node: str, shards: list[int]) -> list[int]:
        """Asks one server and returns the shards still to be had."""
        client = self._client
        message = PullRequest(client.job, client.routing.epochs_of(shards), tuple(shards))
        lane = client.lane(node)
        try:
            reply = await lane.request(message, deadline_s=client.attempt_s, into=self._targets(shards))
        except UnreachableError:
            return shards
        except RemoteError as error:
            lane.trouble = str(error)
            if error.code == ErrorCode.LAYOUT_MISMATCH:
                await lane.drop()
            elif error.code not in REQUEST_LATER:
                raise
            return shards
        assert isinstance(reply.message, PullReply)
        left = self._take(reply.message, reply.body)
        if len(reply.body):
            reply.release()
        if any(code in MOVED for _, code in left):
            await client.reread()
        for shard, code in left:
            lane.trouble = f"shard {shard}: {ErrorCode(code).name}"
            if code not in LATER and code not in MOVED:
                raise RemoteError(code, f"parameter server {node} refuses shard {shard}: {ErrorCode(code).name}")
        return [shard for shard, _ in left]

    def _take(self, reply: PullReply, body: memoryview) -> list[tuple[int, int]]:
        """Notes versions, copies values that did not arrive in place, returns (shard, code) of what failed."""
        failed: list[tuple[int, int]] = []
        pulled = self._pulled
        in_place = len(body) > 0 and np.may_share_memory(np.frombuffer(body, np.uint8), self._into)
        for part in reply.parts:
            shard = part.shard
            if part.code != ErrorCode.OK:
                failed.append((shard, part.code))
                continue
            if len(body) and not in_place:
                start = self._layout.shards[shard].offset * ELEMENT_BYTES
                size_bytes = part.size * ELEMENT_BYTES
                self._view[start : start + size_bytes] = body[part.offset : part.offset + size_bytes]
            pulled.epochs[shard], pulled.versions[shard] = part.epoch, part.version
            pulled.pushes[shard], pulled.sequences[shard] = part.pushes, part.sequence
        return failed
