"""Data servers and their client over real connections: spreading, ahead, a server that dies, restarts or refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.config.records import NodeRecord, encode, node_key
from adamctl.errors import ConfigurationError, DamagedDataError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.transport import Connection, Server, Transport
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.data import batches
from adamctl.roles.data.client import FILE_ORDER, Batch, DataClient, DataSet, Range, ReadAhead
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.data.scaling import Scaling, scaling_for
from adamctl.roles.data.server import DataServer
from adamctl.roles.data.store import DataStore
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, DataOpenRequest, DataReadReply, Hello, StatusRequest

TINY = DataConfig(format="idx", source="tiny", scale="none")
WAIT_S = 20


def hello(node: str, role: str = "data") -> Hello:
    return Hello(1, 1, (), role, node, 1)


class Farm:
    """Data servers on one transport, for one test."""

    def __init__(self, transport: Transport, address: Callable[[str], str], search: Path) -> None:
        self.transport = transport
        self._address = address
        self._search = search
        self.servers: dict[str, tuple[DataServer, Server]] = {}

    async def start(self, node: str, search: Path | None = None) -> DataServer:
        loop = asyncio.get_running_loop()
        store = DataStore([str(search or self._search)], threads=1, ahead=2, memory_bytes=1 << 30)
        server = DataServer(store, loop)
        listening = await self.transport.serve([self._address(node)], hello(node), server.handle)
        self.servers[node] = server, listening
        return server

    async def stop(self, node: str) -> None:
        server, listening = self.servers.pop(node)
        await listening.close()
        await asyncio.get_running_loop().run_in_executor(None, server.close)

    async def connect(self, node: str) -> Connection:
        return await self.transport.connect(self._address(node), hello("worker-0", "worker"), deadline_s=WAIT_S)

    async def client(self, *nodes: str) -> DataClient:
        return DataClient([await self.connect(node) for node in nodes])


@pytest.fixture(params=["stream", "memory"])
async def farm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Farm]:
    if request.param == "stream":
        made = Farm(StreamTransport(), lambda node: f"unix://{tmp_path}/{node}.sock", tmp_path)
    else:
        made = Farm(MemoryNetwork(Random(1)), lambda node: f"memory://{node}", tmp_path)
    yield made
    for node in list(made.servers):
        await made.stop(node)


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


async def test_examples_are_received_into_the_callers_arrays(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(TINY, (4, 4, 1), 7)
    for length in (3, 4, 20):  # with and without padding before the labels
        images, labels = np.empty((length, 4, 4, 1), np.float32), np.empty(length, np.int32)
        batch = await client.read(data.dataset, "test", FILE_ORDER, 0, length, into=(images, labels))
        assert batch.images is images
        assert images[:, 3, 3, 0].tolist() == list(range(100, 100 + length))
        assert labels.tolist() == [(100 + number) % 10 for number in range(length)]
        batch.release()
    with pytest.raises(ValueError, match="expected arrays"):
        await client.read(data, "test", FILE_ORDER, 0, 5, into=(images, labels))
    await client.close()


@pytest.mark.parametrize("on_the_loop_max", [10, 1 << 20])
@pytest.mark.parametrize("kind", ["uint8", "float32"])
@pytest.mark.parametrize("scale", ["none", "unit", "standard"])
async def test_what_is_read_is_bit_for_bit_what_the_scaling_makes_of_the_file(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str, kind: str, on_the_loop_max: int
) -> None:
    """Bytes travel as bytes, and are scaled here, in arrays of the client's or the caller's, on the loop or not."""
    monkeypatch.setattr(batches, "SCALED_ON_THE_LOOP_MAX", on_the_loop_max)
    raw = np.random.default_rng(5).integers(0, 256, (40, 5, 3)).astype(kind)
    labels = np.arange(40) % 7
    np.savez(tmp_path / "made.npz", x_train=raw, y_train=labels, x_test=raw[:2], y_test=labels[:2])
    server = await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(DataConfig(format="npz", source="made", scale=scale), (5, 3, 1), 7)  # type: ignore[arg-type]
    assert data.dtype == kind
    order = server.store.open(data.config, (5, 3, 1), 7).order("train", 2)[3:24]
    expected = raw[order].astype(np.float32)[..., None]
    data.scaling.apply(expected)
    assert data.scaling == {"none": Scaling(), "unit": Scaling(1 / 255 if kind == "uint8" else 1.0)}.get(
        scale, scaling_for(scale, server.store.open(data.config, (5, 3, 1), 7).source, np.arange(40))
    )
    into = np.empty_like(expected), np.empty(21, np.int32)
    for batch in (await client.read(data, "train", 2, 3, 24), await client.read(data, "train", 2, 3, 24, into)):
        assert batch.images.dtype == np.float32 and batch.images.tobytes() == expected.tobytes()
        assert batch.labels.tolist() == labels[order].tolist()
        batch.release()
    await client.close()


async def test_scaling_in_a_thread_has_ended_when_a_read_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        go_on.wait(WAIT_S)
        ended.append(True)

    scaling = asyncio.create_task(batches.in_thread_if_long(1 << 30, work))
    await asyncio.to_thread(begun.wait, WAIT_S)
    scaling.cancel()
    await asyncio.sleep(0)
    assert not scaling.done(), "the thread may still write"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await scaling
    assert ended == [True]


async def test_a_reader_that_does_not_scale_is_refused(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    await farm.start("data-0")
    connection = await farm.connect("data-0")
    with pytest.raises(RemoteError, match="install one release") as caught:
        await connection.request(DataOpenRequest((4, 4, 1), 7), [msgspec.msgpack.encode(TINY)], deadline_s=WAIT_S)
    assert caught.value.code == ErrorCode.BAD_CONFIGURATION
    await connection.close()


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


async def test_a_range_longer_than_a_frame_is_read_in_parts(farm: Farm, tmp_path: Path) -> None:
    images = np.arange(60, dtype=np.float32)[:, None, None].repeat(512, 1).repeat(512, 2)  # 1 MiB each
    np.savez(tmp_path / "large.npz", x_train=images, y_train=np.arange(60) % 3, x_test=images[:1], y_test=[0])
    await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(DataConfig(format="npz", source="large"), (512, 512, 1), 7)
    batch = await client.read(data, "train", FILE_ORDER, 10, 60)
    assert batch.images[:, 511, 511, 0].tolist() == list(range(10, 60))
    assert batch.labels.tolist() == [number % 3 for number in range(10, 60)]
    batch.release()
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


async def test_servers_with_different_data_are_refused(
    farm: Farm, idx_folder: Callable[..., Path], tmp_path: Path
) -> None:
    idx_folder()
    (tmp_path / "other").mkdir()
    idx_folder("other/tiny", train=51)
    await farm.start("data-0")
    await farm.start("data-1", search=tmp_path / "other")
    client = await farm.client("data-0", "data-1")
    with pytest.raises(ConfigurationError, match="same data"):
        await client.open(TINY, (4, 4, 1), 7)
    await client.close()


async def test_what_a_server_finds_wrong_is_raised_as_what_it_is(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder()
    await farm.start("data-0")
    client = await farm.client("data-0")
    with pytest.raises(ConfigurationError, match=r"\[4, 4, 1\].*data-0") as configuration:
        await client.open(TINY, (28, 28, 1), 7)
    with pytest.raises(ConfigurationError, match="adamctl data fetch mnist"):
        await client.open(DataConfig(format="idx", source="mnist"), (28, 28, 1), 7)
    data = await client.open(TINY, (4, 4, 1), 7)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(DamagedDataError, match="train-images") as damaged:
        await client.open(TINY, (4, 4, 1), 8)
    assert (configuration.value.exit_code, damaged.value.exit_code) == (2, 5)
    with pytest.raises(RemoteError) as caught:
        await client.read(data, "train", 0, 40, 60)
    assert caught.value.code == ErrorCode.BAD_RANGE
    await client.close()


def test_an_answer_of_fewer_than_no_examples_is_refused() -> None:
    released: list[bool] = []
    reply: Any = SimpleNamespace(
        message=DataReadReply(-5, 0, 0), body=memoryview(b""), release=lambda: released.append(True)
    )
    with pytest.raises(ProtocolError, match=r"data-0: expected 0 examples, .*; found \(-5, 0, 0, 0\)"):
        batches.PartOfRange(reply, ExampleForm(2, "uint8"), "data-0")
    assert released == [True]


async def test_requests_that_make_no_sense_are_answered_with_errors(farm: Farm) -> None:
    await farm.start("data-0")
    connection = await farm.connect("data-0")
    for message, body in (
        (DataOpenRequest((1,), 1, True), b"\xc1nonsense"),
        (DataOpenRequest((1,), 1, True), b""),
        (StatusRequest(), b""),
    ):
        with pytest.raises((RemoteError, ProtocolError)):
            await connection.request(message, (body,) if body else (), deadline_s=WAIT_S)
    not_text = msgspec.msgpack.encode(TINY).replace(b"tiny", b"tin\xff")
    with pytest.raises(RemoteError, match="expected a DataConfig") as caught:
        await connection.request(DataOpenRequest((1,), 1, True), (not_text,), deadline_s=WAIT_S)
    assert caught.value.code == ErrorCode.BAD_MESSAGE
    await connection.close()


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


def test_without_servers_the_message_says_how_to_start_one() -> None:
    with pytest.raises(ConfigurationError, match="adamctl data start"):
        DataClient([])


def test_the_role_is_described_without_importing_it() -> None:
    code = (
        "import sys; from adamctl.roles.data.role import ROLE;"
        "sys.exit(', '.join({'numpy', 'asyncio', 'adamctl.roles.data.server'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


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


async def test_one_connection_has_few_data_sets_opened_at_a_time(
    farm: Farm, idx_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await farm.start("data-0")
    one, other = await farm.connect("data-0"), await farm.connect("data-0")
    opening, begun = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        begun.set()
        opening.wait(WAIT_S)
        raise ConfigurationError("none there")

    monkeypatch.setattr(server.store, "open", slow)
    request = DataOpenRequest((4, 4, 1), 0, True)
    body = msgspec.msgpack.encode(TINY)
    waiting = [asyncio.ensure_future(one.request(request, [body], deadline_s=WAIT_S)) for _ in range(4)]
    await asyncio.to_thread(begun.wait, WAIT_S)
    with pytest.raises(RemoteError, match="4 of your data sets are being opened"):
        await one.request(request, [body], deadline_s=WAIT_S)
    waiting.append(asyncio.ensure_future(other.request(request, [body], deadline_s=WAIT_S)))
    await asyncio.sleep(0)
    opening.set()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, RemoteError) and "none there" in str(result)
    await one.close()
    await other.close()
