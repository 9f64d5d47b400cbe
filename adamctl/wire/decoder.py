"""Splits a stream of bytes, received in arbitrary pieces, into frames; pure, no I/O.

The decoder says where to put the next bytes, so that a body is received straight into its final place:

    decoder = FrameDecoder(allocate)
    while decoder.failure is None:
        count = socket.recv_into(decoder.want())
        for frame in decoder.received(count): ...

Heads, small bodies and the ends of bodies go through a small staging buffer, so that one read can bring several small
frames; the rest of a body is received directly. All limits and both checksums are checked before `allocate` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from adamctl.errors import ProtocolError
from adamctl.wire.codec import FrameHead, check_typed_header, parse_head
from adamctl.wire.constants import FRAME_HEADER_BYTES

STAGING_BYTES = 16 << 10
"""Most bytes that one read brings through the staging buffer; it is used when less than this is left of a segment."""


class BodyTarget(NamedTuple):
    """Where a body goes: writable byte views whose lengths add up to the body's, and a token for the allocator.

    `filled` is called with the number of each non-empty segment as soon as its last byte has arrived. It must neither
    raise nor use the decoder.
    """

    segments: Sequence[memoryview]
    token: object = None
    filled: Callable[[int], None] | None = None


class Frame(NamedTuple):
    """A complete frame. `target` is what the allocator returned, None for an empty body."""

    head: FrameHead
    typed_header: bytes
    target: BodyTarget | None


Allocator = Callable[[FrameHead], BodyTarget | None]
"""Called once per body, before its first byte is stored. None means "not now": see `FrameDecoder.blocked`. It may raise
ProtocolError to refuse the frame."""

_NO_FRAMES: tuple[Frame, ...] = ()
_NOTHING = memoryview(b"")


class FrameDecoder:
    """Incremental parser of one direction of a connection.

    Attributes:
        failure: the ProtocolError that ended the stream, None if there was none. Frames before it were returned.
        blocked: the allocator had no room; read nothing until `resume` has been called.
        frames_seen: complete frames so far.
        any_opcode: requests with an opcode that is unknown here are frames, too; else they end the stream.
    """

    __slots__ = (
        "_allocate",
        "_body_left",
        "_direct",
        "_end",
        "_head",
        "_position",
        "_segment",
        "_segment_number",
        "_staging",
        "_start",
        "_target",
        "_typed_header",
        "any_opcode",
        "blocked",
        "failure",
        "frames_seen",
    )

    def __init__(self, allocate: Allocator, *, staging_bytes: int = 4 << 10) -> None:
        self._allocate = allocate
        self._staging = memoryview(bytearray(max(staging_bytes, FRAME_HEADER_BYTES)))
        self._start = 0  # parsed up to here
        self._end = 0  # received up to here
        self._head: FrameHead | None = None
        self._typed_header: bytes | None = None
        self._target: BodyTarget | None = None
        self._body_left = 0
        self._segment = _NOTHING
        self._segment_number = 0
        self._position = 0
        self._direct = False
        self.failure: ProtocolError | None = None
        self.blocked = False
        self.frames_seen = 0
        self.any_opcode = False

    def let_go(self) -> None:
        """Forgets the connection, from which nothing more comes; each has the other, so neither would be freed."""
        self._allocate = _no_room

    @property
    def mid_frame(self) -> bool:
        """Whether the stream would end within a frame if it ended here."""
        return self._head is not None or self._end > self._start

    @property
    def current(self) -> BodyTarget | None:
        """The target of the body that is being received."""
        return self._target

    @property
    def typed_header(self) -> bytes:
        """The typed header of the frame being received, for the allocator; empty before the allocator is called."""
        return self._typed_header or b""

    def want(self, _size_hint: int = -1) -> memoryview:
        """Returns where to write the next bytes: at least one byte, none beyond what may be stored."""
        if self._body_left:
            segment = self._segment
            if len(segment) - self._position >= STAGING_BYTES:
                self._direct = True
                return segment[self._position :]
        self._direct = False
        if len(self._staging) < STAGING_BYTES and self.frames_seen:
            self._grow(STAGING_BYTES)  # a peer gets only a small buffer before its first valid frame
        return self._staging[self._end :]

    def received(self, count: int) -> Sequence[Frame]:
        """Processes `count` bytes written to the start of the last `want()`; returns the frames now complete.

        Never raises because of what the peer sent: see `failure`.
        """
        if self._direct:
            self._position += count
            self._body_left -= count
            if self._position == len(self._segment):
                self._next_segment()
            if self._body_left:
                return _NO_FRAMES
        else:
            self._end += count
        return self._parse()

    def resume(self) -> Sequence[Frame]:
        """Asks the allocator again after it had no room; returns the frames now complete."""
        self.blocked = False
        return self._parse()

    def feed(self, data: bytes) -> list[Frame]:
        """Convenience for tests and twins: copies `data` in and returns the frames, until failure or block."""
        frames: list[Frame] = []
        offset = 0
        while offset < len(data) and self.failure is None and not self.blocked:
            window = self.want()
            count = min(len(window), len(data) - offset)
            window[:count] = data[offset : offset + count]
            frames.extend(self.received(count))
            offset += count
        return frames

    def discard_body(self) -> None:
        """Discards the rest of the body being received: its owner no longer wants its memory written to."""
        if self._target is not None:
            self._target = discard_target(self._body_left, self._target.token)
            self._begin_body(self._target)

    def _begin_body(self, target: BodyTarget) -> None:
        self._segment_number = 0
        self._position = 0
        self._segment = target.segments[0]
        if not len(self._segment):
            self._next_segment()

    def _next_segment(self) -> None:
        """Moves from a full (or empty) segment to the next non-empty one, if any."""
        target = self._target
        assert target is not None
        if target.filled is not None and self._position:
            target.filled(self._segment_number)
        self._position = 0
        while self._body_left:
            self._segment_number += 1
            self._segment = target.segments[self._segment_number]
            if len(self._segment):
                return

    def _parse(self) -> list[Frame]:
        frames: list[Frame] = []
        if self.failure is None and not self.blocked:
            try:
                while self._parse_one(frames):
                    pass
            except ProtocolError as error:
                self.failure = error
        self._compact()
        return frames

    def _parse_one(self, frames: list[Frame]) -> bool:
        """Takes one step through the staged bytes; False when more bytes, or room for a body, are needed."""
        head = self._head
        if head is None:
            if self._end - self._start < FRAME_HEADER_BYTES:
                return False
            head = self._head = parse_head(self._staging[self._start : self._end], self.any_opcode)
            self._start += FRAME_HEADER_BYTES
        if self._typed_header is None:
            stop = self._start + head.header_bytes
            if self._end < stop:
                return False
            typed_header = bytes(self._staging[self._start : stop])
            check_typed_header(head, typed_header)
            self._typed_header = typed_header
            self._start = stop
            self._body_left = 0
        if head.body_bytes and self._target is None:
            self._target = self._allocate(head)
            if self._target is None:
                self.blocked = True
                return False
            self._body_left = head.body_bytes
            self._begin_body(self._target)
        if self._body_left and not self._copy_staged():
            return False
        frames.append(Frame(head, self._typed_header, self._target))
        self._head = self._typed_header = self._target = None
        self._segment = _NOTHING  # the memory belongs to the frame's handler, which may free it
        self.frames_seen += 1
        return self._end > self._start

    def _copy_staged(self) -> bool:
        """Moves staged body bytes to their place; True when the body is complete."""
        while self._body_left and self._end > self._start:
            count = min(len(self._segment) - self._position, self._end - self._start)
            stop = self._start + count
            self._segment[self._position : self._position + count] = self._staging[self._start : stop]
            self._start = stop
            self._position += count
            self._body_left -= count
            if self._position == len(self._segment):
                self._next_segment()
        return not self._body_left

    def _compact(self) -> None:
        """Moves the remaining bytes to the front, and makes room for a typed header that does not fit."""
        left = self._end - self._start
        if self._start:
            if left:
                self._staging[:left] = bytes(self._staging[self._start : self._end])
            self._start, self._end = 0, left
        if self._head is not None and self._typed_header is None and self._head.header_bytes > len(self._staging):
            self._grow(self._head.header_bytes)

    def _grow(self, size: int) -> None:
        staging = memoryview(bytearray(size))
        staging[: self._end] = self._staging[: self._end]
        self._staging = staging


def discard_target(body_bytes: int, token: object = None) -> BodyTarget:
    """Returns a target that takes 64 KiB for a body of any length: the same bytes are overwritten repeatedly."""
    sink = memoryview(bytearray(min(body_bytes, 64 << 10)))
    whole, rest = divmod(body_bytes, len(sink))
    return BodyTarget([sink] * whole + ([sink[:rest]] if rest else []), token)


def _no_room(head: FrameHead) -> BodyTarget | None:
    return None
