"""Files behind URLs: in memory, and from a web server of this machine."""

from __future__ import annotations

import asyncio
import functools
import gc
import http.server
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adamctl.config.data import DataConfig
from adamctl.config.urls import Url
from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.client.data_client import FILE_ORDER, DataClient
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.remote import files as files_module
from adamctl.roles.data.remote.files import RemoteFiles
from adamctl.roles.data.server import DataServer
from adamctl.roles.data.store import DataStore
from adamctl.wire.messages import Hello
from tests.roles.data.prepared.sets import numbers, prepared
from tests.web import WebServer

SYSTEM = fsspec.filesystem("memory")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, with nothing in it, and no file in memory."""
    monkeypatch.setenv("ADAMCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files_module, "_WAIT_S", 0.0)
    SYSTEM.store.clear()
    SYSTEM.pseudo_dirs[:] = [""]
    return tmp_path / "cache" / "data"


class Counting(http.server.SimpleHTTPRequestHandler):
    """Counts whole files that were asked for."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        Counting.asked.append(self.path)
        super().do_GET()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a web server, and the folder that it serves."""
    folder = tmp_path / "web"
    folder.mkdir()
    Counting.asked.clear()
    with WebServer(functools.partial(Counting, directory=str(folder))) as server:
        yield server.url.removesuffix("/"), folder


def put(name: str, content: bytes) -> None:
    SYSTEM.pipe_file(f"/set/{name}", content)


def remote(url: str = "memory://set", cache_size: str = "1MB") -> RemoteFiles:
    return RemoteFiles(Url(url), DataConfig(format="npz", source=url, disk_cache=cache_size))


def opened(format: str, url: str, shape: tuple[int, ...] | None = None) -> Any:
    config = DataConfig(format=format, source=url)
    return open_source(config, find_source(config), shape)


def test_files_are_listed_below_the_url_and_fetched_once(cache: Path) -> None:
    for name in ("b.x", "in/a.x", "c.y", ".hidden.x"):
        put(name, name.encode())
    SYSTEM.pipe_file("/other/d.x", b"no")
    shards = remote().shards([".x"])
    assert [(shard.name, shard.size_bytes) for shard in shards] == [("b.x", 3), ("in/a.x", 6)]
    for _ in range(2):
        with shards[1].open() as file:
            assert file.read() == b"in/a.x"
    assert len(list(cache.glob("*/data/file"))) == 1
    with remote("memory://set/b.x").shards()[0].open_part() as part:
        assert part.read(2) == b"b."
    assert len(list(cache.glob("*/data/file"))) == 1


def test_a_file_that_changes_behind_the_url_is_noticed() -> None:
    put("a.x", b"one")
    (shard,) = remote().shards()
    put("a.x", b"two")
    with pytest.raises(DamagedDataError, match=r"memory://set/a\.x: expected the file of 3 bytes that was there when"):
        shard.open()
    (shard,) = remote().shards()
    with shard.open() as file:
        assert file.read() == b"two"


def test_a_whole_set_is_a_path_as_long_as_it_is_open(cache: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6) % 2
    np.save(cache.parent.parent / "x.npy", x)
    np.save(cache.parent.parent / "y.npy", y)
    for name, path in (("x_train", "x"), ("y_train", "y")):
        put(f"{name}.npy", (cache.parent.parent / f"{path}.npy").read_bytes())
    source = opened("npy", "memory://set", (2,))
    out = np.empty((6, 2), np.float32)
    source.load("train", np.arange(6), out)
    assert np.array_equal(out, x) and source.labels("train").tolist() == y.tolist()
    copy = remote().whole()
    assert copy.path == Path(source.origin)
    copy.let_go()
    for number in range(9):
        SYSTEM.pipe_file("/big/a.x", bytes(100_000 + number))
        remote("memory://big/a.x", "250kB").shards()[0].open().close()
    assert Path(source.origin).is_dir() and len(list(cache.glob("*/data/file"))) == 2
    place = Path(source.origin)
    del source
    gc.collect()
    SYSTEM.pipe_file("/big/a.x", bytes(249_999))
    remote("memory://big/a.x", "250kB").shards()[0].open().close()
    assert not place.exists()


def test_prepared_sets_fetch_shards_when_they_are_needed(tmp_path: Path, web: tuple[str, Path]) -> None:
    prepared(web[1] / "set")
    source = opened("prepared", f"{web[0]}/set", (4, 3, 1))
    assert "/set/train-00000.examples" not in Counting.asked and len(source.labels("train")) == 3000
    local = opened("prepared", str(web[1] / "set"), (4, 3, 1))
    assert source.fetched("train").tolist() == [3000] and local.fetched("train") is None
    values = np.empty((2, 3000, 4, 3, 1), np.uint8)
    for out, of in zip(values, (source, local), strict=True):
        of.load("train", np.arange(3000), out)
    assert np.array_equal(*values)
    source.load("train", np.arange(3000), values[0])
    assert Counting.asked.count("/set/train-00000.examples") == 1


def test_parquet_files_are_read_from_a_web_server(web: tuple[str, Path]) -> None:
    for name in ("train-0", "train-1", "test-0"):
        pq.write_table(pa.table({"x": np.arange(50.0), "label": np.arange(50) % 2}), web[1] / f"{name}.parquet")
    source = opened("parquet", f"{web[0]}/train-1.parquet")
    assert len(source.labels("train")) + len(source.labels("test")) == 50
    source = opened("parquet", web[0])
    assert source.labels("train").tolist() == [0, 1] * 50 and len(source.labels("test")) == 50
    assert source.fetched("train").tolist() == [50, 50] and source.fetched("test").tolist() == [50]
    out = np.empty((100, 1), np.float32)
    source.load("train", np.arange(100), out)
    assert out[:, 0].tolist() == [*range(50), *range(50)]


def test_what_cannot_be_reached_is_named(web: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"memory://none: expected files, found none"):
        remote("memory://none").shards()
    with pytest.raises(ConfigurationError, match=r"/x\.npz: there is no such file or folder; correct data\.source"):
        opened("npz", f"{web[0]}/x.npz")
    put("x.npz", b"no archive")
    with pytest.raises(DamagedDataError, match=r"expected an \.npz archive .* \(a copy of memory://set/x\.npz\)"):
        opened("npz", "memory://set/x.npz")
    with pytest.raises(ConfigurationError, match=r"nosuch://host/x: Protocol not known"):
        opened("npz", "nosuch://host/x")
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:1/x\.npz cannot be reached: .*check the network"):
        opened("npz", "http://127.0.0.1:1/x.npz")

    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise PermissionError("Access Denied")

    put("a.x", b"one")
    monkeypatch.setattr(type(SYSTEM), "find", refuse)
    with pytest.raises(ConfigurationError, match=r"memory://set: Access Denied; give this process credentials"):
        remote().shards()


def test_a_fetch_that_breaks_off_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.x", b"one")
    (shard,) = remote().shards()
    real, tries = type(SYSTEM).get_file, [0]

    def flaky(self: Any, *arguments: Any, **keywords: Any) -> Any:
        tries[0] += 1
        if tries[0] < 3:
            raise TimeoutError("too slow")
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(type(SYSTEM), "get_file", flaky)
    with shard.open() as file:
        assert file.read() == b"one"
    tries[0] = -9
    put("b.x", b"two")
    with pytest.raises(UnreachableError, match="TimeoutError: too slow"):
        remote("memory://set/b.x").shards()[0].open()


def test_names_that_lead_elsewhere_are_left_out() -> None:
    names = ("a/b.x", "../b.x", "/b.x", "a/../b", "", ".x", "a/.x")
    assert [name for name in names if files_module._is_plain(name)] == ["a/b.x"]


async def test_a_data_server_goes_on_when_what_it_fetches_from_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path / "set")
    for path in (tmp_path / "set").iterdir():
        put(path.name, path.read_bytes())
    config = DataConfig(format="prepared", source="memory://set", scale="none")
    loop = asyncio.get_running_loop()
    server = DataServer(DataStore(threads=1, memory_bytes=1 << 30), loop, ("memory://set",))
    network = MemoryNetwork(Random(1))
    listening = await network.serve(["memory://data-1"], Hello(1, 1, (), "data", "data-1", 1), server.handle)
    worker = Hello(1, 1, (), "worker", "worker-0", 1)
    client = DataClient([await network.connect("memory://data-1", worker, deadline_s=20)])
    try:
        data = await client.open(config, (4, 3, 1), 7)
        real, tries = type(SYSTEM).get_file, [0]

        def away(self: Any, *arguments: Any, **keywords: Any) -> Any:
            tries[0] += 1
            if tries[0] <= files_module.ATTEMPTS + 1:
                raise TimeoutError("no answer")
            return real(self, *arguments, **keywords)

        monkeypatch.setattr(type(SYSTEM), "get_file", away)
        batch = await client.read(data, "test", FILE_ORDER, 0, 50, deadline_s=20)
        assert numbers(batch.images.reshape(50, 4, 3, 1)) == list(range(9000, 9050))
        assert tries[0] > files_module.ATTEMPTS
    finally:
        await client.close()
        await listening.close()
        await loop.run_in_executor(None, server.close)
