"""States of shards in a body: what is written comes back, and nothing else is ever taken for it."""

from __future__ import annotations

from random import Random
from zlib import crc32

import msgspec
import numpy as np
import pytest

from adamctl.errors import DamagedDataError
from adamctl.roles.ps.core.exactly_once import ClientRecord, MemoryChange, MemoryRecord
from adamctl.roles.ps.core.shard_message import (
    ALIGNMENT,
    HEADER,
    MAGIC,
    VERSION,
    CopyRecord,
    ShardCopy,
    decode_body,
    encode_body,
    lengths_of,
    own_records,
)

MEMORY = MemoryRecord((ClientRecord("w-0", 7, 12, {3: 9}), ClientRecord("w-1", 8, 1)), (("gone", 2),), 1, 5)


def record(shard: int, arrays: list[np.ndarray], epoch: int = 4, counter: int = 9) -> CopyRecord:
    copy = ShardCopy("job", 17, shard, epoch, counter, 23, arrays[0].size, lengths_of(arrays), MEMORY)
    return CopyRecord(copy, arrays)


def arrays(size: int, count: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(size).astype(np.float32) for _ in range(count)]


def joined(records: list[CopyRecord]) -> bytes:
    return b"".join(bytes(piece) for piece in encode_body(records))


def sealed(described: bytes, data: bytes = b"", version: int = VERSION) -> memoryview:
    """A body of anything, with its checksum right."""
    start = HEADER.pack(MAGIC, version, 0, len(described), 0)[:12]
    rest = described + bytes(-(HEADER.size + len(described)) % ALIGNMENT)
    return memoryview(start + crc32(rest, crc32(start)).to_bytes(4, "little") + rest + data)


@pytest.mark.parametrize("sizes", [(), (1,), (5,), (3, 1000, 1), (0, 2)])
def test_what_is_written_comes_back(sizes: tuple[int, ...]) -> None:
    written = [record(number, arrays(size, 1 + number, number)) for number, size in enumerate(sizes)]
    body = joined(written)
    found = decode_body(memoryview(body))
    assert [r.copy for r in found] == [r.copy for r in written]
    for one, other in zip(written, found, strict=True):
        for a, b in zip(one.arrays, other.arrays, strict=True):
            np.testing.assert_array_equal(a, b)
            assert b.dtype == np.float32


def test_a_number_for_a_whole_shard_is_sent_once() -> None:
    repeated = np.broadcast_to(np.float32(6), (1000,))
    written = record(3, [*arrays(1000, 2), repeated])
    body = joined([written])
    assert written.copy.lengths == (1000, 1000, 1) and len(body) < 2 * 4000 + 1000
    (found,) = decode_body(memoryview(body))
    np.testing.assert_array_equal(found.arrays[2], repeated)


def test_nothing_is_copied_on_either_side() -> None:
    live = arrays(4096, 1)
    pieces = encode_body([record(0, live)])
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), live[0]) for piece in pieces if len(piece) == 4 * 4096)
    body = np.frombuffer(joined([record(0, live)]), np.uint8)
    (found,) = decode_body(memoryview(body))
    assert np.shares_memory(found.arrays[0], body)


def test_every_truncation_is_found() -> None:
    body = joined([record(0, arrays(7, 2)), record(1, arrays(3, 1))])
    for length in range(len(body)):
        with pytest.raises(DamagedDataError):
            decode_body(memoryview(body)[:length])
    with pytest.raises(DamagedDataError):
        decode_body(memoryview(body + b"\0"))


def test_every_flipped_bit_is_found() -> None:
    body = bytearray(joined([record(0, arrays(5, 1))]))
    for position in range(len(body)):
        for bit in range(8):
            body[position] ^= 1 << bit
            with pytest.raises(DamagedDataError):
                decode_body(memoryview(body))
            body[position] ^= 1 << bit
    decode_body(memoryview(body))


def test_bytes_of_anybody_are_refused() -> None:
    random = Random(5)
    for _ in range(300):
        with pytest.raises(DamagedDataError):
            decode_body(memoryview(random.randbytes(random.randrange(200))))
        with pytest.raises(DamagedDataError):
            decode_body(sealed(b"\xdd" + random.randbytes(random.randrange(4, 60))))


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({"lengths": ()}, b""),
        ({"lengths": (1,) * 65}, bytes(4 * 65)),
        ({"lengths": (2,)}, bytes(8)),
        ({"lengths": (1,)}, bytes(4)),
        ({"lengths": (-3,)}, b""),
        ({"lengths": (1 << 40,), "size": 1 << 40}, b""),
        ({"size": -3, "lengths": (-3,)}, b""),
        ({"lengths": (3,)}, bytes(8)),
        ({"lengths": (3,)}, bytes(16)),
        ({"lengths": (3, 3)}, bytes(12)),
        ({"shard": -1}, bytes(12)),
        ({"epoch": -1}, bytes(12)),
        ({"counter": -1}, bytes(12)),
    ],
)
def test_lengths_and_numbers_that_fit_nothing_are_refused(changes: dict[str, object], data: bytes) -> None:
    copy = ShardCopy("job", 17, 0, 1, 1, 1, 3, (3,), MemoryRecord())
    described = msgspec.msgpack.encode([(msgspec.structs.replace(copy, **changes), crc32(data))])
    with pytest.raises(DamagedDataError):
        decode_body(sealed(described, data))
    decode_body(sealed(msgspec.msgpack.encode([(copy, crc32(bytes(12)))]), bytes(12)))


def test_another_version_is_refused_and_named() -> None:
    with pytest.raises(DamagedDataError, match="version"):
        decode_body(sealed(b"\x90", version=VERSION + 1))


def test_arrays_that_have_not_changed_are_left_out_and_said_to_be() -> None:
    change = MemoryChange((), (), 0, -1, 0, 3)
    values = arrays(5, 4)
    sent = [values[0][:0], values[1], values[2][:0], values[3]]
    copy = ShardCopy("job", 17, 0, 4, 9, 23, 5, (0, 5, 0, 5), MEMORY, since=8, change=change)
    body = joined([CopyRecord(copy, sent)])
    for read in (decode_body, own_records):
        (found,) = read(memoryview(body))
        assert found.copy == copy and [array.tolist() for array in found.arrays] == [one.tolist() for one in sent]


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
def test_nothing_can_be_left_out_of_a_whole_state(lengths: tuple[int, int]) -> None:
    copy = ShardCopy("job", 17, 0, 4, 9, 23, 5, lengths, MEMORY)
    body = joined([CopyRecord(copy, [one[:length] for one, length in zip(arrays(5, 2), lengths, strict=True)])])
    with pytest.raises(DamagedDataError, match="cannot have arrays"):
        decode_body(memoryview(body))
