"""A prepared set is there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.data.prepared.verify import find_damage, read_manifest
from adamctl.roles.data.prepared.writer import PreparedWriter


def begin(folder: Path, shard_bytes: int = 1 << 20) -> PreparedWriter:
    return PreparedWriter(folder, (2,), np.dtype(np.uint8), 255.0, shard_bytes=shard_bytes)


def add(writer: PreparedWriter, *values: int) -> None:
    writer.add("train", np.repeat(np.array(values, np.uint8)[:, None], 2, 1), np.zeros(len(values), np.int32))


def test_examples_go_into_shards_of_whole_blocks(tmp_path: Path) -> None:
    with begin(tmp_path / "set", shard_bytes=3000) as writer:
        for _ in range(5):
            add(writer, *range(250))
        add(writer, *range(250), *range(250))
        writer.finish(("a",), "here")
    files = read_manifest(tmp_path / "set").of("train", "examples")
    assert [(file.name, file.rows, file.block_rows) for file in files] == [
        ("train-00000.examples", 1024, 1024),
        ("train-00001.examples", 726, 1024),
    ]
    content = b"".join((tmp_path / "set" / file.name).read_bytes() for file in files)
    assert content == bytes(value for value in range(250) for _ in range(2)) * 7
    assert not list(find_damage(tmp_path / "set"))


def test_until_it_is_finished_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(KeyError), begin(tmp_path / "set") as writer:
        add(writer, 1)
        assert not (tmp_path / "set").exists()
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".set.partial"
    left.mkdir()
    (left / "train-00000.examples").write_bytes(b"half")
    (left / "other").write_bytes(b"half")
    with begin(tmp_path / "set") as writer:
        add(writer, 1)
        writer.finish((), "here")
    assert {path.name for path in tmp_path.rglob("*")} == {
        "set",
        "prepared.json",
        "train-00000.examples",
        "train.labels",
    }


def test_two_cannot_write_one_set_and_none_is_replaced(tmp_path: Path) -> None:
    with begin(tmp_path / "set") as writer:
        with pytest.raises(ConfigurationError, match=r"another process prepares .*set; wait for it, or end it"):
            begin(tmp_path / "set")
        (tmp_path / "set").mkdir()
        with pytest.raises(ConfigurationError, match="set exists already"):
            writer.finish((), "here")
    with pytest.raises(ConfigurationError, match="set exists already; remove it, or give another folder"):
        begin(tmp_path / "set")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        begin(tmp_path / "file" / "set")
