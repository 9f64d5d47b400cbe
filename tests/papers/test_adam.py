"""Project Adam (OSDI 2014), sentence by sentence: what the paper says its system does, ours does.

One test per sentence that promises something and is built; names carry the section. Partitioned models (3.2, 3.2.5
first half), persistence (3.3.2) and replication (3.3.3) come with the pieces that build them.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.experiment import TrainConfig
from adamctl.kernels.backend import installed
from adamctl.kernels.network import Network, activation_bytes
from adamctl.kernels.rules import gradient_rows
from adamctl.kernels.walk import Kind, Walk
from adamctl.model.description import Conv2D, Dense, Dropout, MaxPool2D, Model, Softmax
from adamctl.model.layout import SHARD_BYTES_MAX, build_layout, place_buckets
from adamctl.model.protocol import bytes_per_push, choose_protocol, factors_bytes
from adamctl.net.pool import SIZE_BYTES_MAX, SIZE_BYTES_MIN, BufferPool, capacity_for
from adamctl.roles.coordinator.core_ranges import RangeBook
from adamctl.roles.coordinator.core_report import run_result
from adamctl.roles.data.client import DataClient
from adamctl.roles.data.core import AheadPlanner, Range, pass_order, translations
from adamctl.roles.ps.apply import BLOCK
from adamctl.roles.ps.client import PushSet
from adamctl.roles.worker.core_slots import StepActions
from adamctl.roles.worker.replica import Replica
from adamctl.roles.worker.session import RANGES_MIN, SessionRunner
from adamctl.wire.constants import UpdateKind
from tests.roles.coordinator.simulation import Simulation
from tests.roles.coordinator.simulation import plan as run_plan
from tests.roles.ps.core_harness import Harness
from tests.roles.ps.ps_cluster import make_layout
from tests.roles.worker.test_server import make_experiment, world

MNIST = Model(
    (28, 28, 1),
    (
        Conv2D(10, 5, activation="relu"),
        MaxPool2D(2),
        Conv2D(20, 5, activation="relu"),
        MaxPool2D(2),
        Dense(400, "relu"),
        Dropout(0.5),
        Dense(400, "relu"),
        Softmax(10),
    ),
)
SMALL = Model((6,), (Dense(5, "relu"), Softmax(3)))
BATCH = 4


def small_batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((BATCH, 6), np.float32), generator.integers(0, 3, BATCH).astype(np.int32)


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
    context, generator = network.context(0), np.random.default_rng(0)
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
    contexts = [network.context(0), network.context(1)]
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
    slow, fast = network.context(0), network.context(1)
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
    context = network.context(0)
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
    book = RangeBook(passes=2, examples=40, range_examples=10, pass_fraction=fraction)
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


# --- 3.2.6 Parameter Server Communication ---------------------------------------------------------------------------


def test_3_2_6_weight_updates_are_accumulated_over_k_images() -> None:
    """3.2.6: "accumulates the weight updates in a buffer that is periodically sent"."""
    network = Network(SMALL, BATCH, "numpy")
    replica = Replica(network, build_layout(SMALL, 1), 1, BATCH, 3, 100, (), True)
    context, total = network.context(0), np.zeros(network.flat_size, np.float32)
    for number in range(1, 4):
        slot = replica.begin_step(0)
        assert slot is not None
        network.step(context, replica.weight_views, *small_batch(number))
        total += context.gradient
        actions = replica.end_step(0, slot, context, BATCH, 0.1, 0.1)
        assert (actions.push is slot) is (number == 3)
    assert slot.examples == 3 * BATCH
    np.testing.assert_allclose(replica.gradient(slot), total, rtol=1e-5, atol=1e-6)


def test_3_2_6_activations_and_errors_multiply_to_the_gradient() -> None:
    """3.2.6: "the matrix multiply can be performed locally" on the servers, each for its own rows."""
    network = Network(MNIST, 8, "numpy")
    context, generator = network.context(0), np.random.default_rng(1)
    flat = generator.standard_normal(network.flat_size).astype(np.float32) * np.float32(0.05)
    images, labels = generator.random((8, 28, 28, 1), np.float32), generator.integers(0, 10, 8).astype(np.int32)
    network.step(context, flat, images, labels)
    layout = build_layout(MNIST, 3)
    compared = 0
    for shard in layout.shards:
        tensor = layout.tensors[shard.tensor]
        factors = context.factors(tensor.layer)
        if len(tensor.shape) != 2 or factors is None:
            continue
        rows = np.empty((shard.row_stop - shard.row_start, tensor.row_size), np.float32)
        gradient_rows(factors.errors, factors.activations, shard.row_start, shard.row_stop, rows)
        expected = context.gradient_views[shard.tensor][shard.row_start : shard.row_stop]
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)
        compared += shard.size
    assert compared == 400 * 320 + 400 * 400 + 10 * 400


def test_3_2_6_traffic_goes_from_m_n_to_k_m_plus_n() -> None:
    """3.2.6: "from M*N to k*(M+N)": for one server; and what is smaller is what is sent."""
    entries = {entry.name: entry for entry in bytes_per_push(build_layout(MNIST, 1), servers=1, examples=32)}
    dense = entries["dense2.weight"]
    assert dense.gradient_bytes == 4 * 400 * 400
    assert dense.factors_bytes == 4 * 32 * (400 + 400)
    assert dense.protocol == "factors"
    tensor = build_layout(MNIST, 1).tensor_named("dense2.weight")
    for k in (1, 100, 199, 200, 201, 1000):
        smaller = factors_bytes(tensor, k, 1) < 4 * 400 * 400
        assert choose_protocol(tensor, k, 1) == ("factors" if smaller else "gradient")
        assert smaller is (k < 200)


def test_3_2_6_convolutions_send_their_gradient() -> None:
    """3.2.6: "works well for the convolutional layers": their few weights are shared by all places."""
    entries = bytes_per_push(build_layout(MNIST, 1), servers=1, examples=1)
    assert {entry.protocol for entry in entries if entry.name.startswith("conv2d")} == {"gradient"}


# --- 3.3.1 Throughput Optimizations ---------------------------------------------------------------------------------


def test_3_3_1_parameters_are_divided_into_shards_of_1_mb() -> None:
    """3.3.1: "1 MB sized shards", each "a contiguous partition"."""
    layout = build_layout(Model((4096,), (Dense(4096), Dense(4096), Softmax(1000))), servers_expected=4)
    sizes = [4 * shard.size for shard in layout.shards]
    assert max(sizes) == SHARD_BYTES_MAX == 1 << 20
    assert sum(size == SHARD_BYTES_MAX for size in sizes) > 0.9 * len(sizes)
    for shard in layout.shards:
        tensor = layout.tensors[shard.tensor]
        assert shard.offset == tensor.offset + shard.row_start * tensor.row_size


def test_3_3_1_buckets_are_distributed_equally_among_servers() -> None:
    """3.3.1: "distributed equally among the parameter server machines"."""
    servers = [f"ps-{number}" for number in range(5)]
    layout = build_layout(MNIST, len(servers))
    placement = place_buckets(layout, "mnist", servers)
    loads = [sum(b.size_bytes for b in layout.buckets if placement[b.index] == server) for server in servers]
    assert max(loads) < 1.1 * min(loads)


def test_3_3_1_updates_that_wait_are_applied_as_one_batch_in_order() -> None:
    """3.3.1: "we opportunistically batch updates"."""
    h = Harness("momentum")
    h.push("first", [(0, 1, 1.0)], kind=UpdateKind.GRADIENT)
    for sequence in (2, 3, 4):
        h.push(sequence, [(0, sequence, float(sequence))], kind=UpdateKind.GRADIENT)
    assert len(h.waiting) == 1, "one batch of a shard at a time"
    h.apply(1)
    assert [len(batch.updates) for batch in h.waiting[0].batches] == [3]
    h.apply()
    assert h.job.shards[0].counter == 2, "two batches, two versions"
    value, velocity = 0.0, 0.0
    for gradient in (1.0, 2.0, 3.0, 4.0):
        velocity = 0.9 * velocity + gradient
        value -= velocity
    assert h.value(0) == pytest.approx(value, rel=1e-6)


def test_3_3_1_all_updates_of_a_batch_are_applied_to_a_block_before_the_next() -> None:
    """3.3.1: "before moving to next block in the shard": seen in the order in which a rule is called."""
    h = Harness("sgd", make_layout(((1, 2 * BLOCK), (1,))))
    calls: list[tuple[int, float]] = []
    apply = h.job.rule.apply

    def noted(current: Any, target: Any, state: Any, gradient: Any, lr: float) -> None:
        calls.append((target.ctypes.data, float(gradient[0])))
        apply(current, target, state, gradient, lr)

    h.job.rule.apply = noted  # type: ignore[method-assign]
    h.push(1, [(0, 1, 1.0)], kind=UpdateKind.GRADIENT)
    for sequence in (2, 3):
        h.push(sequence, [(0, sequence, float(sequence))], kind=UpdateKind.GRADIENT)
    h.apply(1)
    calls.clear()
    h.apply()
    (first, second) = sorted({address for address, _ in calls})
    assert calls == [(first, 2.0), (first, 3.0), (second, 2.0), (second, 3.0)]


def test_3_3_1_all_processing_of_a_shard_is_by_one_thread() -> None:
    """3.3.1: "all update processing for the shard is localized": each thread owns its shards."""
    h = Harness("sgd", threads=2)
    owners: dict[int, set[int]] = {}
    for sequence in (1, 2, 3):
        h.push(sequence, [(shard.index, sequence, 1.0) for shard in h.layout.shards], kind=UpdateKind.GRADIENT)
        for instruction in h.waiting:
            for batch in instruction.batches:
                owners.setdefault(batch.shard.index, set()).add(instruction.thread)
        h.apply()
    assert len(owners) == len(h.layout.shards)
    assert all(len(threads) == 1 for threads in owners.values())
    assert set.union(*owners.values()) == {0, 1}


def test_3_3_1_buffers_come_from_pools_in_powers_of_two() -> None:
    """3.3.1: "in powers of 2 from 4KB all the way to 32MB"."""
    assert (SIZE_BYTES_MIN, SIZE_BYTES_MAX) == (4 << 10, 32 << 20)
    size, sizes = SIZE_BYTES_MIN, []
    while size <= SIZE_BYTES_MAX:
        sizes.append(size)
        assert capacity_for(size) == size and capacity_for(size // 2 + 1) == size
        size *= 2
    assert len(sizes) == 14
    with pytest.raises(ValueError, match="at most"):
        capacity_for(SIZE_BYTES_MAX + 1)


# --- 4.3 Baseline Performance ---------------------------------------------------------------------------------------


def test_4_3_1_connections_trained_per_second() -> None:
    """4.3.1: "(Model connections*Training examples*Number of Epochs)/(Wall clock time)"."""
    run = Simulation(1, run_plan(passes=2, connections=756_000), examples=100)
    run.add_worker("w0")
    run.run()
    result = run_result(run.core, {})
    assert result["connections_per_s"] * result["train_seconds"] == pytest.approx(756_000 * 100 * 2, rel=1e-4)


def test_4_3_2_factors_count_k_m_n_updates() -> None:
    """4.3.2: a push of k activation and error vectors updates every weight k times."""
    layout = build_layout(Model((30,), (Dense(40), Softmax(3))), 1)
    push = PushSet(layout, 0.1)
    push.factors(0, np.zeros((16, 40), np.float32), np.zeros((16, 30), np.float32))
    push.gradient(1, np.zeros(40, np.float32))
    assert push.parameter_updates == 16 * 40 * 30 + 40
