"""The message body that carries shard states between servers: descriptions, then arrays, with checksums (pure).

    header          16 bytes: magic, version, 0, length of the descriptions, checksum
    descriptions    MessagePack: per record a `ShardCopy` and the CRC-32 of its arrays; zeros until a multiple of 64
                    bytes is full
                    A `ShardCopy` holds the clients' memory, or only its changes if the receiver has an older version
                    and has said that it supports that
    arrays          float32, little-endian, one after another in the order of the records

The header's checksum is a CRC-32 of the preceding header bytes and the descriptions with their zeros. So every bit is
covered, and the checksum of arrays that go to several servers is computed once. Writing copies nothing: a body is a
list of buffers, including the arrays themselves. Reading checks all lengths before it touches any array. Both take as
long as computing the checksums, so large bodies are written and read in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import msgspec
import numpy as np
from msgspec import Raw

from adamctl.errors import DamagedDataError
from adamctl.kernels.array import LINE, Array
from adamctl.roles.ps.core.exactly_once import MemoryChange, MemoryRecord
from adamctl.wire.checksum import crc32
from adamctl.wire.unreadable import UNREADABLE

MAGIC: Final = b"ADRB"
VERSION: Final = 1
HEADER: Final = Struct("<4sHHII")
CHECKSUM: Final = Struct("<I")
_SUMMED: Final = HEADER.size - CHECKSUM.size
ALIGNMENT: Final = 64
HEAD_BYTES: Final = HEADER.size + 5 + ALIGNMENT
"""The most bytes a body has besides its records: header, length of the list, zeros."""
PAIR_BYTES: Final = 6
"""Size of a (description, checksum) pair besides the description."""
ARRAYS_MAX: Final = 64
SIZE_MAX: Final = 1 << 31


class ShardCopy(msgspec.Struct, frozen=True, array_like=True):
    """One shard at version (epoch, counter).

    Each array has `size` elements; `lengths` are those in the body: `size`, or 1 for an array that repeats one number,
    or 0 for one that has not changed since the version with counter `since`. First the values, then the rule's state.
    `committed`: all copies have prepared the state with this counter. `change`, if present, replaces `memory`: the
    changes since the version with counter `since`.
    """

    job: str
    born: int
    shard: int
    epoch: int
    counter: int
    pushes: int
    size: int
    lengths: tuple[int, ...]
    memory: MemoryRecord
    committed: int = 0
    since: int = -1
    change: MemoryChange | None = None


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A shard's state in a body. After reading, `arrays` are views of the body, each of `size` elements, or of 0.

    `described` is the encoded description, empty if it is not encoded yet.
    """

    copy: ShardCopy
    arrays: Sequence[Array]
    described: bytes = b""

    @property
    def size_bytes(self) -> int:
        """The record's size in a body."""
        return record_bytes(self.copy, self.described or describe(self.copy))


def describe(copy: ShardCopy) -> bytes:
    """Returns the encoded description."""
    return msgspec.msgpack.encode(copy)


def record_bytes(copy: ShardCopy, described: bytes) -> int:
    """Returns a record's size in a body."""
    return len(described) + PAIR_BYTES + 4 * sum(copy.lengths)


_DECODER: Final = msgspec.msgpack.Decoder(tuple[tuple[ShardCopy, int], ...])


