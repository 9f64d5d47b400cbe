"""The log's records: what was written is read again, a cut leaves a prefix, every flipped bit is noticed (I10)."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.roles.ps.core.exactly_once import ClientRecord, MemoryRecord
from adamctl.roles.ps.store.record import (
    CHECKSUM,
    FIRST_CHECKSUM,
    HEADER,
    Anchor,
    DamagedRecordError,
    Description,
    Holding,
    JobIdentity,
    Record,
    RecordKind,
    ShardState,
    TornRecordError,
    decode,
    decode_header,
    encode,
    encode_parts_into,
)

JOB = JobIdentity("mnist", 7, "hash", "momentum")
MEMORY = MemoryRecord((ClientRecord("w", 3, 12, {4: 9}),), (("v", 1),), 0)


def description(number: int) -> tuple[Description, list[memoryview]]:
    if number == 0:
        return Holding(JOB, {0: (1, 1), 3: (2, 1)}, {3}), []
    size = number + 1
    arrays = [np.full(size, number + index, np.float32) for index in range(2)]
    return ShardState(JOB, number, size, 2, 1, 10 * number, number, MEMORY), [a.data.cast("B") for a in arrays]


def log(records: int = 4) -> tuple[bytes, list[int]]:
    """A small log and where each record ends."""
    stream, ends, checksum = b"", [], FIRST_CHECKSUM
    for number in range(records):
        encoded, checksum = encode(number + 1, checksum, *description(number))
        stream += encoded
        ends.append(len(stream))
    return stream, ends


def whole_records(stream: bytes | bytearray) -> list[Record]:
    """Returns the records of a stream up to its end, or to a torn one. Raises DamagedRecordError for anything else."""
    view, records, checksum = memoryview(stream), [], FIRST_CHECKSUM
    while view:
        try:
            record = decode(view, len(records) + 1, checksum)
        except TornRecordError:
            break
        records.append(record)
        checksum = record.checksum
        view = view[decode_header(view, record.sequence).end + CHECKSUM.size :]
    return records


def contents(records: list[Record]) -> list[tuple[Description, bytes]]:
    return [(record.description, bytes(record.arrays)) for record in records]


def expected(count: int) -> list[tuple[Description, bytes]]:
    return [(described, b"".join(arrays)) for described, arrays in map(description, range(count))]


def test_what_was_written_is_read_again() -> None:
    stream, _ = log()
    records = whole_records(stream)
    assert contents(records) == expected(4)
    assert [record.sequence for record in records] == [1, 2, 3, 4]


def test_a_log_cut_at_any_byte_opens_as_a_prefix() -> None:
    stream, ends = log()
    for length in range(len(stream) + 1):
        whole = sum(end <= length for end in ends)
        assert contents(whole_records(stream[:length])) == expected(whole), length


def test_every_flipped_bit_is_noticed() -> None:
    """A flipped bit is damage, never a torn end: that would silently lose what had been acknowledged."""
    stream, _ = log()
    for bit in range(8 * len(stream)):
        damaged = bytearray(stream)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecordError) as caught:
            whole_records(damaged)
        assert not isinstance(caught.value, TornRecordError)


def test_a_record_left_out_repeated_or_moved_is_noticed() -> None:
    stream, ends = log()
    pieces = [stream[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    for order in ([1, 2, 3], [0, 2, 3], [0, 1, 1, 2], [0, 2, 1, 3]):
        with pytest.raises(DamagedRecordError, match="does not follow"):
            whole_records(b"".join(pieces[number] for number in order))


def test_a_record_of_another_log_is_noticed_though_its_number_fits() -> None:
    stream, ends = log()
    other, _ = encode(2, FIRST_CHECKSUM + 1, *description(1))
    with pytest.raises(DamagedRecordError, match="does not follow"):
        whole_records(stream[: ends[0]] + other)


def test_arrays_that_were_summed_up_before_are_not_summed_up_again() -> None:
    encoded, _ = encode(1, FIRST_CHECKSUM, *description(2))
    damaged = bytearray(encoded)
    damaged[-CHECKSUM.size - 1] ^= 1
    assert decode(damaged, 1, FIRST_CHECKSUM, summed=False).description == description(2)[0]
    with pytest.raises(DamagedRecordError, match="checksum"):
        decode(damaged, 1, FIRST_CHECKSUM)


@pytest.mark.parametrize(
    ("kind", "described", "arrays", "words"),
    [
        (RecordKind.SHARD, b"\x90", b"", "description"),
        (RecordKind.SHARD, b"no msgpack", b"", "description"),
        (9, b"", b"", "kind 9"),
    ],
)
def test_what_this_version_cannot_read_is_named(kind: int, described: bytes, arrays: bytes, words: str) -> None:
    target = bytearray(200)
    size, _ = encode_parts_into(memoryview(target), 1, FIRST_CHECKSUM, kind, described, [memoryview(arrays)])
    with pytest.raises(DamagedRecordError, match=words):
        decode(target[:size], 1, FIRST_CHECKSUM)


def test_arrays_of_another_size_than_the_description_says_are_refused() -> None:
    described, arrays = description(3)
    encoded, _ = encode(1, FIRST_CHECKSUM, described, arrays[:1])
    with pytest.raises(DamagedRecordError, match="do not hold 2 arrays of 4"):
        decode(encoded, 1, FIRST_CHECKSUM)


def test_a_record_larger_than_its_buffer_is_an_error() -> None:
    with pytest.raises(ValueError):
        encode_parts_into(memoryview(bytearray(HEADER.size)), 1, FIRST_CHECKSUM, RecordKind.SHARD, b"x" * 9, [])


def test_an_anchor_is_read_again_and_every_flipped_bit_in_it_is_noticed() -> None:
    anchor = Anchor(3, 9, 77, 88)
    encoded = anchor.encode()
    assert Anchor.decode(encoded) == anchor
    for bit in range(8 * len(encoded)):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecordError):
            Anchor.decode(damaged)
    for length in range(len(encoded)):
        with pytest.raises(DamagedRecordError):
            Anchor.decode(encoded[:length])
