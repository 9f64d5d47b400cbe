"""Compute threads on real memory: what a batch does to the shared weights, and that a thread's failure is reported."""

from __future__ import annotations

import queue

import numpy as np
import pytest

from adamctl.kernels.network import Network
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.worker.compute import Batch, BatchDone, ComputeThreads
from adamctl.roles.worker.replica import Replica
from adamctl.wire.messages import TrainTask

MODEL = Model((6,), (Dense(5, "relu"), Softmax(3)))
BATCH = 4
RATE = 0.5


def train_one_batch(
    clip_norm: float | None, factored: bool, labels: tuple[int, ...] = (0, 1, 2, 0)
) -> tuple[Replica, np.ndarray, BatchDone]:
    """One thread, one batch: returns the replica, its weights before, and what the thread reported."""
    network, layout = Network(MODEL, BATCH, backend="numpy"), build_layout(MODEL, 1)
    factors = tuple(i for i, t in enumerate(layout.tensors) if t.name.endswith("weight")) if factored else ()
    replica = Replica(network, layout, 1, BATCH, 2, 2, factors, applies_locally=not factored)
    generator = np.random.default_rng(2)
    replica.weights[:] = generator.standard_normal(len(replica.weights), np.float32)
    before = replica.weights.copy()
    reported: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
    threads = ComputeThreads(network, replica, 1, 1, reported.put, skip_dense_gradients=factored, clip_norm=clip_norm)
    threads.start()
    try:
        images = generator.standard_normal((BATCH, 6), np.float32)
        task = TrainTask(1, 0, 0, BATCH, 0.0, 0.1)
        threads.submit(Batch(task, images, np.array(labels, np.int32), RATE, RATE))
        done = reported.get(timeout=20)
    finally:
        threads.stop()
        threads.join(20)
    return replica, before, done


@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_the_local_step_of_a_layer_is_no_longer_than_the_limit(clip_norm: float | None) -> None:
    replica, before, done = train_one_batch(clip_norm, factored=False)
    assert done.failure is None
    assert done.loss_sum > 0
    moved = replica.weights - before
    for layer in range(2):
        parts = [t for t in replica.layout.tensors if t.layer == layer]
        norm = np.sqrt(sum(float((moved[t.offset : t.offset + t.size] ** 2).sum()) for t in parts))
        if clip_norm is None:
            assert norm > RATE * 0.05
        else:
            assert norm == pytest.approx(RATE * clip_norm, rel=1e-4)


def test_accrued_factors_are_clipped_too() -> None:
    replica, _, done = train_one_batch(0.01, factored=True)
    assert done.failure is None
    [slot] = replica.flush()
    gradient = replica.gradient(slot)
    for index, factors in replica.factors(slot).items():
        weight, bias = replica.layout.tensors[index], replica.layout.tensors[index + 1]
        squares = float(((factors.errors.T @ factors.activations) ** 2).sum())
        squares += float((gradient[bias.offset : bias.offset + bias.size] ** 2).sum())
        assert np.sqrt(squares) == pytest.approx(0.01, rel=1e-4), weight.name


def test_a_thread_that_fails_reports_why() -> None:
    _, _, done = train_one_batch(None, factored=False, labels=(0, 1, 2, 3))
    assert isinstance(done.failure, ValueError)
    assert "3" in str(done.failure)
