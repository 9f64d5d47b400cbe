"""What docs/readers.md shows works as it stands there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import lmdb
import numpy as np
import pytest

from adamctl.config.load import load_experiment
from adamctl.errors import DamagedDataError
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.source import Source
from tests import packages
from tests.config.small_network import NETWORK

PAGE = (Path(__file__).parents[4] / "docs" / "readers.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's package installed, its experiment and a store of images."""
    ((group, points),) = tomllib.loads(TOML[0])["project"]["entry-points"].items()
    modules = {"description": PYTHON[0], "lmdb_reader": PYTHON[1]}
    packages.use(tmp_path, "mypackage", modules, group, points, monkeypatch)
    (tmp_path / "exp.toml").write_text(NETWORK + TOML[1])
    images = {f"train/{number}": bytes([number, 255]) for number in range(3)} | {"test/0": b"\7\7"}
    labels = {"train": np.array([1, 0, 1], "<i4").tobytes(), "test": np.zeros(1, "<i4").tobytes()}
    write(tmp_path, {"shape": b"2", "classes": b"cat\ndog", **images, **labels})
    return tmp_path


def write(folder: Path, values: dict[str, bytes | None]) -> None:
    """Puts values into the store of images; None removes one."""
    with lmdb.open(str(folder / "images.lmdb")) as store, store.begin(write=True) as transaction:
        for key, value in values.items():
            if value is None:
                transaction.delete(key.encode())
            else:
                transaction.put(key.encode(), value)


def opened(folder: Path) -> Source:
    config = load_experiment(folder / "exp.toml").experiment.data
    return open_source(config, find_source(config), (2,))


def test_the_package_is_found_and_reads_its_images(folder: Path) -> None:
    source = opened(folder)
    assert source.classes == ("cat", "dog")
    out = np.empty((2, 2), np.float32)
    source.load("train", np.array([2, 0]), out)
    assert out.tolist() == [[2, 255], [0, 255]] and source.labels("train").tolist() == [1, 0, 1]


def test_a_damaged_store_is_refused_with_its_name_and_place(folder: Path) -> None:
    write(folder, {"train/1": b"short image", "test/0": None})
    source = opened(folder)
    with pytest.raises(DamagedDataError, match=r"images\.lmdb: train/1: expected 2 bytes, found 11"):
        source.load("train", np.array([0, 1]), np.empty((2, 2), np.uint8))
    with pytest.raises(DamagedDataError, match=r"images\.lmdb: expected a value of test/0, found none"):
        source.load("test", np.array([0]), np.empty((1, 2), np.uint8))


def test_every_attribute_of_a_source_is_told() -> None:
    for name in (*Source.__annotations__, "labels(", "load("):
        assert f"`{name}" in PAGE
