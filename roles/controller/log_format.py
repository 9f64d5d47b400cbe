"""The byte format of a controller's files (docs/formats/controller-store.md), for reading and writing.

A file is a 16-byte header, then records. Little-endian:

    header   8  magic: b"ADMCLOG2", b"ADMCSNP2" or b"ADMCVOT2"
             8  generation (1 in a vote file)
    record   4  length of the payload
             4  CRC-32 of the payload, continued from the record before (from the generation for the first)
             4  CRC-32 of the eight bytes before
             n  payload: MessagePack, a list of `Entry` (one batch), a `PaxosSnapshot` or a `Vote`
             1  0xA5

The checksums chain, so a record cannot be left out or moved. The last byte is never 0. This distinguishes a record that
was not completely written (the file ends inside it, or the file system left zeros at its end) from one that was damaged
later.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from adamctl.wire.checksum import crc32

LOG_MAGIC: Final = b"ADMCLOG2"
SNAPSHOT_MAGIC: Final = b"ADMCSNP2"
VOTE_MAGIC: Final = b"ADMCVOT2"
FORMAT_1_MAGICS: Final = (b"ADMCLOG1", b"ADMCSNP1")
"""Files from before there were votes: one controller, whose log held effects."""
FILE_HEADER: Final = Struct("<8sQ")
RECORD_HEADER: Final = Struct("<III")
_CHECKED: Final = Struct("<II")
END: Final = b"\xa5"
PAYLOAD_BYTES_MAX: Final = 192 << 20
"""More than the largest state: all keys, and of every session that is remembered the names that it conflicted with."""


class DamagedRecordError(ValueError):
    """A record differs from what was written. `offset` is where it begins."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.offset = offset


def encode_file_header(magic: bytes, generation: int) -> bytes:
    return FILE_HEADER.pack(magic, generation)


def first_checksum(generation: int) -> int:
    """Returns the checksum that the one of a file's first record continues."""
    return crc32(generation.to_bytes(8, "little"))


def encode_record(payload: bytes, previous_checksum: int) -> tuple[bytes, int]:
    """Returns a record and its checksum, which the next record's continues."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"expected a payload of at most {PAYLOAD_BYTES_MAX} bytes; found {len(payload)}")
    checksum = crc32(payload, previous_checksum)
    checked = _CHECKED.pack(len(payload), checksum)
    return checked + crc32(checked).to_bytes(4, "little") + payload + END, checksum


def decode_records(data: bytes, generation: int) -> Iterator[tuple[memoryview, int, int]]:
    """Yields each whole record after the file header: payload, checksum, and the offset of its end.

    Stops before a record that was not completely written (a torn tail).

    Raises:
        DamagedRecordError: a completely written record has changed.
    """
    view = memoryview(data)
    offset, checksum = FILE_HEADER.size, first_checksum(generation)
    while offset < len(view):
        start = offset + RECORD_HEADER.size
        if start > len(view):
            return
        length, expected, header_checksum = RECORD_HEADER.unpack_from(view, offset)
        if crc32(view[offset : offset + _CHECKED.size]) != header_checksum:
            if not any(view[offset:]):
                return
            raise DamagedRecordError(offset, "a record's header does not match its checksum")
        if length > PAYLOAD_BYTES_MAX:
            raise DamagedRecordError(offset, f"a record claims {length} bytes")
        stop = start + length
        if stop + len(END) > len(view) or (view[stop] == 0 and not any(view[stop:])):
            return
        if view[stop] != END[0]:
            raise DamagedRecordError(offset, "a record does not end as it should")
        found = crc32(view[start:stop], checksum)
        if found != expected:
            raise DamagedRecordError(offset, "a record does not match its checksum")
        checksum = found
        offset = stop + len(END)
        yield view[start:stop], checksum, offset
