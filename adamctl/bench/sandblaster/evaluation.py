"""Images per second of threads that evaluate bundles, against those that train by Downpour, with the same steps.

Both are a worker's own threads on made-up examples: forward, backward, accruing (`adamctl.bench.worker.trainer`).
Downpour also does what it does of itself: local updates, factors. Both leave out what other threads and machines do:
nothing is read, pushed or pulled; a push counts as answered at once. Rounds alternate, so that both see the same
machine.
"""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import closing
from typing import NamedTuple

import numpy as np

from adamctl.bench.worker.trainer import EXAMPLES_BYTES_MAX, JOIN_S, Rate, Trainer
from adamctl.config.experiment import Experiment
from adamctl.kernels.step.network import Network
from adamctl.model.initial import initial_rows
from adamctl.roles.coordinator.core.bundles import cut_bundles
from adamctl.roles.worker.core.bundle_work import HELD_PER_THREAD, Held, portions_of
from adamctl.roles.worker.sandblaster.threads import Bundle, BundleDone, BundleThreads
from adamctl.wire.messages import BundleName, BundleTask

WARM_UP_S = 0.3


class EvaluationSpeed(NamedTuple):
    """What the threads of one worker did: medians over the slices, and of the ratios of each pair.

    Attributes:
        portions: of a bundle.
        processor_ratio: of images in a second of processor time, which other programs on these cores change little.
        spread: the first and the third quartile of the pairs' ratios.
    """

    portions: int
    evaluation_images_per_s: float
    downpour_images_per_s: float
    ratio_vs_downpour: float
    processor_ratio: float
    spread: tuple[float, float]


class Evaluator:
    """Threads of one worker that evaluate bundles over and over, idle between rounds. `close` ends them.

    `portions`: of a bundle, as a coordinator would cut `examples`.
    """

    def __init__(self, experiment: Experiment, threads: int, batch: int, examples: int) -> None:
        self._network = Network(experiment.model, batch)
        self._network.compile()
        connections = sum(shape.connections for shape in self._network.shapes)
        first = cut_bundles(examples, batch, connections, self._network.layout.parameter_count)[0]
        self.portions = -(-first.examples // batch)
        self._count = threads
        self._threads = BundleThreads(self._network, threads, self._done)
        for index, tensor in enumerate(self._network.tensors):
            rows = initial_rows(tensor, index, 0, tensor.shape[0], experiment.seed)
            self._threads.parameters[tensor.offset : tensor.offset + tensor.size] = rows.reshape(-1)
        self._bundles = self._made_up(experiment.seed, first.examples, batch)
        self._idle = threading.Condition()
        self._deadline_s = 0.0
        self._in_flight = self._next = self._examples_done = 0
        self._failure: BaseException | None = None
        self._threads.start()

    def run(self, seconds: float) -> Rate:
        """Evaluates for about `seconds`, to the end of the last bundles, and returns the result."""
        with self._idle:
            self._examples_done = 0
            start_s = time.perf_counter()
            self._deadline_s = start_s + seconds
            for _ in range(HELD_PER_THREAD * self._count):
                self._submit()
            while self._in_flight:
                self._idle.wait()
            if self._failure is not None:
                raise self._failure
            return Rate(self._examples_done, time.perf_counter() - start_s)

    def close(self) -> None:
        self._threads.stop()
        self._threads.join(JOIN_S)
        self._threads.memory.close()

    def _made_up(self, seed: int, examples: int, batch: int) -> list[Bundle]:
        """Returns enough bundles to exceed the cache, within EXAMPLES_BYTES_MAX unless one is larger."""
        generator = np.random.default_rng(seed)
        shape = (examples, *self._network.model.input)
        units = self._network.shapes[-1].output[0]
        bundles = []
        for number in range(max(1, min(64, EXAMPLES_BYTES_MAX // (4 * int(np.prod(shape)))))):
            task = BundleTask(BundleName(1, 0, number), 0, examples, 1.0, "t")
            images = generator.standard_normal(shape, np.float32)
            labels = generator.integers(0, units, examples).astype(np.int32)
            bundles.append(Bundle(Held(task), portions_of(task, batch), images, labels))
        return bundles

    def _submit(self) -> None:
        """Gives the threads one more bundle. Called with the lock held."""
        self._threads.submit(self._bundles[self._next % len(self._bundles)])
        self._next += 1
        self._in_flight += 1

    def _done(self, done: BundleDone) -> None:
        self._threads.free(done.gradient)
        with self._idle:
            self._in_flight -= 1
            if done.failure is not None:
                self._failure, self._in_flight = done.failure, 0
            else:
                self._examples_done += len(done.bundle.labels)
                if time.perf_counter() < self._deadline_s:
                    self._submit()
            if not self._in_flight:
                self._idle.notify_all()


class _Slice(NamedTuple):
    """What one side did in one slice."""

    images_per_s: float
    images_per_processor_s: float


def measure_evaluation(
    experiment: Experiment, threads: int, batch: int, examples: int, *, slices: int = 45, seconds: float = 0.1
) -> EvaluationSpeed:
    """Measures both in turns, in short slices: what disturbs one side disturbs its neighbour.

    Args:
        experiment: the source of the model, and of what Downpour does.
        batch: examples of a step, and of a portion.
        examples: of the whole batch; with the model it decides about bundles.
        slices, seconds: number and length of each side's slices.
    """
    pairs: list[tuple[_Slice, _Slice]] = []
    with (
        closing(Evaluator(experiment, threads, batch, examples)) as evaluator,
        closing(Trainer(experiment, threads, batch)) as trainer,
    ):
        for side in (evaluator, trainer):
            side.run(WARM_UP_S)
        for number in range(slices):
            if number % 2:  # whoever is first has no advantage
                mine, theirs = _run(evaluator, seconds), _run(trainer, seconds)
            else:
                theirs, mine = _run(trainer, seconds), _run(evaluator, seconds)
            pairs.append((mine, theirs))
    ratios = [mine.images_per_s / theirs.images_per_s for mine, theirs in pairs]
    return EvaluationSpeed(
        evaluator.portions,
        statistics.median(mine.images_per_s for mine, _ in pairs),
        statistics.median(theirs.images_per_s for _, theirs in pairs),
        statistics.median(ratios),
        statistics.median(mine.images_per_processor_s / theirs.images_per_processor_s for mine, theirs in pairs),
        (float(np.quantile(ratios, 0.25)), float(np.quantile(ratios, 0.75))),
    )


def _run(side: Evaluator | Trainer, seconds: float) -> _Slice:
    """All threads of this process are the side's, or sleep."""
    began_s = time.process_time()
    rate = side.run(seconds)
    return _Slice(rate.images_per_s, rate.examples / max(time.process_time() - began_s, 1e-9))
