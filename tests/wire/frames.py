"""Frames for the tests of the wire: valid ones by the codec, wrong ones byte by byte."""

from __future__ import annotations

import itertools
import struct
from random import Random
from zlib import crc32

from adamctl.wire.codec import FrameHead, encode_message, encode_request
from adamctl.wire.constants import FRAME_HEADER_BYTES, Opcode
from adamctl.wire.decoder import BodyTarget, Frame, FrameDecoder
from adamctl.wire.messages import BenchBlockRequest, PullRequest, StatusRequest


def raw_frame(
    *,
    magic: bytes = b"ADMC",
    version: int = 1,
    flags: int = 0,
    opcode: int = Opcode.BENCH_BLOCK,
    request_id: int = 7,
    deadline_ms: int = 1000,
    header: bytes | None = None,
    header_bytes: int | None = None,
    body: bytes = b"",
    body_bytes: int | None = None,
    header_checksum: int | None = None,
    checksum: int | None = None,
) -> bytes:
    """A frame written out with struct alone, so that the codec is not tested against itself."""
    if header is None:
        header = encode_message(BenchBlockRequest(5))
    fixed = struct.pack(
        "<4sBBHQIIII",
        magic,
        version,
        flags,
        opcode,
        request_id,
        deadline_ms,
        len(header) if header_bytes is None else header_bytes,
        len(body) if body_bytes is None else body_bytes,
        crc32(header) if header_checksum is None else header_checksum,
    )
    return fixed + struct.pack("<I", crc32(fixed) if checksum is None else checksum) + header + body


class Allocations:
    """An allocator that remembers; bodies in one segment, or cut into `pieces`."""

    def __init__(self, pieces: int = 1) -> None:
        self.sizes: list[int] = []
        self.pieces = pieces

    def __call__(self, head: FrameHead) -> BodyTarget:
        self.sizes.append(head.body_bytes)
        memory = memoryview(bytearray(head.body_bytes))
        step = -(-head.body_bytes // self.pieces)
        segments = [memory[start : start + step] for start in range(0, head.body_bytes, step)]
        return BodyTarget([memoryview(bytearray()), *segments], memory)


def body_of(frame: Frame) -> bytes:
    return b"" if frame.target is None else b"".join(bytes(segment) for segment in frame.target.segments)


def decode_all(stream: bytes, splits: list[int] | None = None, pieces: int = 1) -> tuple[list[Frame], FrameDecoder]:
    """Feeds a stream in the pieces that the sorted `splits` cut it into."""
    decoder = FrameDecoder(Allocations(pieces))
    frames: list[Frame] = []
    cuts = [0, *sorted(splits or []), len(stream)]
    for start, stop in itertools.pairwise(cuts):
        frames += decoder.feed(stream[start:stop])
    return frames, decoder


def random_stream(random: Random, count: int, body_bytes_max: int = 60_000) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Returns `count` valid frames and what they are: (request id, body)."""
    stream = bytearray()
    expected = []
    for _ in range(count):
        request_id = random.getrandbits(64)
        block = BenchBlockRequest(random.getrandbits(32))
        message = random.choice([StatusRequest(), block, PullRequest("job", {1: 2}, (3,))])
        body = random.randbytes(random.choice([0, 1, 100, random.randrange(body_bytes_max)]))
        stream += encode_request(message, request_id, deadline_s=random.random(), body_bytes=len(body))
        stream += body
        expected.append((request_id, body))
    return bytes(stream), expected


assert FRAME_HEADER_BYTES == 36
