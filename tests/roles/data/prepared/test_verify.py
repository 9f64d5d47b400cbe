"""Every damaged byte of a prepared set is found, with its block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.prepared.verify import find_damage, read_manifest
from tests.roles.data.prepared.sets import prepared


def flip(path: Path, *places: int) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 0x10
    path.write_bytes(content)


def test_a_whole_set_has_no_damage(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    assert not list(find_damage(prepared(tmp_path / "set"), lambda *one: told.append(one)))
    assert told[-1][1] == told[-1][2]


def test_each_damaged_block_is_named(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "set")
    flip(folder / "train-00000.examples", 0, 12 * 1024, 12 * 1024 + 1, 12 * 3000 - 1)
    flip(folder / "test.labels", 7)
    found = [(one.file, one.block, one.start, one.stop) for one in find_damage(folder)]
    assert found == [
        ("train-00000.examples", 0, 0, 12288),
        ("train-00000.examples", 1, 12288, 24576),
        ("train-00000.examples", 2, 24576, 36000),
        ("test.labels", 0, 0, 200),
    ]
    assert str(next(iter(find_damage(folder)))).startswith(
        "train-00000.examples: block 0, bytes 0 to 12288: expected checksum"
    )


def test_any_byte_of_any_file_is_covered(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "set")
    rng = np.random.default_rng(4)
    for path in sorted(folder.iterdir()):
        for place in rng.integers(path.stat().st_size, size=8):
            flip(path, int(place))
            try:
                assert {one.file for one in find_damage(folder)} == {path.name}
            except DamagedDataError as error:
                assert path.name == "prepared.json" and str(path) in str(error)
            flip(path, int(place))


def test_files_that_are_missing_cut_longer_or_too_many(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "set")
    (folder / "test.labels").unlink()
    with (folder / "train-00000.examples").open("r+b") as file:
        file.truncate(12 * 1024 + 5)
    with (folder / "train.labels").open("ab") as file:
        file.write(b"more")
    (folder / "notes.txt").touch()
    assert [str(one) for one in find_damage(folder)] == [
        "train-00000.examples: block 1, bytes 12288 to 24576: expected 12288 bytes, found 5",
        "train-00000.examples: expected 36000 bytes, found 12293",
        "train.labels: expected 12000 bytes, found 12004",
        "test.labels: expected a file of 200 bytes, found none",
        "notes.txt: expected no such file: it is not of this set",
    ]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"that `adamctl data prepare` wrote, found no prepared\.json in it"):
        read_manifest(tmp_path)


def test_what_is_no_set_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, found in (("nothing", "found none"), ("file", "found a file"), (".", "found no prepared.json in it")):
        with pytest.raises(ConfigurationError, match=f"expected a folder that .*{found}$"):
            read_manifest(tmp_path / name)
