"""The order of pushes on the way to one server."""

from __future__ import annotations

import asyncio

from adamctl.roles.ps.client.server_channel import ServerChannel


async def never(node: str) -> None:
    raise AssertionError(node)


async def test_without_trouble_nobody_waits() -> None:
    channel = ServerChannel("ps-0", never)  # type: ignore[arg-type]
    async with channel.unfinished((1, 1), {0}), channel.unfinished((2, 1), {0}):
        await asyncio.wait_for(channel.turn((2, 1)), 5)


async def test_after_trouble_the_oldest_goes_first_until_what_was_in_flight_is_answered() -> None:
    channel = ServerChannel("ps-0", never)  # type: ignore[arg-type]
    sent: list[int] = []
    release = {number: asyncio.Event() for number in range(1, 5)}

    async def push(number: int) -> None:
        async with channel.unfinished((number, 1), {0}):
            await started.wait()
            await channel.turn((number, 1))
            sent.append(number)
            await release[number].wait()

    started = asyncio.Event()
    tasks = [asyncio.create_task(push(number)) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    channel.be_careful()
    started.set()
    late = asyncio.create_task(push(4))
    for number in (1, 2, 3):
        await asyncio.sleep(0.01)
        assert sent == list(range(1, number + 1))
        release[number].set()
        await tasks[number - 1]
    await asyncio.sleep(0.01)
    assert sent == [1, 2, 3, 4]
    release[4].set()
    await late


async def test_after_trouble_envelopes_without_a_common_shard_do_not_wait_for_each_other() -> None:
    """A part of a step may be held on shards 1 and 2 until one comes that lies in an envelope after this one."""
    channel = ServerChannel("ps-0", never)  # type: ignore[arg-type]
    held, own = {1, 2}, {5, 6}
    async with channel.unfinished((15, 1), held), channel.unfinished((15, 2), own):
        channel.be_careful()
        await asyncio.wait_for(channel.turn((15, 2)), 5)
        own.add(2)
        assert not channel.is_next((15, 2)) and channel.is_next((15, 1))


async def test_an_envelope_goes_on_when_its_shards_are_answered_to_the_older_one() -> None:
    channel = ServerChannel("ps-0", never)  # type: ignore[arg-type]
    older = {1, 2}
    async with channel.unfinished((1, 1), older), channel.unfinished((2, 1), {2, 3}):
        channel.be_careful()
        waiting = asyncio.create_task(channel.turn((2, 1)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        older.discard(2)
        await channel.answered()
        assert await asyncio.wait_for(waiting, 5)
