"""The byte format of a parameter server's log records (docs/formats/store.md), for writing and reading (pure).

A record holds one shard's whole state at one version, or the list of a job's buckets that this server holds. Records
are numbered without gaps, and each contains the checksum of the previous one, so that a record that was changed,
omitted, repeated or moved is detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from adamctl.roles.ps.core.exactly_once import MemoryRecord
from adamctl.wire.checksum import crc32
from adamctl.wire.unreadable import UNREADABLE

RECORD_MAGIC: Final = b"ADLR"
RECORD_VERSION: Final = 1
HEADER: Final = Struct("<4sHHQIIQ")  # magic, version, kind, sequence, checksum before, description and array lengths
CHECKSUM: Final = Struct("<I")  # CRC-32
HEADER_BYTES: Final = HEADER.size + CHECKSUM.size
ANCHOR: Final = Struct("<4sHHQQII")  # magic, version, 0, first, next, checksum before the first, checksum of the last
ANCHOR_BYTES: Final = ANCHOR.size + CHECKSUM.size
ANCHOR_MAGIC: Final = b"ADLA"
DESCRIPTION_BYTES_MAX: Final = 64 << 20
ARRAY_BYTES_MAX: Final = 4 << 30
ARRAYS_MAX: Final = 64
FIRST_SEQUENCE: Final = 1
FIRST_CHECKSUM: Final = crc32(RECORD_MAGIC)

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class RecordKind(IntEnum):
    """What a record holds. Numbers are never reused."""

    SHARD = 1
    HOLDING = 2


class DamagedRecordError(ValueError):
    """The bytes are not the record that was written. `sequence`: the number expected there."""

    def __init__(self, sequence: int, reason: str) -> None:
        super().__init__(f"record {sequence}: {reason}")
        self.sequence = sequence


class TornRecordError(DamagedRecordError):
    """The bytes end inside a record: it was not completely written, so it was never acknowledged."""


class JobIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Distinguishes a job from others of the same name: `born` is the revision at which its layout was written."""

    name: str
    born: int
    layout_hash: str
    rule: str


class ShardState(msgspec.Struct, frozen=True, array_like=True):
    """A shard at one version; its `arrays` follow, float32 of `size` elements each: values, then the rule's state.

    `changed`: places of the arrays that there are, if the others are as in the record of this shard before; else empty.
    """

    job: JobIdentity
    shard: int
    size: int
    arrays: int
    epoch: int
    counter: int
    pushes: int
    memory: MemoryRecord
    changed: tuple[int, ...] = ()


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """The buckets of a job that this server holds: bucket -> (epoch, number of a record).

    Records of a bucket's shards are valid from that number on; earlier ones belong to an earlier job of the same name.
    A shard of such a bucket without a record has its initial values, unless the bucket is one of `received`: those that
    came from another server. There it is a shard that was still to come.
    """

    job: JobIdentity
    buckets: dict[int, tuple[int, int]]
    received: set[int] = msgspec.field(default_factory=set)


Description: TypeAlias = "ShardState | Holding"
_KINDS: Final[dict[int, type[ShardState] | type[Holding]]] = {RecordKind.SHARD: ShardState, RecordKind.HOLDING: Holding}
_DECODERS: Final = {number: msgspec.msgpack.Decoder(kind) for number, kind in _KINDS.items()}
"""Made here because msgspec analyzes a type at first use, which two threads must not do at once."""
_KIND_OF: Final = {kind: RecordKind(number) for number, kind in _KINDS.items()}


@dataclass(frozen=True)
class Record:
    """A record that was read and checked. `arrays` is a view of the bytes it was read from."""

    sequence: int
    checksum: int
    description: Description
    arrays: memoryview


@dataclass(frozen=True)
class StoredRecord:
    """A record found in the log."""

    sequence: int
    size_bytes: int
    description: Description


@dataclass(frozen=True)
class Anchor:
    """Where a log starts and ends: numbers in [first, next), the checksum before `first` and that of the last."""

    first: int = FIRST_SEQUENCE
    next: int = FIRST_SEQUENCE
    checksum_before: int = FIRST_CHECKSUM
    checksum_last: int = FIRST_CHECKSUM

    def encode(self) -> bytes:
        packed = ANCHOR.pack(
            ANCHOR_MAGIC, RECORD_VERSION, 0, self.first, self.next, self.checksum_before, self.checksum_last
        )
        return packed + CHECKSUM.pack(crc32(packed))

    @classmethod
    def decode(cls, data: Buffer) -> Anchor:
        """Raises DamagedRecordError."""
        view = memoryview(data)
        if len(view) != ANCHOR_BYTES or CHECKSUM.pack(crc32(view[: ANCHOR.size])) != view[ANCHOR.size :]:
            raise DamagedRecordError(0, "the anchor's length or checksum is wrong")
        magic, version, zero, first, following, before, last = ANCHOR.unpack_from(view)
        if (magic, version, zero) != (ANCHOR_MAGIC, RECORD_VERSION, 0) or not FIRST_SEQUENCE <= first <= following:
            raise DamagedRecordError(0, f"the anchor is not of version {RECORD_VERSION}")
        return cls(first, following, before, last)


def encoded_bytes(description: bytes, arrays: Sequence[memoryview]) -> int:
    """Returns the size of a whole record."""
    return HEADER_BYTES + len(description) + sum(array.nbytes for array in arrays) + CHECKSUM.size


