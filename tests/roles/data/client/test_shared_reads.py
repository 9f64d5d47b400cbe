"""Clients of several data servers that share a set out by block: each example of a pass once, whatever happens.

On virtual time, over the in-memory network, from one seed each; the servers are simulated, the client is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from adamctl.errors import DeadlineError
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.data.client.data_client import DataClient, DataSet, Range, ReadAhead
from adamctl.roles.data.core import pass_order
from tests.roles.data.simulated_servers import CONFIG, EXAMPLES, SHAPE, SimulatedFarm

LENGTH = 40


def numbers(images: np.ndarray) -> list[int]:
    return (images[:, 0] + 256 * images[:, 1]).astype(int).tolist()


async def read_pass(client: DataClient, data: DataSet, pass_number: int, pause_s: float = 0.0) -> list[int]:
    """Reads a pass as a worker does, with ranges asked for ahead; returns the examples in the order they came."""
    ahead, found = ReadAhead(client, data, ranges_in_flight=4), list[int]()
    ranges = [Range("train", pass_number, at, min(at + LENGTH, EXAMPLES)) for at in range(0, EXAMPLES, LENGTH)]

    async def ask() -> None:
        for wanted in ranges:
            await ahead.ask(wanted)

    asking = asyncio.create_task(ask())
    for _ in ranges:
        batch = await ahead.take()
        found += numbers(batch.images)
        assert batch.labels.tolist() == [number % 10 for number in numbers(batch.images)]
        batch.release()
        await asyncio.sleep(pause_s)
    await asking
    await ahead.close()
    return found


def expected(pass_number: int) -> list[int]:
    return pass_order(EXAMPLES, 7, pass_number).tolist()


@asynccontextmanager
async def farm_and_client(seed: int, *nodes: str) -> AsyncIterator[tuple[SimulatedFarm, DataClient, DataSet]]:
    """Starts servers, and a client that has opened the data set at them."""
    farm = SimulatedFarm(seed)
    for node in nodes:
        await farm.start(node)
    client = farm.client(*nodes)
    yield farm, client, await client.open(CONFIG, SHAPE, 7)
    await client.close()
    await farm.close()


def test_two_servers_give_a_pass_in_its_order_each_its_part() -> None:
    async def scene() -> None:
        async with farm_and_client(1, "data-1", "data-2") as (farm, client, data):
            assert data.by_block
            assert await read_pass(client, data, 0) == expected(0)
            ranges = -(-EXAMPLES // LENGTH)
            assert {name: server.reads for name, server in farm.servers.items()} == {"data-1": ranges, "data-2": ranges}
            assert client.twice == 0

    run_virtual(scene())


def test_a_server_that_joins_the_cluster_takes_its_part_and_one_that_leaves_is_forgotten() -> None:
    async def scene() -> None:
        async with farm_and_client(2, "data-1") as (farm, client, data):
            assert await read_pass(client, data, 0) == expected(0)
            await farm.start("data-2")
            await asyncio.sleep(1)
            assert await read_pass(client, data, 1) == expected(1)
            assert farm.servers["data-2"].reads == -(-EXAMPLES // LENGTH), "it is asked for its part of every range"
            await farm.kill("data-1", forgotten=True)
            assert await read_pass(client, data, 2) == expected(2)
            await farm.start("data-3")
            await asyncio.sleep(1)
            await farm.kill("data-2", forgotten=True)
            await asyncio.sleep(1)
            assert await read_pass(client, data, 3) == expected(3)
            assert client.status() == {"data_servers": ["data-3"], "examples_twice": 0}

    run_virtual(scene())


def test_a_client_whose_servers_are_gone_finds_another_one_of_the_cluster() -> None:
    async def scene() -> None:
        farm = SimulatedFarm(5)
        await farm.start("data-1")
        await farm.start("data-9")
        await farm.kill("data-1", forgotten=True)
        client = farm.client("data-1")
        data = await client.open(CONFIG, SHAPE, 7)
        assert client.servers.alive(data) == ["data-9"]
        assert await read_pass(client, data, 0) == expected(0)
        await client.close()
        await farm.close()

    run_virtual(scene())


def test_a_read_that_waits_for_its_only_server_is_answered_by_one_that_comes() -> None:
    async def scene() -> None:
        farm = SimulatedFarm(9)
        await farm.start("data-1")
        client = farm.client("data-1")
        data = await client.open(CONFIG, SHAPE, 7)
        await farm.kill("data-1", forgotten=True)
        reading = asyncio.create_task(client.read(data, "train", 0, 0, 40, deadline_s=30))
        await asyncio.sleep(5)
        await farm.start("data-9")
        assert numbers((await reading).images) == expected(0)[:40]
        await client.close()
        await farm.close()

    run_virtual(scene())


def test_a_dead_machine_delays_only_the_reads_it_was_asked_for() -> None:
    """Nothing tells the client that it is gone: its parts are asked of the other one after some seconds, once."""

    async def scene() -> None:
        async with farm_and_client(3, "data-1", "data-2") as (farm, client, data):
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await read_pass(client, data, 0)
            usual_s = loop.time() - began_s
            await farm.kill("data-2", silent=True)
            began_s = loop.time()
            assert await read_pass(client, data, 1) == expected(1)
            assert 2 < loop.time() - began_s < 30 + usual_s
            began_s = loop.time()
            assert await read_pass(client, data, 2) == expected(2)
            assert loop.time() - began_s < 2 * usual_s + 1, "it is not asked again before it answers"

    run_virtual(scene())


def test_without_any_server_a_read_ends_at_its_deadline_and_says_why() -> None:
    async def scene() -> None:
        async with farm_and_client(4, "data-1", "data-2") as (farm, client, data):
            for node in ("data-1", "data-2"):
                await farm.kill(node)
            with pytest.raises(DeadlineError, match=r"examples 0 to 40: data-1: .*; data-2: "):
                await client.read(data, "train", 0, 0, 40, deadline_s=5)
            reading = asyncio.create_task(client.read(data, "train", 0, 0, 40))
            await asyncio.sleep(5)
            await farm.start("data-2")
            batch = await reading
            assert numbers(batch.images) == expected(0)[:40]

    run_virtual(scene())


def test_a_server_that_fails_at_the_moment_it_is_back_comes_back_again() -> None:
    async def scene() -> None:
        async with farm_and_client(6, "data-1", "data-2") as (_, client, data):
            deadline_s = asyncio.get_running_loop().time() + 60
            client.servers.failed("data-2", data, DeadlineError("late"))
            await client.servers.wait_for_any(deadline_s)
            client.servers.failed("data-2", data, DeadlineError("late again"))
            assert client.servers.alive(data) == ["data-1"]
            await client.servers.wait_for_any(deadline_s)
            assert client.servers.alive(data) == ["data-1", "data-2"]

    run_virtual(scene())


def test_a_set_opened_later_is_read_from_servers_that_have_joined_too() -> None:
    async def scene() -> None:
        async with farm_and_client(8, "data-1") as (farm, client, _):
            await farm.start("data-2")
            await asyncio.sleep(1)
            data = await client.open(CONFIG, SHAPE, 7)
            await asyncio.sleep(1)
            assert client.servers.alive(data) == ["data-1", "data-2"]

    run_virtual(scene())


@pytest.mark.parametrize("seed", range(30))
def test_every_example_of_a_pass_comes_once_whatever_happens_to_servers(seed: int) -> None:
    """They die, seen and unseen, come back, come new, refuse, and answer late; two clients read at different speeds."""

    async def chaos(farm: SimulatedFarm) -> None:
        names = ["data-1", "data-2", "data-3", "data-4"]
        while True:
            await asyncio.sleep(farm.chance.uniform(0.0, 1.0))
            name = farm.chance.choice(names)
            if name not in farm.servers:
                await farm.start(name)
            elif len(farm.servers) > 1:
                await farm.kill(name, silent=farm.chance.random() < 0.3, forgotten=farm.chance.random() < 0.5)

    async def scene() -> None:
        farm = SimulatedFarm(seed, busy=0.1 * (seed % 3), slow_s=5.0 * (seed % 2))
        for node in ("data-1", "data-2"):
            await farm.start(node)
        clients = [farm.client("data-1", "data-2") for _ in range(2)]
        opened = [await client.open(CONFIG, SHAPE, 7) for client in clients]
        trouble = asyncio.create_task(chaos(farm))
        for pass_number in range(3):
            found = await asyncio.gather(
                *(
                    read_pass(client, data, pass_number, 0.1 * number)
                    for number, (client, data) in enumerate(zip(clients, opened, strict=True))
                )
            )
            assert found == [expected(pass_number)] * 2
        assert not trouble.done()
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        for client in clients:
            await client.close()
        await farm.close()

    run_virtual(scene())
