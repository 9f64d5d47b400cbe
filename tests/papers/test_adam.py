"""Project Adam (OSDI 2014), sentence by sentence: what the paper says its system does, ours does.

One test per sentence that promises something and is built; names carry the section. Partitioned models (3.2, 3.2.5
first half), persistence (3.3.2) and replication (3.3.3) come with the pieces that build them. What servers do (3.2.6,
3.3) is in test_adam_servers.py.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.experiment import TrainConfig
from adamctl.kernels.backend import installed
from adamctl.kernels.step.network import Network, activation_bytes
from adamctl.kernels.step.walk import Kind, Walk
from adamctl.model.layout import build_layout
from adamctl.net.pool import BufferPool
from adamctl.roles.coordinator.core.ranges import RangeAllocator
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.data.core import AheadPlanner, Range, pass_order, translations
from adamctl.roles.worker.core.slots import StepActions
from adamctl.roles.worker.replica import Replica
from adamctl.roles.worker.session import RANGES_MIN, SessionRunner
from adamctl.wire.constants import UpdateKind
from tests.papers.adam_models import BATCH, MNIST, SMALL, small_batch
from tests.roles.ps.core_harness import Harness
from tests.roles.worker.test_server import make_experiment, world

# --- 3.1 Fast Data Serving ------------------------------------------------------------------------------------------


def test_3_1_each_pass_sees_a_different_variant_of_the_same_image() -> None:
    """3.1: "a different variant of the same image"."""
    images = np.arange(1000)
    moved = [translations(images, seed=7, pass_number=number, pixels=2) for number in range(3)]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        same = (moved[one] == moved[other]).all(axis=1).mean()
        assert same < 0.1, "one in 25 by chance"


def test_3_1_images_are_made_ready_before_they_are_requested() -> None:
    """3.1: "This is done in advance"."""
    planner = AheadPlanner(depth=3)
    asked = [Range("train", 0, start, start + 8) for start in range(0, 80, 8)]
    ready: set[Range] = set()
    for wanted in asked:
        assert wanted in ready or wanted.start == 0
        ready.update(planner.asked("mnist", wanted, 800))


async def test_3_1_workers_request_in_advance_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3.1: "request images in advance in batches": before the first batch is trained, further ranges are asked for."""
    monkeypatch.setenv("ADAMCTL_KERNELS", "numpy")
    asked, asked_at_first_batch = 0, []
    read, done = DataClient.read, SessionRunner._done

    async def counted_read(self: DataClient, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await read(self, *arguments)

    def noted_done(self: SessionRunner, *arguments: Any) -> None:
        asked_at_first_batch.append(asked)
        done(self, *arguments)

    monkeypatch.setattr(DataClient, "read", counted_read)
    monkeypatch.setattr(SessionRunner, "_done", noted_done)
    async with world(tmp_path) as w:
        await w.summary(await w.start_run(make_experiment(tmp_path)))
    assert asked_at_first_batch[0] >= RANGES_MIN > 1


# --- 3.2.1 Multi-Threaded Training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", installed())
def test_3_2_1_the_context_is_pre_allocated(backend: str) -> None:
    """3.2.1: "to avoid heap locks": what a step takes beside its context is small change, and it gives it back.

    NumPy itself buffers where types are converted, so only the fused kernels come to almost nothing.
    """
    share = 0.02 if backend == "numba" else 0.1
    network = Network(MNIST, 32, backend)
    network.compile()
    context, generator = network.context(), np.random.default_rng(0)
    views = network.views(generator.standard_normal(network.flat_size).astype(np.float32) * np.float32(0.05))
    images, labels = generator.random((32, 28, 28, 1), np.float32), generator.integers(0, 10, 32).astype(np.int32)
    for _ in range(3):
        network.step(context, views, images, labels)
    tracemalloc.start()
    try:
        network.step(context, views, images, labels)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(3):
            network.step(context, views, images, labels)
        after, peak = tracemalloc.get_traced_memory()
        arrays = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)]
        )
    finally:
        tracemalloc.stop()
    assert sum(trace.size for trace in arrays.traces) == 0, "no array outlives a step"
    assert after - before < 4096
    assert peak - before < share * activation_bytes(network)


def test_3_2_1_threads_share_the_weights_and_nothing_of_a_step() -> None:
    """3.2.1: "threads that share the model weights", each with "a training context"."""
    network = Network(SMALL, BATCH, "numpy")
    replica = Replica(network, build_layout(SMALL, 1), 2, BATCH, 1, 1, (), True)
    contexts = [network.context(), network.context()]
    assert all(np.shares_memory(view, replica.weights) for view in replica.weight_views)
    for thread, context in enumerate(contexts):
        before = replica.weights.copy()
        slot = replica.begin_step(thread)
        assert slot is not None
        network.step(context, replica.weight_views, *small_batch(thread))
        replica.end_step(thread, slot, context, BATCH, 0.5, 0.5)
        np.testing.assert_allclose(replica.weights, before - np.float32(0.5) * context.gradient, rtol=1e-5, atol=1e-6)
    assert not np.shares_memory(contexts[0].gradient, contexts[1].gradient)
    for one, other in zip(contexts[0].buffers, contexts[1].buffers, strict=True):
        assert not np.shares_memory(one.output, other.output)


