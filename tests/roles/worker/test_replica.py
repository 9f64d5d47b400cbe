"""Shared weights, accrued gradients and factors of a replica, without network or threads."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.worker.core.foresight import Momentum
from adamctl.roles.worker.core.slots import Base
from adamctl.roles.worker.replica import Replica

MODEL = Model((6,), (Dense(5, "relu"), Softmax(3)))


@pytest.fixture
def network() -> Network:
    return Network(MODEL, 4, backend="numpy")


def make(network: Network, factors: tuple[int, ...] = (), n_push: int = 1, local: bool = True) -> Replica:
    return Replica(network, build_layout(MODEL, 1), 2, 4, n_push, 1, factors, local)


def one_step(network: Network, replica: Replica, context, lr: float = 0.5):
    generator = np.random.default_rng(5)
    images = generator.standard_normal((4, 6), np.float32)
    labels = np.array([0, 1, 2, 0], np.int32)
    slot = replica.begin_step(0)
    assert slot is not None
    network.step(context, replica.weight_views, images, labels)
    return slot, replica.end_step(0, slot, context, 4, lr, lr)


def nothing_contained(replica: Replica) -> Base:
    count = len(replica.layout.shards)
    return Base(np.zeros(count, np.int64), np.zeros(count, np.int64))


def test_a_step_is_accrued_and_applied_locally(network: Network) -> None:
    replica, context = make(network), network.context()
    replica.weights[:] = np.random.default_rng(1).standard_normal(len(replica.weights), np.float32)
    before = replica.weights.copy()
    slot, actions = one_step(network, replica, context)
    assert actions.push is slot
    np.testing.assert_array_equal(replica.gradient(slot), context.gradient)
    np.testing.assert_allclose(replica.weights, before - np.float32(0.5) * context.gradient, rtol=1e-6)


def test_accrued_factors_multiply_to_the_accrued_gradient(network: Network) -> None:
    layout = build_layout(MODEL, 1)
    weights = tuple(i for i, t in enumerate(layout.tensors) if t.name.endswith("weight"))
    replica, context = make(network, weights, n_push=3), network.context()
    replica.weights[:] = np.random.default_rng(1).standard_normal(len(replica.weights), np.float32)
    for _ in range(3):
        slot, _ = one_step(network, replica, context)
    for index, factors in replica.factors(slot).items():
        tensor = layout.tensors[index]
        accrued = replica.gradient(slot)[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape)
        assert factors.errors.shape[0] == 12
        np.testing.assert_allclose(factors.errors.T @ factors.activations, accrued, rtol=1e-4, atol=1e-5)


def test_fetched_parameters_get_the_work_they_lack(network: Network) -> None:
    replica, context = make(network), network.context()
    first, _ = one_step(network, replica, context)
    second, _ = one_step(network, replica, context)
    replica.fetched[:] = 3.0
    replica.install(nothing_contained(replica))
    expected = 3.0 - 0.5 * (replica.gradient(first) + replica.gradient(second))
    np.testing.assert_allclose(replica.weights, expected, rtol=1e-6)


def test_weights_are_ahead_of_fetched_parameters_by_what_is_pushed_before_the_next_gradient(network: Network) -> None:
    foresight = Momentum(0.5)
    replica = Replica(network, build_layout(MODEL, 1), 2, 4, 1, 1, (), False, foresight=foresight)
    count = len(replica.layout.shards)
    for _ in range(1000):
        foresight.told([2] * count)
    for number, (fetched, expected) in enumerate([(1.0, 1.0), (3.0, 3.0 + 1.5 * 2.0), (2.0, 2.0 - 1.5)]):
        replica.fetched[:] = fetched
        replica.install(Base(np.full(count, number), np.zeros(count, np.int64)))
        np.testing.assert_allclose(replica.weights, expected, rtol=1e-6)
    replica.install(Base(np.full(count, 2), np.zeros(count, np.int64)))
    np.testing.assert_allclose(replica.weights, 0.5, rtol=1e-6)


def test_fetched_parameters_that_contain_a_push_in_some_shards_lack_it_in_the_others(network: Network) -> None:
    replica, context = make(network), network.context()
    slot, _ = one_step(network, replica, context)
    count = len(replica.layout.shards)
    slot.sequences = np.ones(count, np.int64)
    contained = np.ones(count, np.int64)
    contained[1] = 0
    replica.fetched[:] = 1.0
    replica.install(Base(np.zeros(count, np.int64), contained))
    expected = np.ones_like(replica.weights)
    shard = replica.layout.shards[1]
    part = slice(shard.offset, shard.offset + shard.size)
    expected[part] -= 0.5 * replica.gradient(slot)[part]
    np.testing.assert_allclose(replica.weights, expected, rtol=1e-6)


def test_fetched_parameters_get_the_steps_that_are_not_counted_yet(network: Network) -> None:
    """Of those that are made together, the first may be accrued long before the last is."""
    replica = make(network, n_push=4)
    slot, accruing = replica.begin_step(0, 0.5), replica.accruing
    assert slot is not None and accruing is not None
    replica.gradient(slot)[:] = 1.0
    for filled, expected in ((0, 3.0), (1, 2.5)):
        accruing.filled[slot.index] = filled
        replica.fetched[:] = 3.0
        replica.install(nothing_contained(replica))
        np.testing.assert_array_equal(replica.weights, expected)
    assert replica.end_native_steps(0, 4, 16, 0.5, 0.5).push is slot
    replica.acknowledged(slot)
    assert replica.begin_step(0) is slot
    assert not accruing.filled[slot.index], "what it held was pushed"


def test_who_keeps_factors_accrues_in_python(network: Network) -> None:
    assert make(network, factors=(0,)).accruing is None
    without = make(network, local=False).accruing
    assert without is not None and without.weights is None


def test_who_waits_for_a_slot_is_told_when_a_push_is_answered_and_when_a_fetch_is_installed(network: Network) -> None:
    """A slot whose push is answered during a fetch is kept until that is installed."""
    told: list[SlotPlace | None] = []
    replica = Replica(
        network, build_layout(MODEL, 1), 1, 4, 1, 1, (), True, 1, freed=lambda: told.append(replica.try_step(0))
    )
    context = network.context()
    slot, _ = one_step(network, replica, context)
    replica.fetch_started()
    replica.acknowledged(slot)
    assert told == [None]
    replica.install(nothing_contained(replica))
    assert told == [None, SlotPlace(0, 0)]


def test_stop_wakes_a_thread_that_waits_for_a_slot(network: Network) -> None:
    replica, context = make(network), network.context()
    for _ in range(4):
        one_step(network, replica, context)
    replica.stop()
    assert replica.begin_step(0) is None


def test_fetched_parameters_are_installed_while_steps_begin_and_end(network: Network) -> None:
    """Native steps write whether a slot holds anything without the interpreter lock."""
    replica, stopping = make(network), threading.Event()
    replica._filled = np.zeros(1 << 21, np.int64)  # so many that they change while somebody looks
    address, size_bytes = replica._filled.ctypes.data, replica._filled.nbytes

    def write() -> None:
        byte = 0
        while not stopping.is_set():
            byte = 1 - byte
            ctypes.memset(address, byte, size_bytes)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(6):
            replica.fetch_started()
            replica.install(nothing_contained(replica))
    finally:
        stopping.set()
        writer.join()
