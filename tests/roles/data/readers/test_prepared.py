"""Prepared sets are read block by block, and each block is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers import open_source, peek_source
from tests.roles.data.prepared.sets import numbers, prepared, source

CONFIG = DataConfig(format="prepared", source="x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared(tmp_path / "set")


def opened(folder: Path) -> Any:
    return open_source(CONFIG, folder, (4, 3, 1))


def load(of: Any, indices: Any, dtype: type = np.uint8) -> list[int]:
    out = np.empty((len(indices), 4, 3, 1), dtype)
    of.load("train", np.array(indices), out)
    return numbers(out)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def test_examples_alone_are_those_of_the_whole(folder: Path) -> None:
    of = opened(folder)
    assert of.blocks("train").tolist() == [1024, 1024, 952] and of.blocks("test").tolist() == [50]
    whole = load(of, range(3000))
    picked = np.random.default_rng(2).permutation(3000)[:500]
    for dtype in (np.uint8, np.float32):
        assert load(of, picked, dtype) == [whole[place] for place in picked]
    for indices in ([], [2999], range(1000, 1100), range(1024, 2048), [5, 4, 3, 5]):
        assert load(opened(folder), indices) == [whole[place] for place in indices]


def test_whole_blocks_are_read_once(folder: Path) -> None:
    of = opened(folder)
    before = of.read_bytes
    for start in range(0, 3000, 1024):
        load(of, range(start, min(start + 1024, 3000)))
    assert of.read_bytes - before == 36_000


def test_a_damaged_block_is_named_when_it_is_first_read(folder: Path) -> None:
    flip(folder / "train-00000.examples", 12 * 1500)
    of = opened(folder)
    assert load(of, [0, 1023, 2048])
    said = (
        r"train-00000\.examples: block 1, bytes 12288 to 24576: expected what was written, found checksum \w{8} instead"
    )
    with pytest.raises(DamagedDataError, match=said):
        load(of, [1400])
    with pytest.raises(DamagedDataError, match=r"adamctl data verify .*set finds all damage"):
        load(of, range(1024, 2048))


def test_damaged_labels_are_found_when_the_set_is_opened(folder: Path) -> None:
    flip(folder / "train.labels", 11999)
    with pytest.raises(DamagedDataError, match=r"train\.labels: block 0, bytes 0 to 12000: expected what was written"):
        peek_source(CONFIG, folder, (4, 3, 1), 10, 1.0)


def test_a_file_that_is_missing_or_changes_is_noticed(folder: Path) -> None:
    of = opened(folder)
    path = folder / "train-00000.examples"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        DamagedDataError, match=r"train-00000\.examples: expected the file of 36000 bytes that was there"
    ):
        load(of, [0])
    with pytest.raises(
        DamagedDataError, match="expected a file of 36000 bytes, found 35999 bytes; prepare the set again"
    ):
        opened(folder)
    path.unlink()
    with pytest.raises(DamagedDataError, match="expected a file of 36000 bytes, found none"):
        opened(folder)


def test_shapes_and_folders_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the model's input is \[5\], but the examples of .* are \[4, 3, 1\]"):
        open_source(CONFIG, folder, (5,))
    with pytest.raises(ConfigurationError, match=r"found no prepared\.json in it"):
        open_source(CONFIG, tmp_path, (12,))


def test_a_part_may_be_empty(tmp_path: Path) -> None:
    of = opened(prepared(tmp_path / "set", source(10, 0)))
    assert not len(of.labels("test")) and not len(of.blocks("test")) and sorted(load(of, range(10))) == list(range(10))
