"""What is complete is sent once to each neighbour that reads it, from the memory in which it was computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from adamctl.kernels.backend import Backend
from adamctl.kernels.partition.flight import PER_EXAMPLE
from adamctl.kernels.partition.memory import BlockName, SharedLayout, SharedMemory
from adamctl.kernels.partition.program import post_by_python
from adamctl.kernels.partition.stages import StageCut, cut_network
from adamctl.kernels.segments import Post
from adamctl.roles.worker.partition.sending import Outbox, Parcel, Sender
from adamctl.wire.messages import PartDataRequest
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.test_member import BATCH, IMAGES, ROWS_AND_UNITS, UNEVEN
from tests.net.world import until

EPOCH, FLIGHTS = 5, 2


class Frame(NamedTuple):
    message: PartDataRequest
    body: Any


class Connection:
    """Keeps what is sent: the buffers themselves. `open`: when the kernel takes it."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send_one_way(self, message: PartDataRequest, body: Any, *, deadline_s: float) -> None:
        self.frames.append(Frame(message, body[0]))
        await self.open.wait()


def memory_of(cuts: list[StageCut], backend: Backend, partition: int) -> tuple[SharedLayout, SharedMemory]:
    layout = SharedLayout(cut_network(IMAGES, cuts, backend), partition, BATCH, FLIGHTS)
    memory = SharedMemory(layout, np.zeros(layout.size_bytes, np.uint8))
    memory.begin(FLIGHTS)
    return layout, memory


@asynccontextmanager
async def sending(readers: tuple[int, ...]) -> AsyncIterator[tuple[SharedMemory, Sender, dict[int, Connection]]]:
    """Yields the memory of partition 1 of three, and what goes to these readers."""
    network = cut_network(IMAGES, UNEVEN, BACKENDS[-1])
    layout, memory = memory_of(UNEVEN, BACKENDS[-1], 1)
    connections, outboxes = {one: Connection() for one in readers}, []
    for reader, connection in connections.items():
        copy = SharedLayout(network, 1, BATCH, FLIGHTS, reader)
        numbers = {name: number for number, name in enumerate(copy.places)}
        parcels = {
            line: Parcel(numbers[name], name, memory, copy, BACKENDS[-1])
            for line, name in enumerate(layout.places)
            if name in numbers
        }
        outboxes.append(Outbox(EPOCH, connection, parcels))  # type: ignore[arg-type]
    sender = Sender(memory, FLIGHTS, outboxes)
    tasks = [asyncio.create_task(outbox.run()) for outbox in outboxes]
    yield memory, sender, connections
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sender.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cuts", [ROWS_AND_UNITS, UNEVEN])
@pytest.mark.parametrize("examples", [BATCH, 3])
def test_a_parcel_holds_just_what_its_reader_reads(cuts: list[StageCut], backend: Backend, examples: int) -> None:
    network, packed = cut_network(IMAGES, cuts, backend), 0
    for partition in range(network.partitions):
        _, memory = memory_of(cuts, backend, partition)
        for reader in range(network.partitions):
            if reader == partition:
                continue
            copy = SharedLayout(network, partition, BATCH, FLIGHTS, reader)
            for number, (name, place) in enumerate(copy.places.items()):
                array = memory.array(name)
                array[...] = np.arange(array.size).reshape(array.shape) + number
                parcel = Parcel(number, name, memory, copy, backend)
                packed += parcel.packs
                inside = tuple(
                    slice(start - first, stop - first)
                    for (start, stop), (first, _) in zip(place.box, memory.box(name), strict=True)
                )
                chosen = (slice(examples), *inside) if name.kind in PER_EXAMPLE else inside
                assert bytes(parcel.content(examples)) == array[chosen].tobytes()
    assert packed, "some are rows of each example"


async def test_a_block_goes_once_to_each_neighbour_that_reads_it() -> None:
    """Both are told that this partition is done with a flight; what it found of an error, only who made the outputs."""
    async with sending((0, 2)) as (memory, sender, connections):
        sender.submitted(1, 3)
        name = BlockName("error", 3, 1)
        assert memory.has(name)
        memory.array(name)[...] = 7
        post_by_python(Post(memory.word(name), (sender.wake,)), 1)
        post_by_python(Post(memory.word(BlockName("free", 0, 1)), (sender.wake,), FLIGHTS), 1)
        await until(lambda: len(connections[0].frames) >= 1 and bool(connections[2].frames))
        for reader, connection in connections.items():
            copy = SharedLayout(cut_network(IMAGES, UNEVEN, "numpy"), 1, BATCH, FLIGHTS, reader)
            names = list(copy.places)
            frames = {names[frame.message.block]: frame for frame in connection.frames}
            assert len(frames) == len(connection.frames) == 1 + (name in copy.places)
            free = frames[BlockName("free", 0, 1)]
            assert free.message == PartDataRequest(EPOCH, names.index(BlockName("free", 0, 1)), 1 + FLIGHTS)
            assert not len(free.body)
            if name in copy.places:
                found = frames[name]
                assert found.message == PartDataRequest(EPOCH, names.index(name), 1, 3)
                assert len(found.body) == copy.places[name].size_bytes * 3 // BATCH
        sender.look()
        await asyncio.sleep(0.01)
        assert all(len(connection.frames) <= 2 for connection in connections.values()), "nothing is sent twice"


async def test_what_is_whole_is_sent_from_where_it_was_computed() -> None:
    async with sending((2,)) as (memory, sender, connections):
        sender.submitted(2, BATCH)
        name = BlockName("sum", 0, 0)
        memory.array(name)[...] = 1
        post_by_python(Post(memory.word(name), (sender.wake,)), 2)
        await until(lambda: bool(connections[2].frames))
        body = connections[2].frames[0].body
        memory.array(name)[...] = 9
        assert np.frombuffer(body, np.float32).tolist() == [9.0] * memory.array(name).size


async def test_blocks_wait_in_order_while_the_network_takes_nothing() -> None:
    """Each is in the queue once at most, so it is bounded by the blocks of the open flights."""
    async with sending((2,)) as (memory, sender, connections):
        connection = connections[2]
        connection.open.clear()
        sender.submitted(1, BATCH)
        names = [BlockName("partial", 0, 1), BlockName("sum", 0, 1), BlockName("norms", 0, 1)]
        for name in names:
            post_by_python(Post(memory.word(name), (sender.wake,)), 1)
            sender.look()
        await until(lambda: bool(connection.frames))
        await asyncio.sleep(0.01)
        assert len(connection.frames) == 1
        connection.open.set()
        await until(lambda: len(connection.frames) == len(names))
        copy = list(SharedLayout(cut_network(IMAGES, UNEVEN, "numpy"), 1, BATCH, FLIGHTS, 2).places)
        assert [copy[frame.message.block] for frame in connection.frames] == names
