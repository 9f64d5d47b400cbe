"""Threads that do whole bundles: the gradient of one is that of its portions, one after the other, to the last bit."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from adamctl.kernels import native
from adamctl.kernels.backend import installed
from adamctl.kernels.blas import blas
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Model, Softmax
from adamctl.roles.worker.core.bundle_work import Held, portions_of, weight_of
from adamctl.roles.worker.sandblaster.threads import GRADIENTS_PER_THREAD, Bundle, BundleDone, BundleThreads
from adamctl.wire.messages import BundleName, BundleTask

MODEL = Model((6,), (Dense(5, "relu"), Softmax(3)))
BATCH, EXAMPLES, PER_BUNDLE = 4, 46, 12
BACKENDS = [
    "numpy",
    pytest.param(
        "numba",
        marks=pytest.mark.skipif(
            "numba" not in installed() or not native.can_compile() or blas() is None, reason="no compiler or BLAS here"
        ),
    ),
]


class Examples:
    """Examples, parameters, and bundles of them; the last one has portions of 4, 4 and 2 examples."""

    def __init__(self, backend: str) -> None:
        generator = np.random.default_rng(4)
        self.network = Network(MODEL, BATCH, backend=backend)
        self.images = generator.standard_normal((EXAMPLES, 6), np.float32)
        self.labels = generator.integers(0, 3, EXAMPLES).astype(np.int32)
        self.parameters = generator.standard_normal(self.network.flat_size, np.float32)

    def bundles(self) -> list[Bundle]:
        bundles = []
        for number, start in enumerate(range(0, EXAMPLES, PER_BUNDLE)):
            stop = min(start + PER_BUNDLE, EXAMPLES)
            task = BundleTask(BundleName(1, 0, number), start, stop, (stop - start) / EXAMPLES, "t")
            portions = portions_of(task, BATCH)
            bundles.append(Bundle(Held(task), portions, self.images[start:stop], self.labels[start:stop]))
        return bundles

    def one_after_the_other(self, bundle: Bundle) -> tuple[bytes, float]:
        """Returns the gradient and the loss of a bundle, computed in the simplest way."""
        context, total, losses = self.network.context(), np.zeros(self.network.flat_size, np.float32), 0.0
        for start in range(0, len(bundle.labels), BATCH):
            images, labels = bundle.images[start : start + BATCH], bundle.labels[start : start + BATCH]
            result = self.network.step(context, self.network.views(self.parameters), images, labels)
            total += context.gradient * np.float32(len(labels) / BATCH)
            losses += result.loss * len(labels)
        return total.tobytes(), losses


class Started:
    def __init__(self, examples: Examples, threads: int) -> None:
        self.done: queue.SimpleQueue[BundleDone] = queue.SimpleQueue()
        self.threads = BundleThreads(examples.network, threads, self.done.put)
        self.threads.parameters[:] = examples.parameters

    def take(self) -> tuple[int, bytes, float]:
        """Returns number, gradient and loss of the next bundle that is done, and gives its gradient back."""
        done = self.done.get(timeout=20)
        assert done.failure is None
        gradient = self.threads.gradients[done.gradient].tobytes()
        self.threads.free(done.gradient)
        return done.bundle.held.task.name.bundle, gradient, done.loss_sum


@contextmanager
def started(examples: Examples, threads: int) -> Iterator[Started]:
    made = Started(examples, threads)
    made.threads.start()
    try:
        yield made
    finally:
        made.threads.stop()
        made.threads.join(20)
        made.threads.memory.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bundle_has_the_bits_of_its_portions_one_after_the_other_whatever_the_threads(backend: str) -> None:
    examples = Examples(backend)
    bundles = examples.bundles()
    expected = {bundle.held.task.name.bundle: examples.one_after_the_other(bundle) for bundle in bundles}
    for threads in (1, 3):
        with started(examples, threads) as run:
            for _ in range(3):
                for bundle in (*bundles, *reversed(bundles)):
                    run.threads.submit(bundle)
                found = [run.take() for _ in range(2 * len(bundles))]
                for number, gradient, loss_sum in found:
                    assert gradient == expected[number][0], f"bundle {number}, {threads} threads"
                    assert loss_sum == pytest.approx(expected[number][1], rel=1e-15)
                assert len({loss for number, _, loss in found if number == 0}) == 1
            assert run.threads.portions_done == 3 * 2 * 12


def test_the_gradient_is_that_of_the_mean_over_the_bundle() -> None:
    """Checked with the loss itself, by differences."""
    examples = Examples("numpy")
    last = examples.bundles()[-1]
    assert [portion.share for portion in last.portions] == [1, 1, 0.5]
    with started(examples, 1) as run:
        run.threads.submit(last)
        _, found, loss_sum = run.take()
    gradient = np.frombuffer(found, np.float32).astype(np.float64) * weight_of(last.held.task, BATCH)
    context = examples.network.context()

    def mean_loss(parameters: np.ndarray) -> float:
        return examples.network.evaluate(context, parameters, last.images, last.labels)[0] / len(last.labels)

    assert loss_sum / len(last.labels) == pytest.approx(mean_loss(examples.parameters), rel=1e-6)
    for index in np.argsort(-np.abs(gradient))[:5].tolist():
        step = np.zeros_like(examples.parameters)
        step[index] = 1e-2
        slope = (mean_loss(examples.parameters + step) - mean_loss(examples.parameters - step)) / 2e-2
        assert gradient[index] == pytest.approx(last.held.task.weight * slope, rel=2e-2)


def test_a_bundle_that_is_given_up_is_left_between_portions() -> None:
    examples = Examples("numpy")
    first, second = examples.bundles()[:2]
    first.held.given_up = True
    with started(examples, 1) as run:
        run.threads.submit(first)
        run.threads.submit(second)
        assert run.take()[0] == 0
        assert run.take()[:2] == (1, examples.one_after_the_other(second)[0])
        assert run.threads.portions_done == len(second.portions)


def test_a_thread_waits_while_all_of_its_gradients_are_pushed() -> None:
    examples = Examples("numpy")
    bundles = examples.bundles()
    with started(examples, 1) as run:
        for bundle in bundles:
            run.threads.submit(bundle)
        pushed = [run.done.get(timeout=20) for _ in range(GRADIENTS_PER_THREAD)]
        with pytest.raises(queue.Empty):
            run.done.get(timeout=0.05)
        expected = examples.one_after_the_other(bundles[1])[0]
        run.threads.free(pushed[0].gradient)
        assert run.done.get(timeout=20).gradient == pushed[0].gradient
        assert run.threads.gradients[pushed[1].gradient].tobytes() == expected, "it is still as it was"


def test_a_failure_is_reported_with_its_bundle() -> None:
    examples = Examples("numpy")
    examples.labels[:] = 7
    with started(examples, 1) as run:
        run.threads.submit(examples.bundles()[0])
        assert isinstance(run.done.get(timeout=20).failure, Exception)
