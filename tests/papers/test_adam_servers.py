"""Project Adam (OSDI 2014), sentence by sentence: what workers send to parameter servers, and what these do with it.

Sections 3.2.6 and 3.3, and the figures of 4.3. Those that are about workers alone are in test_adam.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adamctl.kernels.rules import gradient_rows, make_rule
from adamctl.kernels.rules.rule import BLOCK
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import SHARD_BYTES_MAX, build_layout
from adamctl.model.placement import place_buckets
from adamctl.model.protocol import bytes_per_push, choose_protocol, factors_bytes
from adamctl.net.pool import SIZE_BYTES_MAX, SIZE_BYTES_MIN, capacity_for
from adamctl.roles.coordinator.core.report import run_result
from adamctl.roles.worker.replica import Replica
from adamctl.wire.constants import UpdateKind
from tests.papers.adam_models import BATCH, MNIST, SMALL, small_batch
from tests.roles.coordinator.simulation import Simulation
from tests.roles.coordinator.simulation import plan as run_plan
from tests.roles.ps.core_harness import Harness
from tests.roles.ps.ps_cluster import make_layout
from tests.tensors import tensor_named

# --- 3.2.6 Parameter Server Communication ---------------------------------------------------------------------------


def test_3_2_6_weight_updates_are_accumulated_over_k_images() -> None:
    """3.2.6: "accumulates the weight updates in a buffer that is periodically sent"."""
    network = Network(SMALL, BATCH, "numpy")
    replica = Replica(network, build_layout(SMALL, 1), 1, BATCH, 3, 100, (), True)
    context, total = network.context(), np.zeros(network.flat_size, np.float32)
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
    context, generator = network.context(), np.random.default_rng(1)
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
    tensor = tensor_named(build_layout(MNIST, 1), "dense2.weight")
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
    rule = h.job.rule = make_rule(h.job.rule.config, "numpy")  # the reference: what the compiled rule does in registers
    calls: list[tuple[int, float]] = []
    apply = rule._apply_numpy

    def noted(current: Any, target: Any, state: Any, gradient: Any, numbers: Any) -> None:
        calls.append((target.ctypes.data, float(gradient[0])))
        apply(current, target, state, gradient, numbers)

    rule._apply_numpy = noted  # type: ignore[method-assign]
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
    result = run_result(run.core.run, {})
    assert result["connections_per_s"] * result["train_seconds"] == pytest.approx(756_000 * 100 * 2, rel=1e-4)
