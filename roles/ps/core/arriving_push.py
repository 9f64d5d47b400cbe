"""Applies parts of a push while the rest of its body is still on its way, each as soon as it is there (pure).

What has just been received is in cache; it would have to be fetched from memory again by whoever takes it up when the
whole body is there. Parts that cannot be applied at once, because their shards are busy or for any other reason, are
left for `Core.push`, which gets the push as soon as it is complete. If it never is, what was applied stays applied, and
the push that is sent again is told so: every part has its own number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from adamctl.kernels.numeric.convert import type_of
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import Apply, Refuse
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.push import Push, Source
from adamctl.roles.ps.core.shard import Batch, Shard
from adamctl.roles.ps.core.validate import checked_source, part_problem
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PushPart, PushRequest

if TYPE_CHECKING:
    from adamctl.roles.ps.core.server_core import Core

PIECE_BYTES = 512 << 10
"""Parts are applied together until they are that long: a large shard, or many small ones."""
PIECE_BYTES_MAX = 4 << 20
"""Longer ones are for apply threads, which nobody waits for."""
QUEUED_BYTES_MAX = 64 << 20
"""Of bodies. Where more waits, of several clients, it is better applied together: what comes joins the queue."""


class ArrivingPush:
    """A push whose body is on its way.

    Attributes:
        stops: where its pieces end, in bytes of its body.
        starts: where its parts begin.
        positions: of the parts in each piece.
        touched: whether any part was applied on the way.
    """

    __slots__ = ("client", "job", "positions", "push", "request", "sources", "starts", "stops", "touched")

    def __init__(self, job: Job, client: ClientKey, request: PushRequest, body: memoryview) -> None:
        self.job, self.client, self.request = job, client, request
        self.push = Push(None, request.learning_rate, body, len(request.parts))
        self.push.remaining += 1  # itself: it is not answered before all of it is there
        self.sources = [checked_source(job, self.push, header) for header in request.sources]
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.positions: list[list[int]] = []
        self.touched = False

    def cut(self, piece_bytes: int) -> bool:
        """Makes pieces of its parts; returns False if they cannot be applied one after the other as they come."""
        gathered: list[int] = []
        begun = reached = 0
        for position, part in enumerate(self.request.parts):
            start, stop = self._place(part)
            if start < reached or stop <= start or stop - begun > PIECE_BYTES_MAX:
                return False
            reached = stop
            self.starts.append(start)
            gathered.append(position)
            if stop - begun >= piece_bytes or position == len(self.request.parts) - 1:
                self.stops.append(stop)
                self.positions.append(gathered)
                gathered, begun = [], stop
        return bool(self.stops)

    def _place(self, part: PushPart) -> tuple[int, int]:
        """Returns where a part begins and ends in the body, nowhere if it is nothing to be applied on the way."""
        shard = self.job.shards.get(part.shard)
        source = self.sources[part.source] if 0 <= part.source < len(self.sources) else None
        if shard is None or source is None or part_problem(shard, part, source) is not None:
            return 0, 0
        header = source.header
        if header.kind == UpdateKind.FACTORS:
            return 0, 0
        row_bytes = source.row_size * WIRE_ELEMENT_BYTES[header.dtype]
        begins = header.offset - header.row_start * row_bytes
        return begins + shard.row_start * row_bytes, begins + shard.row_stop * row_bytes

    def source(self, position: int, shard: Shard, piece: int, data: memoryview) -> Source:
        """Returns the source of one part alone, whose values are in a piece of the body."""
        whole = self.sources[self.request.parts[position].source]
        header = msgspec.structs.replace(whole.header, row_start=shard.row_start, row_stop=shard.row_stop)
        source = Source(self.push, header, None, whole.row_size)
        offset = self.starts[position] - (self.stops[piece] - len(data))
        source.arrays = (np.frombuffer(data, type_of(header.dtype), shard.size, offset),)
        return source

    def taken(self, piece: int) -> bool:
        """Says whether all parts of a piece are settled, so that nobody needs its bytes any more."""
        return all([self.push.results[position] is not None for position in self.positions[piece]])  # noqa: C419


def begin_arrival(
    core: Core,
    connection: int,
    client: ClientKey,
    request: PushRequest,
    body: memoryview,
    now: float,
    piece_bytes: int = PIECE_BYTES,
) -> ArrivingPush | None:
    """Returns a push that is to be applied as it comes, None for one that is to be taken when it is complete.

    Parts of steps wait for each other anyway. `body` is where it will be; pieces have `piece_bytes` if they can.
    """
    if request.step or request.region or request.job not in core.jobs:
        return None
    if core.crowded or core.queued_bytes > QUEUED_BYTES_MAX:
        return None
    job = core.find(None, connection, request.job, now)
    if isinstance(job, Refuse) or job.refusing or job.short:
        return None
    arriving = ArrivingPush(job, client, request, body)
    return arriving if arriving.cut(piece_bytes) else None


def arrived(core: Core, arriving: ArrivingPush, piece: int, data: memoryview) -> Apply | None:
    """A piece of the body is there: returns what is to be applied at once, before anything else is told to the core.

    Clients that a shard does not know are not met on the way, nor is anybody told there that a part is refused.
    """
    job, push, request = arriving.job, arriving.push, arriving.request
    gone = core.jobs.get(job.name) is not job or job.failed is not None
    if gone or job.refusing or job.short or (job.leased and not core.lease_holds()):
        return None
    batches: list[Batch] = []
    for position in arriving.positions[piece]:
        part = request.parts[position]
        shard = job.shards.get(part.shard)
        if shard is None or shard.batch is not None or shard.queue or shard.steps is not None:
            continue
        if request.epochs.get(shard.bucket.index) != shard.bucket.epoch:
            continue
        known = shard.memory.clients.get(arriving.client)
        if known is None or part.sequence != known.accepted + 1:
            continue
        if core.accept(job, push, position, part, arriving.sources, arriving.client, request.epochs) is not None:
            shard.queue[0].source = arriving.source(position, shard, piece, data)
            shard.batch = Batch(shard)
            batches.append(shard.batch)
    push.queued = False  # nobody needs the body after this: it is not kept, nor counted
    if not batches:
        return None
    arriving.touched = True
    return Apply(job, 0, batches)
