"""Pushes and pulls through memory that the server maps: the same values as over sockets, whatever breaks in between."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import DeadlineError, RemoteError
from adamctl.net import regions, shared_memory
from adamctl.net.shared_memory import SharedMemory, array_bytes
from adamctl.roles.ps.apply import direct_reply as direct
from adamctl.roles.ps.apply.applier import Applier
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.roles.ps.client.shared_memory import SharedArrays
from adamctl.roles.ps.core.instructions import AnswerPull, AnswerPush
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PullRequest, PushPart, PushRequest, PushSource
from tests.roles.ps.ps_cluster import read_while
from tests.roles.ps.sharing_world import JOB, ROW_SIZE, ROWS, SharingWorld, delta_of, sharing_world

pytestmark = pytest.mark.skipif(not shared_memory.SUPPORTED, reason="memory is shared on Linux only")
FLAT = ROWS * ROW_SIZE
ROOT = Path(__file__).resolve().parents[4]


class Gate:
    """Holds threads of the server up where a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        original = getattr(owner, name)

        def gated(*arguments: object) -> object:
            self.reached.set()
            self.open.wait(20)
            return original(*arguments)

        monkeypatch.setattr(owner, name, gated)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20)


async def test_values_are_the_same_as_over_the_socket(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    gradient = generator.standard_normal(FLAT).astype(np.float32)
    async with sharing_world(tmp_path) as world:
        sharing, plain = await world.client("auto"), await world.client("unix")
        memory = SharedMemory(2 * array_bytes(FLAT))
        sharing.shared.add(memory)
        mine, into = memory.array(FLAT), memory.array(FLAT)
        mine[:] = gradient
        outcome = await sharing.push(delta_of(sharing, mine))
        assert not outcome.refused and outcome.updates == FLAT
        assert sharing.transports() == {"ps-0": "shared"} and world.region_bytes == memory.size_bytes
        await plain.push(delta_of(plain, gradient))
        assert plain.transports() == {"ps-0": "unix"}
        theirs = np.zeros(FLAT, np.float32)
        pulled, same = await sharing.pull(into), await plain.pull(theirs)
        assert np.array_equal(into, gradient + gradient) and np.array_equal(into, theirs)
        assert np.array_equal(pulled.versions, same.versions) and pulled.pushes.tolist() == [2] * len(pulled.shards)
        assert pulled.sequences.tolist() == [1] * len(pulled.shards)
        some = sharing.layout.shards[2]
        into[:] = 0
        await sharing.pull(into, shards=[2])
        part = slice(some.offset, some.offset + some.size)
        assert (
            np.array_equal(into[part], theirs[part]) and not into[: some.offset].any() and not into[part.stop :].any()
        )
        status = world.server.status()
        assert status["connections"] == {"shared": 1, "unix": 1} and status["region_bytes"] == memory.size_bytes
        memory.close()


async def test_factors_in_one_region_are_read_from_it(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        memory = SharedMemory(array_bytes(3, ROWS) + array_bytes(3, ROW_SIZE))
        client.shared.add(memory)
        errors, activations = memory.array(3, ROWS), memory.array(3, ROW_SIZE)
        for array in (errors, activations):
            array[:] = generator.integers(-3, 4, array.shape)
        push = PushSet(client.layout, 1.0)
        push.factors(0, errors, activations)
        outcome = await client.push(push)
        assert not outcome.refused and client.transports() == {"ps-0": "shared"}
        assert np.array_equal(await world.values(), (errors.T @ activations).reshape(-1))
        memory.close()


async def test_arrays_elsewhere_go_through_the_socket(tmp_path: Path) -> None:
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        into = np.zeros(FLAT, np.float32)
        await client.push(delta_of(client, np.ones(FLAT, np.float32)))
        await client.pull(into)
        assert into.min() == into.max() == 1
        assert client.transports() == {"ps-0": "unix"} and world.region_bytes == 0


async def test_pulls_are_never_torn_while_others_push(tmp_path: Path) -> None:
    async with sharing_world(tmp_path) as world:
        writer, *readers = [await world.client() for _ in range(3)]
        ones = writer.shared.new_array(FLAT)
        ones[:] = 1

        async def write() -> None:
            for _ in range(60):
                await writer.push(delta_of(writer, ones))

        await read_while(write(), readers, pushes_before=0, new_array=lambda client: client.shared.new_array(FLAT))


async def test_each_push_is_applied_once_while_connections_drop_and_memory_is_used_again(tmp_path: Path) -> None:
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        buffers = [client.shared.new_array(FLAT) for _ in range(4)]
        into = client.shared.new_array(FLAT)
        pushing = True

        async def cut() -> None:
            while pushing:
                await asyncio.sleep(0.02)
                await client.channel("ps-0").drop()

        async def push(number: int) -> None:
            for value in range(number, 60, len(buffers)):
                buffers[number][:] = value
                assert not (await client.push(delta_of(client, buffers[number]))).refused

        cutting = asyncio.create_task(cut())
        await asyncio.gather(*(push(number) for number in range(len(buffers))))
        pushing = False
        await cutting
        await client.pull(into)
        assert into.min() == into.max() == sum(range(60))


async def test_what_was_given_up_is_applied_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, Applier, "apply")
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        mine = client.shared.new_array(FLAT)
        mine[:] = 1
        pending = client.start_push(delta_of(client, mine))
        await gate.wait()
        await client.close()
        assert pending.done
        mine[:] = 100
        gate.open.set()
        values = await world.values()
        assert values.min() == values.max() == 1
        assert mine.min() == 100


async def test_a_late_answer_writes_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, direct, "copy_all")
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        into = client.shared.new_array(FLAT)
        with pytest.raises(DeadlineError):
            await client.pull(into, deadline_s=0.2)
        await gate.wait()
        into[:] = 7
        gate.open.set()
        again = client.shared.new_array(FLAT)
        await client.pull(again)
        assert not again.any() and into.min() == 7
        await client.pull(into)
        assert not into.any() and client.transports() == {"ps-0": "shared"}