def encode_into(
    target: memoryview, sequence: int, checksum_before: int, description: Description, arrays: Sequence[memoryview] = ()
) -> tuple[int, int]:
    """Writes a record to the start of `target`; returns its size in bytes and its checksum.

    Args:
        target: writable bytes, at least `encoded_bytes`.
        arrays: the shard's arrays as views of bytes (format `B`), one after another.

    Raises:
        ValueError: `target` is too small, or the record too large.
    """
    return encode_parts_into(
        target, sequence, checksum_before, _KIND_OF[type(description)], encode_description(description), arrays
    )


def encode_description(description: Description) -> bytes:
    return msgspec.msgpack.encode(description)


def encode_parts_into(
    target: memoryview, sequence: int, checksum_before: int, kind: int, described: bytes, arrays: Sequence[memoryview]
) -> tuple[int, int]:
    """Like `encode_into`, for a description that is already encoded."""
    array_bytes = sum(array.nbytes for array in arrays)
    if len(described) > DESCRIPTION_BYTES_MAX or array_bytes > ARRAY_BYTES_MAX:
        raise ValueError(f"too large for a record: {len(described)} bytes of description, {array_bytes} of arrays")
    packed = HEADER.pack(RECORD_MAGIC, RECORD_VERSION, kind, sequence, checksum_before, len(described), array_bytes)
    offset = 0
    pieces: tuple[Buffer, ...] = (packed, CHECKSUM.pack(crc32(packed)), described, *arrays)
    for piece in pieces:
        target[offset : offset + len(piece)] = piece
        offset += len(piece)
    checksum = crc32(target[:offset])
    CHECKSUM.pack_into(target, offset, checksum)
    return offset + CHECKSUM.size, checksum


def encode(
    sequence: int, checksum_before: int, description: Description, arrays: Sequence[memoryview] = ()
) -> tuple[bytes, int]:
    """Returns a record and its checksum."""
    target = bytearray(encoded_bytes(encode_description(description), arrays))
    _, checksum = encode_into(memoryview(target), sequence, checksum_before, description, arrays)
    return bytes(target), checksum


class Header(NamedTuple):
    """A record's checked header."""

    kind: int
    checksum_before: int
    description_bytes: int
    array_bytes: int

    @property
    def arrays_start(self) -> int:
        return HEADER_BYTES + self.description_bytes

    @property
    def end(self) -> int:
        """Where the arrays end and the record's checksum starts."""
        return self.arrays_start + self.array_bytes


def decode_header(data: Buffer, sequence: int) -> Header:
    """Reads the header at the start of a record.

    Raises:
        TornRecordError: `data` ends inside it.
        DamagedRecordError: it is damaged, or belongs to another record.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise TornRecordError(sequence, f"expected a header of {HEADER_BYTES} bytes; found {len(view)}")
    magic, version, kind, found, before, description_bytes, array_bytes = HEADER.unpack_from(view)
    (header_checksum,) = CHECKSUM.unpack_from(view, HEADER.size)
    if magic != RECORD_MAGIC or header_checksum != crc32(view[: HEADER.size]):
        raise DamagedRecordError(sequence, "the checksum of its header is wrong")
    if version != RECORD_VERSION or kind not in _KINDS:
        raise DamagedRecordError(sequence, f"version {version}, kind {kind} is not known to this version of adamctl")
    if found != sequence:
        raise DamagedRecordError(sequence, f"found record {found}, which does not follow the one before")
    header = Header(kind, before, description_bytes, array_bytes)
    if description_bytes > DESCRIPTION_BYTES_MAX or array_bytes > ARRAY_BYTES_MAX:
        raise DamagedRecordError(sequence, f"its length of {header.end} bytes exceeds the limit of a record")
    return header


def decode(data: Buffer, sequence: int, checksum_before: int, *, summed: bool = True) -> Record:
    """Reads the record at the start of `data`.

    Args:
        sequence, checksum_before: its number and the checksum of the record before it.
        summed: False skips the checksum of the arrays, which was checked before; all else is checked.

    Raises:
        TornRecordError: `data` ends inside it.
        DamagedRecordError: it is damaged, or it is the wrong record.
    """
    view = memoryview(data)
    header = decode_header(view, sequence)
    if header.checksum_before != checksum_before:
        raise DamagedRecordError(sequence, f"found record {sequence}, which does not follow the one before")
    end = header.end
    if len(view) < end + CHECKSUM.size:
        raise TornRecordError(sequence, f"expected {end + CHECKSUM.size} bytes; found {len(view)}")
    (checksum,) = CHECKSUM.unpack_from(view, end)
    if summed and checksum != crc32(view[:end]):
        raise DamagedRecordError(sequence, "its checksum is wrong")
    description = decode_description(sequence, header, view[HEADER_BYTES : header.arrays_start])
    return Record(sequence, checksum, description, view[header.arrays_start : end])


def decode_description(sequence: int, header: Header, data: Buffer) -> Description:
    """Raises DamagedRecordError if it is not a description, or does not fit the header's array length."""
    try:
        description = _DECODERS[header.kind].decode(data)
    except UNREADABLE as error:
        raise DamagedRecordError(sequence, f"its description is not in this version's format: {error}") from error
    if isinstance(description, ShardState):
        fits = header.array_bytes == 4 * description.size * description.arrays
        places = description.changed
        if places and (len(places) != description.arrays or list(places) != sorted({*places}) or places[0] < 0):
            raise DamagedRecordError(sequence, f"{description.arrays} arrays cannot be in the places {places}")
        if not fits or description.size < 0 or not 0 < description.arrays <= ARRAYS_MAX:
            raise DamagedRecordError(
                sequence, f"{header.array_bytes} bytes do not hold {description.arrays} arrays of {description.size}"
            )
    return description
