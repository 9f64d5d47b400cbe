"""Data servers and their client over real connections: spreading, ahead, a server that dies or restarts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.records import NodeRecord, encode, node_key
from adamctl.errors import ConfigurationError, DamagedDataError, RemoteError, UnreachableError
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.data.client import data_client
from adamctl.roles.data.client.data_client import Batch, DataClient, DataSet, Range, ReadAhead
from adamctl.roles.data.client.data_set import open_again
from adamctl.roles.data.client.link import DataServerLink
from adamctl.roles.data.scaling import Scaling
from adamctl.roles.data.server import DataServer
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.wire.messages import ConfigChanges
from tests.roles.data.data_servers import TINY, WAIT_S, Farm, hello


async def read_pass(client: DataClient, data: DataSet, pass_number: int, length: int = 8) -> list[float]:
    pixels: list[float] = []
    for start in range(0, data.examples["train"], length):
        stop = min(start + length, data.examples["train"])
        batch = await client.read(data, "train", pass_number, start, stop)
        assert batch.images.shape == (stop - start, 4, 4, 1) and batch.images.dtype == np.float32
        assert batch.labels.dtype == np.int32
        np.testing.assert_array_equal(batch.images[:, 0, 0, 0] % 10, batch.labels)
        pixels += batch.images[:, 0, 0, 0].tolist()
        batch.release()
    return pixels


async def test_a_pass_over_two_servers_gives_every_example_once(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    servers = [await farm.start("data-0"), await farm.start("data-1")]
    client = await farm.client("data-0", "data-1")
    data = await client.open(TINY, (4, 4, 1), 7)
    assert data.examples == {"train": 50, "validation": 0, "test": 20} and len(data.classes) == 10
    alone = await farm.client("data-1")
    assert await alone.open(TINY, (4, 4, 1), 7) == data
    first = await read_pass(client, data, 0)
    assert sorted(first) == list(range(50))
    assert await read_pass(alone, data, 0) == first, "whichever server is asked"
    assert await read_pass(client, data, 1) != first
    assert all(server.status()["reads"] >= 3 for server in servers), "both servers were asked"
    await client.close()
    await alone.close()


@pytest.mark.parametrize(("factor", "fits"), [(1 + 1e-9, True), (1.01, False)])
async def test_statistics_may_differ_in_their_last_digits_and_the_first_ones_count(
    farm: Farm, idx_folder: Callable[..., Path], factor: float, fits: bool
) -> None:
    idx_folder()
    for node in ("data-0", "data-1"):
        await farm.start(node)
    config = msgspec.structs.replace(TINY, scale="standard")
    other = farm.servers["data-1"][0].store.open(config, (4, 4, 1), 7)
    other.scaling = Scaling(other.scaling.factor * factor, other.scaling.shift)
    client = await farm.client("data-0", "data-1")
    if fits:
        data = await client.open(config, (4, 4, 1), 7)
        assert data.scaling == farm.servers["data-0"][0].store.open(config, (4, 4, 1), 7).scaling != other.scaling
    else:
        with pytest.raises(ConfigurationError, match="same data"):
            await client.open(config, (4, 4, 1), 7)
    await client.close()


async def test_reads_move_to_another_server_when_one_dies(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    await farm.start("data-0")
    await farm.start("data-1")
    client = await farm.client("data-0", "data-1")
    data = await client.open(TINY, (4, 4, 1), 7)
    whole = await read_pass(client, data, 3)
    await farm.stop("data-1")
    assert await read_pass(client, data, 3) == whole
    await farm.stop("data-0")
    with pytest.raises(UnreachableError, match="data-0"):
        await client.read(data, "train", 0, 0, 8, deadline_s=0.3)
    await client.close()


async def test_a_server_that_forgot_the_data_set_opens_it_again(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    server = await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(TINY, (4, 4, 1), 7)
    before = await read_pass(client, data, 0)
    server.store.close_dataset(data.dataset)
    assert await read_pass(client, data, 0) == before
    await client.close()


async def test_servers_with_other_roots_and_folders_have_one_set(
    farm: Farm, idx_folder: Callable[..., Path], tmp_path: Path
) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        idx_folder(f"{folder}/tiny")
    config = msgspec.structs.replace(TINY, search=(str(tmp_path / "one"),))
    await farm.start("data-0", search=tmp_path / "nowhere")
    await farm.start("data-1", search=tmp_path / "other", roots=(str(tmp_path / "other"),))
    client = await farm.client("data-0", "data-1")
    data = await client.open(config, (4, 4, 1), 7)
    assert sorted(await read_pass(client, data, 0)) == list(range(50))
    await client.close()


async def no_reader_left(server: DataServer, data: DataSet) -> None:
    """Waits until a server has noticed that the connections to it are closed."""
    async with asyncio.timeout(WAIT_S):
        while server.store.open(data.config, data.input_shape, data.seed, again=True).readers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def change(folder: Path) -> None:
    """Changes a set in place: it has as many examples, and others."""
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    os.utime(path, ns=(0, 0))


async def test_the_file_of_a_set_may_change_between_two_runs_but_not_in_one(
    farm: Farm, idx_folder: Callable[..., Path]
) -> None:
    folder = idx_folder(compress=False)
    server = await farm.start("data-0")
    client, other = await farm.client("data-0"), await farm.client("data-0")
    data = await client.open(TINY, (4, 4, 1), 7)
    told = await client.read_bytes(data, deadline_s=WAIT_S)
    change(folder)
    assert await client.read_bytes(data, deadline_s=WAIT_S) == told != {}, "a run may ask about what it has open"
    with pytest.raises(ConfigurationError, match=r"a run has the old ones open \(connections: 1\)"):
        await other.open(TINY, (4, 4, 1), 7)
    await client.close()
    await no_reader_left(server, data)
    assert await other.open(TINY, (4, 4, 1), 7) == data
    await other.close()


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_run_never_goes_on_with_other_files_after_it_was_cut_off(
    farm: Farm, idx_folder: Callable[..., Path], forgotten: bool
) -> None:
    folder = idx_folder(compress=False)
    server = await farm.start("data-0")
    link = DataServerLink("data-0", partial(farm.connect, "data-0"))
    client = DataClient.over([link])
    data = await client.open(TINY, (4, 4, 1), 7)
    (await client.read(data, "train", 0, 0, 8)).release()
    await link.close()
    await no_reader_left(server, data)
    change(folder)
    if forgotten:
        server.store.close_dataset(data.dataset)
    else:
        other = await farm.client("data-0")
        assert await other.open(TINY, (4, 4, 1), 7) == data, "what a run compares is alike"
        await other.close()
    with pytest.raises((DamagedDataError, ConfigurationError), match="have changed during the run"):
        await client.read(data, "train", 0, 8, 16)
    await client.close()


async def test_a_server_that_was_away_comes_back_with_what_it_has_open_whatever_lies_in_the_files(
    farm: Farm, idx_folder: Callable[..., Path]
) -> None:
    """Files for the next run may be put in their place meanwhile."""
    folder = idx_folder(compress=False)
    await farm.start("data-0")
    client, link = await farm.client("data-0"), DataServerLink("data-0", partial(farm.connect, "data-0"))
    data = await client.open(TINY, (4, 4, 1), 7)
    before = await read_pass(client, data, 0)
    change(folder)
    await open_again(link, data, WAIT_S)
    assert await read_pass(DataClient.over([link]), data, 0) == before
    await link.close()
    await client.close()


async def test_servers_with_different_data_are_refused(
    farm: Farm, idx_folder: Callable[..., Path], tmp_path: Path
) -> None:
    idx_folder()
    (tmp_path / "other").mkdir()
    idx_folder("other/tiny", train=51)
    await farm.start("data-0")
    await farm.start("data-1", search=tmp_path / "other")
    client = await farm.client("data-0", "data-1")
    said = r"same data on all data servers, found examples .*50.* on \S*data-0\S* and examples .*51.* on \S*data-1"
    with pytest.raises(ConfigurationError, match=said):
        await client.open(TINY, (4, 4, 1), 7)
    await client.close()


async def test_many_readers_at_once_lose_nothing(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder(train=200)
    await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(TINY, (4, 4, 1), 7)

    async def one(start: int) -> list[float]:
        batch = await client.read(data, "train", 0, start, start + 10)
        try:
            return batch.images[:, 0, 0, 0].tolist()
        finally:
            batch.release()

    pieces = await asyncio.gather(*(one(start) for start in range(0, 200, 10)))
    assert sorted(pixel for piece in pieces for pixel in piece) == list(range(200))
    await client.close()


# --- read ahead -----------------------------------------------------------------------------------------------------


class SlowClient:
    """Answers a read when it is told to, and counts those in flight."""

    def __init__(self) -> None:
        self.gates: dict[int, asyncio.Event] = {}
        self.released = 0

    async def read(self, data: Any, split: str, pass_number: int, start: int, stop: int, into: Any = None) -> Batch:
        gate = self.gates.setdefault(start, asyncio.Event())
        await gate.wait()
        return Batch(np.full((1, 1), start, np.float32), np.zeros(1, np.int32))


async def test_ranges_come_in_the_order_asked_and_only_so_many_are_in_flight() -> None:
    client = SlowClient()
    ahead = ReadAhead(client, "d", ranges_in_flight=2)  # type: ignore[arg-type]
    await ahead.ask(Range("train", 0, 0, 1))
    await ahead.ask(Range("train", 0, 1, 2))
    third = asyncio.create_task(ahead.ask(Range("train", 0, 2, 3)))
    await asyncio.sleep(0)
    assert not third.done() and set(client.gates) <= {0, 1}
    taking = asyncio.create_task(ahead.take())
    await asyncio.sleep(0)
    client.gates[1].set()
    await asyncio.sleep(0)
    assert not taking.done()
    client.gates[0].set()
    assert (await taking).images[0, 0] == 0
    assert (await ahead.take()).images[0, 0] == 1
    await third
    assert len(ahead) == 1 and ahead.waited_s >= 0
    await ahead.close()
    assert len(ahead) == 0


async def test_a_failed_read_is_raised_when_it_is_taken(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(TINY, (4, 4, 1), 7)
    ahead = ReadAhead(client, data)
    await ahead.ask(Range("train", 0, 0, 8))
    await ahead.ask(Range("train", 0, 0, 1000))
    await ahead.ask(Range("train", 0, 8, 16))
    (await ahead.take()).release()
    with pytest.raises(RemoteError):
        await ahead.take()
    (await ahead.take()).release()
    await client.close()


async def test_opening_waits_a_while_for_servers_that_are_starting_again(
    idx_folder: Callable[..., Path], tmp_path: Path
) -> None:
    idx_folder()
    network, configuration = MemoryNetwork(Random(1)), MemoryConfigurationStore()
    record = NodeRecord("data-0", "data", 1, ("memory://data-0",), "host", 1)
    await configuration.compare_and_set(ConfigChanges({node_key("data-0"): 0}, {node_key("data-0"): encode(record)}))
    farm = Farm(network, lambda node: f"memory://{node}", tmp_path)
    context = SimpleNamespace(transport=network, controller=configuration, hello=lambda: hello("worker-0", "worker"))
    client = DataClient.from_context(context, ["data-0"])  # type: ignore[arg-type]
    with pytest.raises(UnreachableError, match="no data server could be reached: data-0"):
        await client.open(TINY, (4, 4, 1), 7, deadline_s=0.1)
    opening = asyncio.create_task(client.open(TINY, (4, 4, 1), 7))
    await asyncio.sleep(0.05)
    await farm.start("data-0")
    assert (await opening).examples["train"] == 50
    await client.close()
    await farm.stop("data-0")


async def test_opening_waits_for_a_server_that_is_at_it_however_long_that_takes(
    farm: Farm, idx_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    idx_folder()
    monkeypatch.setattr(data_client, "OPEN_AGAIN_S", 0.0)
    server = await farm.start("data-0")
    client = await farm.client("data-0")
    may_open, begun, put_off = threading.Event(), 0, 0
    open_store, put_off_request = server.store.open, server._put_off

    def slow(*arguments: Any, **keywords: Any) -> OpenDataSet:
        nonlocal begun
        begun += 1
        may_open.wait(WAIT_S)
        return open_store(*arguments, **keywords)

    def counted(*arguments: Any) -> None:
        nonlocal put_off
        put_off += 1
        put_off_request(*arguments)
        if put_off == 3:  # more than one connection may have opened at a time
            may_open.set()

    monkeypatch.setattr(server.store, "open", slow)
    monkeypatch.setattr(server, "_put_off", counted)
    data = await client.open(TINY, (4, 4, 1), 7, deadline_s=1.0)
    assert data.examples["train"] == 50 and put_off >= 3
    assert begun <= 2, "those that ask meanwhile wait for one opening; who asks after it is answered at once"
    assert server.status()["opening"] == 0
    await client.close()


def test_without_servers_the_message_says_how_to_start_one() -> None:
    with pytest.raises(ConfigurationError, match="adamctl data start"):
        DataClient([])


async def test_a_server_that_restarted_elsewhere_is_found_again(
    idx_folder: Callable[..., Path], tmp_path: Path
) -> None:
    idx_folder()
    network, configuration = MemoryNetwork(Random(1)), MemoryConfigurationStore()
    life = 0

    async def register(revision: int) -> int:
        record = NodeRecord("data-0", "data", life, (f"memory://life-{life}",), "host", 1)
        reply = await configuration.compare_and_set(
            ConfigChanges({node_key("data-0"): revision}, {node_key("data-0"): encode(record)})
        )
        assert not reply.conflicts
        return reply.revision

    farm = Farm(network, lambda node: f"memory://life-{life}", tmp_path)
    await farm.start("data-0")
    revision = await register(0)
    context = SimpleNamespace(transport=network, controller=configuration, hello=lambda: hello("worker-0", "worker"))
    client = DataClient.from_context(context, ["data-0"])  # type: ignore[arg-type]
    data = await client.open(TINY, (4, 4, 1), 7)
    before = await read_pass(client, data, 0)
    await farm.stop("data-0")
    life = 1
    await farm.start("data-0")
    await register(revision)
    assert await read_pass(client, data, 0) == before
    await client.close()
    await farm.stop("data-0")
