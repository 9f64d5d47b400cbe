"""A push whose parts are applied as they arrive, while the rest of its body is still being received (pure).

Data that was just received is in cache; after the whole body has arrived it would have to be fetched from memory again.
Parts that cannot be applied at once, for example because their shards are busy, are left to `ServerCore.push`, which
gets the push when it is complete. If it never completes, applied parts stay applied, and when the push is sent again
the client learns which: every part has its own number.
"""

from __future__ import annotations

import msgspec
import numpy as np

from adamctl.kernels.numeric.convert import type_of
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.push import Push, Source
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.validate import checked_source, part_problem
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PushPart, PushRequest

PIECE_BYTES_MAX = 4 << 20
"""Larger pieces go to apply threads, so that the event loop does not wait for them."""


class ArrivingPush:
    """A push whose body is arriving.

    Attributes:
        stops: where its pieces end, as byte offsets in the body.
        starts: where its parts start, likewise.
        positions: per piece, the positions of its parts.
        touched: whether any part was applied while the push arrived.
    """

    __slots__ = ("client", "job", "positions", "push", "request", "sources", "starts", "stops", "touched")

    def __init__(self, job: Job, client: ClientKey, request: PushRequest, body: memoryview) -> None:
        self.job, self.client, self.request = job, client, request
        self.push = Push(None, request.learning_rate, body, len(request.parts))
        self.push.remaining += 1  # for the push itself: it is not answered before all of it has arrived
        self.sources = [checked_source(job, self.push, header) for header in request.sources]
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.positions: list[list[int]] = []
        self.touched = False

    def cut(self, piece_bytes: int) -> bool:
        """Groups its parts into pieces; returns False if they cannot be applied in order as they arrive."""
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
        """Returns where a part starts and ends in the body; (0, 0) if it cannot be applied on arrival."""
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
        """Returns a source for one part alone, whose values are in a piece of the body."""
        whole = self.sources[self.request.parts[position].source]
        header = msgspec.structs.replace(whole.header, row_start=shard.row_start, row_stop=shard.row_stop)
        source = Source(self.push, header, None, whole.row_size)
        offset = self.starts[position] - (self.stops[piece] - len(data))
        source.arrays = (np.frombuffer(data, type_of(header.dtype), shard.size, offset),)
        return source

    def taken(self, piece: int) -> bool:
        """Returns whether all parts of a piece are settled, so that its bytes are not needed any more."""
        return all([self.push.results[position] is not None for position in self.positions[piece]])  # noqa: C419
