"""Without servers a gradient is in the weights once its slot is free; who asks for parameters gets whole ones."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.errors import RemoteError
from adamctl.kernels.operation import Array
from adamctl.kernels.step.network import Network
from adamctl.roles.outgoing_file import Streams
from adamctl.roles.ps.client import own_parameters
from adamctl.roles.ps.client.own_parameters import OwnParameters
from adamctl.roles.rooted import Roots
from adamctl.roles.worker.own.updates import OwnUpdates
from adamctl.roles.worker.replica import Replica
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointPartRequest, CheckpointRequest
from tests.roles.ps.client.test_own_parameters import EVERY, LAYOUT, MODEL, experiment

BATCH = 4


def streams() -> Streams:
    return Streams(logging.getLogger("test"))


class Asked:
    """A request, and what it was answered."""

    connection_id = 7

    def __init__(self) -> None:
        self.answer: Any = None
        self.body = b""

    def reply(self, message: Any, body: Any = ()) -> None:
        self.answer, self.body = message, b"".join(body)

    def fail(self, code: int, message: str) -> None:
        self.answer = RemoteError(ErrorCode(code), message)


class World:
    def __init__(self, threads: int = 1) -> None:
        self.network = Network(MODEL, BATCH, backend="numpy")
        self.replica = Replica(self.network, LAYOUT, threads, BATCH, 1, 1, (), False, 1)
        self.parameters = OwnParameters(experiment("sgd"), LAYOUT, EVERY, EVERY)
        self.failures: list[BaseException] = []
        self.updates = OwnUpdates(self.replica, self.parameters, "", self.failures.append)
        self.contexts = [self.network.context() for _ in range(threads)]

    def step(self, thread: int = 0, scale: float = 1.0) -> None:
        slot = self.replica.begin_step(thread)
        assert slot is not None
        generator = np.random.default_rng(thread)
        images, labels = generator.standard_normal((BATCH, 6), np.float32), np.arange(BATCH, dtype=np.int32) % 4
        context = self.contexts[thread]
        self.network.step(context, self.replica.weight_views, images, labels)
        context.gradient *= np.float32(scale)
        actions = self.replica.end_step(thread, slot, context, BATCH, 0.5, 0.0)
        if actions.push is not None:
            self.updates.push(actions.push)

    async def close(self) -> None:
        self.replica.stop()
        await self.updates.close()
        self.replica.memory.close()


async def test_the_thread_that_computes_a_gradient_applies_it() -> None:
    world = World()
    await world.updates.start()
    world.replica.updates_weights = world.updates.apply
    before = world.replica.weights.copy()
    world.step()
    changed = before - np.float32(0.5) * world.contexts[0].gradient
    np.testing.assert_allclose(world.replica.weights, changed, atol=1e-6)
    assert (world.updates.pushes, world.updates.updates) == (1, LAYOUT.parameter_count)
    world.step()  # its only slot is free again
    assert world.updates.take_staleness() == (2 * len(LAYOUT.shards),)
    assert world.updates.take_ages() == (2 * len(LAYOUT.shards),)
    assert world.updates.take_staleness() == world.updates.take_ages() == ()
    await world.close()


async def test_threads_update_the_same_weights_and_no_gradient_is_lost() -> None:
    world = World(threads=3)
    await world.updates.start()
    world.replica.updates_weights = world.updates.apply
    threads = [threading.Thread(target=lambda one=one: [world.step(one) for _ in range(50)]) for one in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.updates.pushes == world.parameters.pushes == 150
    ages = world.updates.take_ages()
    assert sum(ages) == 150 * len(LAYOUT.shards)
    await world.close()


async def test_what_is_pushed_is_applied_in_order_and_the_next_step_waits_for_it() -> None:
    world = World()
    await world.updates.start()
    before = world.replica.weights.copy()
    world.step()
    assert world.replica.core.begin_step(0) is None, "the only slot is on its way"
    await world.updates.settled()
    assert (world.replica.weights != before).any() and world.replica.core.begin_step(0) is not None
    await world.close()


async def test_a_snapshot_holds_what_was_pushed_before() -> None:
    world, into = World(), np.zeros(LAYOUT.flat_size, np.float32)
    await world.updates.start()
    world.step()
    await asyncio.sleep(0)
    await world.updates.snapshot(into)
    np.testing.assert_array_equal(into, world.replica.weights)
    assert world.updates.pushes == 1
    await world.close()


async def test_a_gradient_that_is_not_finite_is_refused_and_counted() -> None:
    world = World()
    await world.updates.start()
    world.replica.updates_weights = world.updates.apply
    before = world.replica.weights.copy()
    with np.errstate(invalid="ignore"):  # 0 x inf
        world.step(scale=float("inf"))
    np.testing.assert_array_equal(world.replica.weights, before)
    assert world.updates.refused == len(LAYOUT.shards) and "NaN or infinite" in world.updates.last_refusal
    await world.close()


async def test_a_failure_is_told() -> None:
    world = World()
    await world.updates.start()

    def fail(gradient: Array, rate: float) -> list[int]:
        raise MemoryError("no room")

    world.parameters.apply = fail  # type: ignore[method-assign]
    world.step()
    await world.updates.settled()
    assert [type(one) for one in world.failures] == [MemoryError]
    await world.close()


async def test_a_checkpoint_is_written_only_into_allowed_folders(tmp_path: Path) -> None:
    world, roots = World(), Roots([tmp_path / "runs"], "--checkpoint-root")
    await world.updates.start()
    asked: Any = Asked()
    await world.updates.save(
        asked, CheckpointRequest("small", str(tmp_path / "runs" / "1")), "worker-1", roots, streams()
    )
    (file,) = asked.answer.files
    assert file.shards == tuple(EVERY) and (tmp_path / "runs" / "1" / file.temporary_name).is_file()
    await world.updates.save(asked, CheckpointRequest("small", str(tmp_path / "else")), "worker-1", roots, streams())
    assert asked.answer.code == ErrorCode.NOT_ALLOWED and not (tmp_path / "else").exists()
    await world.close()


async def test_who_does_not_have_the_folder_has_its_file_fetched_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_parameters, "PORTION_BYTES", 1)
    world, open_ones = World(), streams()
    await world.updates.start()
    assert len(world.parameters.portions()) == len(EVERY) > 1
    here, elsewhere, asked = (
        Roots([tmp_path], "--checkpoint-root"),
        Roots([tmp_path / "x"], "--checkpoint-root"),
        Asked(),
    )
    request: Any = asked
    (tmp_path / ".nonce").write_text("n")
    message = CheckpointRequest("small", str(tmp_path), nonce="n")
    await world.updates.save(request, message, "worker-1", here, open_ones)
    (written,) = asked.answer.files
    await world.updates.save(request, message, "worker-1", elsewhere, open_ones)
    stream, fetched = asked.answer.stream, b""
    assert stream and not asked.answer.files
    while not getattr(asked.answer, "last", False):
        request.message = CheckpointPartRequest("small", stream, len(fetched))
        await open_ones.part(request, request.message)
        fetched += asked.body
    assert asked.answer.files == (written,)
    assert fetched == (tmp_path / written.temporary_name).read_bytes()
    await world.close()


async def test_training_goes_on_between_the_shards_of_a_checkpoint(tmp_path: Path) -> None:
    world, roots, free = World(), Roots([tmp_path], "--checkpoint-root"), list[bool]()
    await world.updates.start()

    def save(job: str, node: str, folder: int, exclusive: Any) -> tuple[()]:
        for _ in range(2):
            with exclusive:
                free.append(world.updates._lock.locked())
            world.step()  # would wait for ever if the lock were kept
        return ()

    world.replica.updates_weights = world.updates.apply
    world.parameters.save = save  # type: ignore[method-assign]
    asked: Any = Asked()
    async with asyncio.timeout(10):
        await world.updates.save(asked, CheckpointRequest("small", str(tmp_path)), "worker-1", roots, streams())
    assert free == [True, True] and world.updates.pushes == 2 and asked.answer.files == ()
    await world.close()


async def test_a_checkpoint_asked_of_one_that_ends_is_answered(tmp_path: Path) -> None:
    world, asked = World(), Asked()
    await world.updates.start()
    await world.close()
    request: Any = asked
    message, roots = CheckpointRequest("small", str(tmp_path)), Roots([tmp_path], "--checkpoint-root")
    await world.updates.save(request, message, "worker-1", roots, streams())
    assert asked.answer.code == ErrorCode.INTERNAL


@pytest.mark.parametrize("name", ["want_fetch", "freshen", "fetch"])
async def test_nothing_is_ever_fetched(name: str) -> None:
    world = World()
    await world.updates.start()
    found = getattr(world.updates, name)()
    if asyncio.iscoroutine(found):
        await found
    assert world.updates.fetches == 0
    await world.close()


def test_it_has_what_a_session_uses_of_pushes_and_fetches() -> None:
    from adamctl.roles.worker.downpour import Downpour

    public = {name for name in vars(Downpour) if not name.startswith("_")}
    assert public <= {name for name in vars(OwnUpdates) if not name.startswith("_")}