def lengths_of(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Returns how many elements of each flat array are sent: all, or one if the array repeats one number."""
    return tuple(_length(array) for array in arrays)


def arrays_checksum(record: CopyRecord) -> int:
    """Returns the CRC-32 of a record's arrays as sent."""
    checksum = 0
    for array in record.arrays:
        checksum = crc32(_sent(array), checksum)
    return checksum


def encode_body(
    records: Iterable[CopyRecord], checksum_of: Callable[[CopyRecord], int] = arrays_checksum
) -> list[bytes | memoryview]:
    """Returns the buffers of a body; the arrays must not change until it is sent."""
    records = tuple(records)
    pairs = [(Raw(record.described) if record.described else record.copy, checksum_of(record)) for record in records]
    described = msgspec.msgpack.encode(pairs)
    header = HEADER.pack(MAGIC, VERSION, 0, len(described), 0)[:_SUMMED]
    described += bytes(-(HEADER.size + len(described)) % ALIGNMENT)
    checksum = CHECKSUM.pack(crc32(described, crc32(header)))
    return [header + checksum, described, *(_sent(array) for record in records for array in record.arrays)]


def decode_body(body: memoryview) -> list[CopyRecord]:
    """Returns the records of a body; they are valid as long as the body is.

    Raises:
        DamagedDataError: the body is damaged or of another version.
    """
    return [CopyRecord(part.copy, part.arrays()) for part in _parts(body)]


def new_array(size: int) -> Array:
    """Returns a flat, uninitialized float32 array."""
    return np.empty(size, np.float32)


def own_records(body: memoryview, new: Callable[[int], Array] = new_array) -> list[CopyRecord]:
    """Returns the records of a body, copied into flat arrays made by `new`; blocking.

    Raises:
        DamagedDataError: as `decode_body`.
    """
    if not len(body):
        return []
    return [CopyRecord(part.copy, _own(part.arrays(), new)) for part in _parts(body)]


@dataclass(frozen=True, slots=True)
class _Part:
    """A record in a body: its description, its bytes and their expected checksum."""

    copy: ShardCopy
    data: memoryview
    checksum: int

    def arrays(self) -> list[Array]:
        """Returns views of its arrays. Raises DamagedDataError."""
        if crc32(self.data) != self.checksum:
            raise DamagedDataError(f"the checksum of shard {self.copy.shard} of job {self.copy.job!r} does not match")
        elements = np.frombuffer(self.data, "<f4")
        arrays, offset = [], 0
        for length in self.copy.lengths:
            array = elements[offset : offset + length]
            whole = length in (0, self.copy.size)
            arrays.append(array if whole else np.broadcast_to(array, (self.copy.size,)))
            offset += length
        return arrays


def _parts(body: memoryview) -> list[_Part]:
    """Returns a body's parts after checking all lengths; the arrays are not read. Raises DamagedDataError."""
    view = body.cast("B") if body.format != "B" else body
    if len(view) < HEADER.size:
        raise DamagedDataError(f"expected states of shards; found {len(view)} bytes, less than their header")
    magic, version, zero, described_bytes, checksum = HEADER.unpack_from(view)
    if (magic, version, zero) != (MAGIC, VERSION, 0):
        raise DamagedDataError(f"expected states of shards of version {VERSION}; found {bytes(view[:8]).hex()}")
    described_stop = HEADER.size + described_bytes
    start = -(-described_stop // ALIGNMENT) * ALIGNMENT
    if start > len(view):
        raise DamagedDataError(f"expected descriptions of {described_bytes} bytes; found {len(view) - HEADER.size}")
    if crc32(view[HEADER.size : start], crc32(view[:_SUMMED])) != checksum:
        raise DamagedDataError(f"the checksum of the {start} bytes that describe shard states does not match")
    described = _described(view[HEADER.size : described_stop])
    expected = 4 * sum(sum(copy.lengths) for copy, _ in described)
    if expected != len(view) - start:
        raise DamagedDataError(f"expected {expected} bytes of arrays; found {len(view) - start}")
    parts = []
    for copy, arrays_sum in described:
        stop = start + 4 * sum(copy.lengths)
        parts.append(_Part(copy, view[start:stop], arrays_sum))
        start = stop
    return parts


def _own(arrays: Sequence[Array], new: Callable[[int], Array]) -> list[Array]:
    """Returns contiguous copies of one shard's arrays; an array that repeats one number keeps just one."""
    starts = [0]
    for array in arrays:
        starts.append(starts[-1] + -(-_length(array) // LINE) * LINE)
    flat = new(starts[-1])
    copies = []
    for start, array in zip(starts, arrays, strict=False):
        length = _length(array)
        flat[start : start + length] = array[:length]
        strides = (4,) if length == array.size else (0,)
        copies.append(np.ndarray((array.size,), np.float32, flat[start:].data, strides=strides))
    return copies


def _described(described: memoryview) -> tuple[tuple[ShardCopy, int], ...]:
    """Returns the descriptions, each checked for consistency. Raises DamagedDataError."""
    try:
        pairs = _DECODER.decode(described)
    except UNREADABLE as error:
        raise DamagedDataError(f"descriptions of shards are not in this version's format: {error}") from error
    for copy, _ in pairs:
        fits = 0 <= copy.size <= SIZE_MAX and 0 < len(copy.lengths) <= ARRAYS_MAX
        allowed = {1, copy.size} if copy.change is None else {0, 1, copy.size}
        first = copy.lengths[0] if copy.lengths else -1
        if not fits or not allowed.issuperset(copy.lengths) or first not in allowed - ({1} - {copy.size}):
            raise DamagedDataError(f"shard {copy.shard} of {copy.size} elements cannot have arrays of {copy.lengths}")
        if min(copy.shard, copy.epoch, copy.counter, copy.pushes) < 0:
            raise DamagedDataError(f"shard {copy.shard} has a negative number: {copy.epoch}, {copy.counter}")
    return pairs


def _length(array: Array) -> int:
    return 1 if _repeats(array) else array.size


def _repeats(array: Array) -> bool:
    return array.size > 1 and array.strides == (0,)


def _sent(array: Array) -> memoryview:
    if not array.size:
        return memoryview(b"")
    whole = array[:1] if _repeats(array) else array
    return np.ascontiguousarray(whole, "<f4").data.cast("B")
