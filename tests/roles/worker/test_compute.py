"""Compute threads on real memory: what a batch does to the shared weights, and that a thread's failure is reported."""

from __future__ import annotations

import queue

import numpy as np
import pytest

from adamctl.kernels import native
from adamctl.kernels.backend import installed
from adamctl.kernels.blas import blas
from adamctl.kernels.step.network import Network
from adamctl.kernels.step.steps import Steps
from adamctl.model.description import Dense, Dropout, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.worker import compute
from adamctl.roles.worker.compute import Batch, BatchDone, ComputeThreads
from adamctl.roles.worker.pace import StepGate
from adamctl.roles.worker.replica import Replica
from adamctl.wire.messages import EvaluateTask, TrainTask

MODEL = Model((6,), (Dense(5, "relu"), Dropout(0.4), Softmax(3)))
BATCH = 4
RATE = 0.5
N_PUSH, N_FETCH = 4, 6

needs_native = pytest.mark.skipif(
    "numba" not in installed() or not native.can_compile() or blas() is None, reason="no compiler or BLAS here"
)


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
    threads = ComputeThreads(network, replica, 1, reported.put, skip_dense_gradients=factored, clip_norm=clip_norm)
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
    for layer in (0, 2):
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


class Together:
    """A numba replica whose threads find all batches waiting; `sizes` are how many steps each native call made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gate: StepGate | None = None) -> None:
        self.sizes: list[int] = []
        monkeypatch.setattr(compute, "TOGETHER_S", 1e3)  # however slow the machine is
        run = Steps.run
        monkeypatch.setattr(
            Steps, "run", lambda own, steps, slot: self.sizes.append(len(steps)) or run(own, steps, slot)
        )
        network, layout = Network(MODEL, BATCH, backend="numba"), build_layout(MODEL, 1)
        self.replica = Replica(network, layout, 1, BATCH, N_PUSH, N_FETCH, (), True)
        generator = np.random.default_rng(2)
        self.replica.weights[:] = generator.standard_normal(len(self.replica.weights), np.float32)
        self.reported: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
        self.threads = ComputeThreads(
            network, self.replica, 1, self.reported.put, skip_dense_gradients=False, clip_norm=0.5, gate=gate
        )
        self._generator = generator

    def batch(self, size: int = BATCH, label: int = 2, evaluates: bool = False) -> Batch:
        task = EvaluateTask(1, 0, "test", 0, size) if evaluates else TrainTask(1, 0, 0, size, 0.0, 0.1)
        images = self._generator.standard_normal((size, 6), np.float32)
        key = int(self._generator.integers(2**63))
        return Batch(task, images, np.full(size, label, np.int32), RATE, RATE, key=key)

    def work(self, batches: list[Batch]) -> list[BatchDone]:
        """Returns the reports until a failure."""
        for batch in batches:
            self.threads.submit(batch)
        self.threads.start()
        try:
            done = [self.reported.get(timeout=20)]
            while len(done) < len(batches) and done[-1].failure is None:
                done.append(self.reported.get(timeout=20))
        finally:
            self.threads.stop()
            self.threads.join(20)
        return done


@needs_native
def test_batches_that_wait_are_trained_on_together_up_to_the_next_push_or_fetch(monkeypatch) -> None:
    together = Together(monkeypatch)
    batches = [together.batch() for _ in range(12)]
    before = together.replica.weights.copy()
    done = together.work(batches)
    assert [one.batch for one in done] == batches
    assert [number for number, one in enumerate(done, 1) if one.actions and one.actions.push is not None] == [4, 8, 12]
    assert [number for number, one in enumerate(done, 1) if one.actions and one.actions.fetch] == [6, 12]
    # The first is alone: how long a step takes is not known.
    assert together.sizes == [1, 3, 2, 2, 4]
    monkeypatch.setattr(Network, "native_steps", lambda *_: None)
    alone = Together(monkeypatch)
    expected = alone.work(batches)
    assert alone.sizes == [] and not np.array_equal(before, alone.replica.weights)
    np.testing.assert_array_equal(together.replica.weights, alone.replica.weights)
    losses = [one.loss_sum for one in done]
    assert losses == pytest.approx([one.loss_sum for one in expected])
    others = Together(monkeypatch).work([batch._replace(key=batch.key + 1) for batch in batches])
    assert losses != pytest.approx([one.loss_sum for one in others]), "the key decides what is dropped"
    assert [one.correct for one in done] == [one.correct for one in expected]


@needs_native
def test_what_is_trained_on_together_is_compiled_once(monkeypatch) -> None:
    prepared: list[object] = []
    monkeypatch.setattr(Network, "prepare", lambda *arguments: prepared.append(arguments))
    together = Together(monkeypatch)
    (done,) = together.work([together.batch()])
    assert done.failure is None and together.sizes == [1] and not prepared


@needs_native
def test_other_batches_among_them_keep_their_place(monkeypatch) -> None:
    together = Together(monkeypatch)
    batches = [together.batch(), together.batch(), together.batch(3), together.batch(evaluates=True), together.batch()]
    done = together.work(batches)
    assert [one.batch for one in done] == batches
    assert [one.actions is None for one in done] == [False, False, False, True, False]
    assert together.sizes == [1, 1, 1]


@needs_native
def test_a_failure_among_several_is_reported(monkeypatch) -> None:
    together = Together(monkeypatch)
    batches = [together.batch(), together.batch(), together.batch(label=3), together.batch()]
    failed = together.work(batches)[-1]
    assert isinstance(failed.failure, ValueError)
    assert "3" in str(failed.failure)


@needs_native
def test_whose_pace_is_watched_makes_one_step_at_a_time(monkeypatch) -> None:
    gate = StepGate(lambda: None)
    gate.allow(5, 0)
    together = Together(monkeypatch, gate)
    assert len(together.work([together.batch() for _ in range(5)])) == 5
    assert together.sizes == [1] * 5
    assert gate.stand().done == 5


@needs_native
def test_reporting_is_no_waiting(monkeypatch) -> None:
    """By a clock that advances only while a batch is reported: all batches are there when the thread begins."""
    now_s = [0.0]
    monkeypatch.setattr(compute.time, "perf_counter", lambda: now_s[0])
    network, layout = Network(MODEL, BATCH, backend="numpy"), build_layout(MODEL, 1)
    replica = Replica(network, layout, 1, BATCH, 2, 2, (), applies_locally=True)
    reported: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()

    def report(done: BatchDone) -> None:
        now_s[0] += 100.0
        reported.put(done)

    threads = ComputeThreads(network, replica, 1, report, skip_dense_gradients=False)
    images, labels = np.ones((BATCH, 6), np.float32), np.zeros(BATCH, np.int32)
    for number in range(3):
        threads.submit(Batch(TrainTask(number, 0, 0, BATCH, 0.0, 0.1), images, labels, RATE, RATE))
    threads.start()
    try:
        assert [reported.get(timeout=20).wait_s for _ in range(3)] == [0.0, 0.0, 0.0]
    finally:
        threads.stop()
        threads.join(20)


def test_threads_that_stop_drop_what_waits(monkeypatch) -> None:
    together = Together(monkeypatch)
    for _ in range(3):
        together.threads.submit(together.batch())
    together.threads.stop()
    together.threads.start()
    together.threads.join(20)
    assert together.reported.empty()
