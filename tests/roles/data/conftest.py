"""Small data sets on disk, the real ones where ADAMCTL_DATA names them, and data servers."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from adamctl.net.stream import StreamTransport
from adamctl.net.testing.memory import MemoryNetwork
from tests.roles.data.data_examples import idx_bytes, pattern
from tests.roles.data.data_servers import Farm


@pytest.fixture
def idx_folder(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes an IDX folder of `train` and `test` images called `name`."""

    def write(name: str = "tiny", train: int = 50, test: int = 20, side: int = 4, compress: bool = True) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for prefix, images in (("train", pattern(train, side)), ("t10k", pattern(test, side, 100))):
            labels = (images[:, 0, 0] % 10).astype(np.uint8)
            for stem, values in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
                content = idx_bytes(values)
                path = folder / f"{prefix}-{stem}{'.gz' if compress else ''}"
                path.write_bytes(gzip.compress(content) if compress else content)
        return folder

    return write


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes `examples` PNG files of each class ; every pixel is 10 x its number."""
    image_module = pytest.importorskip("PIL.Image", reason="needs the image extra")

    def write(name: str = "images", classes: tuple[str, ...] = ("cat", "dog"), examples: int = 12) -> Path:
        folder = tmp_path / name
        for class_name in classes:
            (folder / class_name).mkdir(parents=True)
            for number in range(examples):
                image = image_module.new("RGB", (9, 6), (10 * number, 10 * number, 10 * number))
                image.save(folder / class_name / f"{number:03d}.png")
        return folder

    return write


def _real_data(name: str) -> Path:
    root = os.environ.get("ADAMCTL_DATA")
    if not root:
        pytest.skip("ADAMCTL_DATA does not name a folder with real data")
    folder = Path(root) / name
    if not folder.exists():
        pytest.skip(f"the folder that ADAMCTL_DATA names has no {name}")
    return folder


@pytest.fixture
def mnist() -> Path:
    return _real_data("mnist")


@pytest.fixture
def caltech(tmp_path: Path) -> Path:
    pytest.importorskip("PIL.Image", reason="needs the image extra")
    with tarfile.open(_real_data("caltech-10") / "caltech-10.tar") as archive:
        archive.extractall(tmp_path / "caltech", filter="data")
    return tmp_path / "caltech"


@pytest.fixture
def fsdd() -> Path:
    return _real_data("fsdd") / "fsdd.tar"


@pytest.fixture(params=["stream", "memory"])
async def farm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Farm]:
    if request.param == "stream":
        made = Farm(StreamTransport(), lambda node: f"unix://{tmp_path}/{node}.sock", tmp_path)
    else:
        made = Farm(MemoryNetwork(Random(1)), lambda node: f"memory://{node}", tmp_path)
    yield made
    for node in list(made.servers):
        await made.stop(node)