# --- 3.2.2 Fast Weight Updates --------------------------------------------------------------------------------------


def test_3_2_2_weights_are_updated_without_locks() -> None:
    """3.2.2: "locally without using locks": a thread in mid-step keeps none of the others from changing the weights."""
    network = Network(SMALL, BATCH, "numpy")
    replica = Replica(network, build_layout(SMALL, 1), 2, BATCH, 4, 100, (), True)
    slow, fast = network.context(), network.context()
    replica.weights[:] = np.random.default_rng(2).standard_normal(len(replica.weights), np.float32)
    stale = replica.weights.copy()
    held = replica.begin_step(0)
    assert held is not None
    network.step(slow, replica.weight_views, *small_batch(0))

    for number in range(1, 4):
        slot = replica.begin_step(1)
        assert slot is not None
        network.step(fast, replica.weight_views, *small_batch(number))
        assert isinstance(replica.end_step(1, slot, fast, BATCH, 0.1, 0.1), StepActions)
    others = replica.weights.copy()
    assert not np.array_equal(others, stale)

    replica.end_step(0, held, slow, BATCH, 0.1, 0.1)
    np.testing.assert_allclose(replica.weights, others - np.float32(0.1) * slow.gradient, rtol=1e-5, atol=1e-6)


def test_3_2_2_updates_are_associative_and_commutative() -> None:
    """3.2.2: "associative and commutative": any order of pushes leads to the same weights."""
    values = []
    for order in ((1.0, 2.0, 4.0), (4.0, 1.0, 2.0), (2.0, 4.0, 1.0)):
        h = Harness("sgd")
        for sequence, value in enumerate(order, 1):
            h.push(sequence, [(0, sequence, value)], kind=UpdateKind.GRADIENT)
            h.apply()
        values.append(h.value(0))
    assert values == [-7.0] * 3


# --- 3.2.3 Reducing Memory Copies -----------------------------------------------------------------------------------


def test_3_2_3_a_layer_reads_its_neighbours_outputs_where_they_are() -> None:
    """3.2.3: "Rather than copy data values we pass a pointer"."""
    network = Network(MNIST, 2, "numpy")
    context = network.context()
    images = np.ones((2, 28, 28, 1), np.float32)
    network.step(context, np.zeros(network.flat_size, np.float32), images, np.zeros(2, np.int32))
    assert context.inputs[0] is images
    for buffers, outputs in zip(context.buffers, context.inputs[1:], strict=True):
        assert np.shares_memory(buffers.output, outputs)


def test_3_2_3_reference_counts_keep_a_buffer_while_it_is_being_sent() -> None:
    """3.2.3: "reference counting to ensure safety in the presence of asynchronous network IO"."""
    pool = BufferPool(1 << 20)
    buffer = pool.allocate(5000)
    buffer.retain()
    buffer.release()
    buffer.view[:] = bytes(5000)
    assert pool.statistics().outstanding_buffers == 1
    buffer.release()
    assert pool.statistics().outstanding_buffers == 0


# --- 3.2.5 Mitigating the Impact of Slow Machines -------------------------------------------------------------------


def test_3_2_5_progress_is_triggered_by_the_arrival_of_data() -> None:
    """3.2.5: "a dataflow framework": a stage runs when all of its parts are there, in whatever order they came."""
    walk = Walk(2, remote={1: ["left", "right"]})
    walk.arrive(1, "right")
    walk.arrive()
    first = walk.run_next()
    assert first is not None and (first.kind, first.layer) == (Kind.FORWARD, 0)
    assert walk.run_next() is None
    walk.arrive(1, "left")
    rest = [walk.run_next() for _ in range(4)]
    assert [stage and stage.kind for stage in rest] == [Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.BACKWARD]


def test_3_2_5_a_pass_ends_when_the_fraction_is_done() -> None:
    """3.2.5: "ending an epoch whenever a specified fraction": three of four ranges, the fourth with a slow worker."""
    fraction = TrainConfig().pass_fraction
    assert fraction == 0.75
    book = RangeAllocator(passes=2, examples=40, range_examples=10, pass_fraction=fraction)
    slow, *others = [book.take() for _ in range(4)]
    assert book.take() is None, "nothing is left, and nothing done"
    for number, done in enumerate(others, 1):
        assert book.current == 0, f"{number - 1} of 4 ranges are done"
        assert done is not None and book.finish(done)
    assert book.current == 1
    after = book.take()
    assert after is not None and after.pass_number == 1
    assert slow is not None and book.finish(slow), "what is still being worked on is finished and counts"


def test_3_2_5_the_order_is_random_anew_in_each_pass() -> None:
    """3.2.5: "the same set of images are not skipped each epoch"."""
    orders = [pass_order(10_000, seed=7, pass_number=number) for number in range(4)]
    last = [set(order[7500:].tolist()) for order in orders]
    for order in orders:
        assert sorted(order.tolist()) == list(range(10_000))
    for one in range(4):
        for other in range(one):
            assert (orders[one] == orders[other]).sum() < 20, "one by chance"
            assert 450 < len(last[one] & last[other]) < 800, "a quarter of a quarter, 625, by chance"
    assert len(set.intersection(*last)) < 100, "39 by chance"
