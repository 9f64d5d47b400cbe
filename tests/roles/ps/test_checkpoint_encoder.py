"""A file has the same bytes whether it is written into a folder or taken by somebody else."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import numpy as np

from adamctl.roles.ps.checkpoint_encoder import CheckpointWriter, ShardEncoder
from adamctl.roles.ps.checkpoint_files import FileDescriptor, ShardFile, ShardImage, ShardRecord
from adamctl.roles.ps.core.exactly_once import MemoryRecord
from tests.roles.ps.ps_cluster import make_tensors

DESCRIPTOR = FileDescriptor("job", "ps-0", "hash", "momentum", ("velocity",), make_tensors(((40, 10),)))


def image(shard: int) -> ShardImage:
    record = ShardRecord(shard, 0, shard * 10, shard * 10 + 10, 1, 2, 3, MemoryRecord())
    values = np.arange(100, dtype=np.float32) + shard
    return ShardImage(record, values, [values * 2])


def test_both_encode_the_same_bytes(tmp_path: Path) -> None:
    taken = bytearray()
    encoder, writer = ShardEncoder("name", DESCRIPTOR, taken.extend), CheckpointWriter(tmp_path, "name", DESCRIPTOR)
    for shard in range(3):
        encoder.add(image(shard))
        writer.add(image(shard))
    described = encoder.end()
    assert described == writer.finish()
    assert (described.size_bytes, described.shards) == (len(taken), (0, 1, 2))
    assert described.checksum == blake2b(taken, digest_size=16).hexdigest()
    assert (tmp_path / described.temporary_name).read_bytes() == taken
    read = ShardFile(tmp_path / described.temporary_name)
    np.testing.assert_array_equal(read.read(read.shards[2]).values, image(2).values)


def test_what_is_abandoned_leaves_nothing_and_what_was_there_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".name.partial").write_text("from a crash")
    writer = CheckpointWriter(tmp_path, "name", DESCRIPTOR)
    writer.add(image(0))
    assert os.listdir(tmp_path) == [".name.partial"]
    writer.abandon()
    assert not os.listdir(tmp_path)