async def test_memory_beyond_the_servers_quota_goes_through_the_socket(tmp_path: Path) -> None:
    async with sharing_world(tmp_path, memory="3MB") as world:
        clients = [await world.client() for _ in range(8)]
        arrays = [client.shared.new_array(FLAT) for client in clients]
        for client, ones in zip(clients, arrays, strict=True):
            ones[:] = 1
            await client.push(delta_of(client, ones))
            await client.pull(ones)
        assert arrays[-1].min() == arrays[-1].max() == len(clients)
        kinds = [client.transports()["ps-0"] for client in clients]
        assert kinds == ["shared"] * 6 + ["unix"] * 2 and world.region_bytes == 12 << 20


async def test_a_server_keeps_one_copy_of_what_it_did_not_answer_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing_world(tmp_path) as world:
        client = await world.client(attempt_s=0.05)
        into = client.shared.new_array(FLAT)
        with monkeypatch.context() as patch:
            patch.setitem(world.server._carriers, AnswerPull, lambda *_: None)  # alive, and never done
            for _ in range(4):
                with pytest.raises(DeadlineError):
                    await client.pull(into, deadline_s=0.2)
        client._session.attempt_s = 10.0
        await client.pull(into, deadline_s=20)
        for _ in range(1000):
            if world.region_bytes == into.nbytes:
                break
            await asyncio.sleep(0.01)
        assert client.transports() == {"ps-0": "shared"} and world.region_bytes == into.nbytes


async def test_a_server_forgets_what_a_push_that_was_given_up_lay_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        mine = client.shared.new_array(FLAT)
        connection = await client.channel("ps-0").connected()
        with monkeypatch.context() as patch:
            answered = asyncio.Event()
            patch.setitem(world.server._carriers, AnswerPush, lambda *_: answered.set())
            client.start_push(delta_of(client, mine))
            await asyncio.wait_for(answered.wait(), 20)
            (task,) = client._session.pushes
            task.cancel()
            await asyncio.wait({task}, timeout=20)
        assert connection.closed


async def test_a_lost_connection_during_a_pull_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, direct, "copy_all")
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        ones, into = client.shared.new_array(FLAT), client.shared.new_array(FLAT)
        ones[:] = 1
        await client.push(delta_of(client, ones))
        pulling = asyncio.create_task(client.pull(into, deadline_s=20))
        await gate.wait()
        await client.channel("ps-0").drop()
        gate.open.set()
        await pulling
        assert into.min() == into.max() == 1


@pytest.mark.parametrize("what", ["_open", "check_region", "peer_process"])
async def test_memory_that_cannot_be_opened_goes_through_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: object) -> int:
        raise RemoteError(ErrorCode.NOT_SHAREABLE, "another container")

    monkeypatch.setattr(regions, what, refuse)
    async with sharing_world(tmp_path) as world:
        client = await world.client("shared")
        ones, into = client.shared.new_array(FLAT), client.shared.new_array(FLAT)
        ones[:] = 1
        await client.push(delta_of(client, ones))
        await client.pull(into)
        assert into.min() == into.max() == 1
        assert client.transports() == {"ps-0": "unix"}


async def direct_connection(world: SharingWorld) -> tuple[ParameterClient, object, int]:
    client = await world.client()
    memory = SharedMemory(array_bytes(FLAT))
    client.shared.add(memory)
    place = memory.find(memory.array(FLAT))
    assert place is not None
    connection = await client.channel("ps-0").connected()
    assert await connection.share(place.region, deadline_s=10)
    return client, connection, place.region.number


