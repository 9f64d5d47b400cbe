"""Files of one set: found, split, and noticed if they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.shards import LocalShard, arrange_shards, local_shards


def files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    return folder


def arranged(folder: Path, test_files: str = "") -> tuple[list[str], list[str], bool]:
    found, by_row = arrange_shards(local_shards(folder, (".x", ".y")), test_files, "set")
    return [one.name for one in found["train"]], [one.name for one in found["test"]], by_row


def test_files_of_a_folder_are_found_in_order_at_any_depth(tmp_path: Path) -> None:
    files(tmp_path, "b.x", "a.Y", "c.z", ".hidden.x", "in/d.x", ".in/e.x")
    assert arranged(tmp_path) == (["a.Y", "b.x", "in/d.x"], [], True)
    assert arranged(tmp_path / "c.z") == (["c.z"], [], True)


def test_the_test_part_is_a_folder_or_names_or_a_pattern(tmp_path: Path) -> None:
    files(tmp_path, "train/test-1.x", "test/a.x", "train/b.x", "test-2.x")
    assert arranged(tmp_path / "train", "b*") == (["test-1.x"], ["b.x"], False)
    assert arranged(tmp_path / "train") == (["b.x"], ["test-1.x"], False)
    assert arranged(tmp_path) == (["train/b.x"], ["test-2.x", "test/a.x", "train/test-1.x"], False)
    assert arranged(tmp_path / "test-2.x") == (["test-2.x"], [], True)


def test_what_cannot_be_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected files that end in \.x or \.y, found none"):
        local_shards(tmp_path, (".x", ".y"))
    with pytest.raises(ConfigurationError, match="expected a file, found none"):
        LocalShard(tmp_path / "none", "none")
    files(tmp_path, "test-1.x", "test-2.x")
    with pytest.raises(ConfigurationError, match="set: expected files of the training part"):
        arranged(tmp_path)
    with pytest.raises(
        ConfigurationError,
        match='expected files of set that match "no',
    ):
        arranged(tmp_path, "no*")
    with pytest.raises(ConfigurationError, match="set: expected files of the training part"):
        arranged(tmp_path, "*")


def test_a_file_that_changes_in_mid_run_is_noticed(tmp_path: Path) -> None:
    (shard,) = local_shards(files(tmp_path, "a.x") / "a.x", (".x",))
    with shard.open() as opened:
        assert opened.read() == b"a.x"
    (tmp_path / "a.x").write_text("other")
    with pytest.raises(
        DamagedDataError, match=r"a\.x: expected the file of 3 bytes that was .* found another: 5 bytes"
    ):
        shard.open()
    (tmp_path / "a.x").unlink()
    with pytest.raises(DamagedDataError, match="No such file"):
        shard.open()