async def test_offsets_outside_of_the_region_are_refused(tmp_path: Path) -> None:
    async with sharing_world(tmp_path) as world:
        client, connection, region = await direct_connection(world)
        epochs, size = client.routing.epochs_of([0]), client.layout.shards[0].size
        for offsets in ((4 * FLAT,), (4 * (FLAT - size) + 4,), (-4,), (2,), (), (0, 0), (1 << 62,)):
            with pytest.raises(RemoteError) as caught:
                request = PullRequest(JOB, epochs, (0,), "float32", region, offsets)
                await connection.request(request, deadline_s=10)  # type: ignore[attr-defined]
            assert caught.value.code == ErrorCode.WRONG_LENGTH
        for number, offset in enumerate((4 * FLAT, 4 * (FLAT - size) + 4, -4, 2, 1 << 62)):
            source = PushSource(UpdateKind.DELTA, 0, 0, client.layout.shards[0].row_stop, offset)
            push = PushRequest(JOB, epochs, 1.0, 1, 1, (source,), (PushPart(0, number + 1, 0),), region=region)
            reply = await connection.request(push, deadline_s=10)  # type: ignore[attr-defined]
            assert reply.message.results[0].code == ErrorCode.WRONG_LENGTH
        for unknown in (
            PullRequest(JOB, epochs, (0,), "float32", region + 1, (0,)),
            PushRequest(JOB, epochs, 1.0, 1, 1, (), (), region=region + 1),
        ):
            with pytest.raises(RemoteError) as caught:
                await connection.request(unknown, deadline_s=10)  # type: ignore[attr-defined]
            assert caught.value.code == ErrorCode.UNKNOWN_REGION
        assert not (await world.values()).any()
        assert all(not shard.values.readers for shard in world.server.core.jobs[JOB].shards.values())


async def test_a_region_may_hold_16_bits_of_a_push_but_takes_float32_of_a_pull(tmp_path: Path) -> None:
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        memory = client.shared.new_array(FLAT)
        memory.view(np.uint16)[:] = 0x3F80  # 1.0 in bfloat16
        connection, place = await client.channel("ps-0").connected(), client.shared.find(memory)
        assert place is not None and await connection.share(place.region, deadline_s=10)
        number, shard = place.region.number, client.layout.shards[0]
        epochs = client.routing.epochs_of([0])
        source = PushSource(UpdateKind.DELTA, 0, 0, shard.row_stop, 2, dtype="bfloat16")
        push = PushRequest(JOB, epochs, 1.0, 1, 1, (source,), (PushPart(0, 1, 0),), region=number)
        reply = await connection.request(push, deadline_s=10)
        assert reply.message.results[0].code == ErrorCode.OK
        values = (await world.values())[: shard.size]
        assert values.min() == values.max() == 1
        with pytest.raises(RemoteError) as caught:
            await connection.request(PullRequest(JOB, epochs, (0,), "bfloat16", number, (0,)), deadline_s=10)
        assert caught.value.code == ErrorCode.WRONG_LENGTH


async def test_values_that_are_not_finite_are_refused_from_memory_too(tmp_path: Path) -> None:
    async with sharing_world(tmp_path) as world:
        client = await world.client()
        mine = client.shared.new_array(FLAT)
        mine[5] = np.nan
        outcome = await client.push(delta_of(client, mine))
        assert [(part.shard, part.code) for part in outcome.refused] == [(0, ErrorCode.NOT_FINITE)]


async def test_a_client_killed_in_mid_push_leaves_whole_pushes_and_no_mapping(tmp_path: Path) -> None:
    async with sharing_world(tmp_path) as world:
        address = next(text for text in world.context.addresses if text.startswith("unix"))
        command = (sys.executable, "-m", "tests.roles.ps.sharing_world", address)
        child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert await asyncio.wait_for(child.stdout.readline(), 60) == b"pushing shared\n"
            assert world.region_bytes > 0
            await asyncio.sleep(0.05)
        finally:
            child.kill()
            await child.wait()
        for _ in range(1000):
            if not world.region_bytes and not world.server.core.queued_updates:
                break
            await asyncio.sleep(0.01)
        assert world.region_bytes == world.server.core.queued_updates == 0
        values = await world.values()
        for shard in world.server.core.jobs[JOB].shards.values():
            start = shard.row_start * ROW_SIZE
            part = values[start : start + shard.size]
            assert part.min() == part.max() == shard.pushes >= 1


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    async def use() -> None:
        async with sharing_world(tmp_path) as world:
            client = await world.client()
            ones, into = client.shared.new_array(FLAT), client.shared.new_array(FLAT)
            await client.push(delta_of(client, ones))
            await client.pull(into)
            assert client.transports() == {"ps-0": "shared"}

    await use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not os.listdir(tmp_path)


def test_neighbours_that_share_a_page_are_both_taken_away() -> None:
    shared = SharedArrays()
    array = shared.new_array(3000)
    place = shared.find(array)
    assert place is not None
    theirs = np.frombuffer(mmap.mmap(place.region.descriptor, place.region.size_bytes), np.float32, 3000)
    for part in (array[:1500], array[1500:]):
        shared.renew(part)
    array[:] = 1.0
    assert not theirs.any()
