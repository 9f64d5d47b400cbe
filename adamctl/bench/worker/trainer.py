"""One replica that trains on synthetic examples, with the worker's own threads, slots and local updates.

It does everything that a step of `adamctl train` does on a worker's compute threads: batches through their queue,
forward, backward, clipping, accruing, applying to the shared weights without locks (Adam 3.2.2), keeping factors. It
omits the work of other threads and machines: nothing is read, pushed or fetched; a push counts as acknowledged at once.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from adamctl.config.experiment import Experiment
from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.step.network import Network
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.model.protocol import bytes_per_push
from adamctl.roles.worker.compute import Batch, BatchDone, ComputeThreads
from adamctl.roles.worker.replica import Replica
from adamctl.wire.messages import TrainTask

LEARNING_RATE = 1e-3  # low: learning from noise must not diverge; the cost is the same
BATCHES_AHEAD = 4  # per thread: as many steps per call as a worker that trains on MNIST
EXAMPLES_BYTES_MAX = 64 << 20
JOIN_S = 60.0


@dataclass(frozen=True)
class Rate:
    """The result of one round."""

    examples: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        return self.examples / self.seconds


class Trainer:
    """Threads of one replica, idle between rounds. `close` ends them.

    Attributes:
        connections: connections of the model, per example.
        is_native: whether a step is one native function.
    """

    def __init__(self, experiment: Experiment, threads: int, batch: int) -> None:
        model, train = experiment.model, experiment.train
        self.threads, self.batch = threads, batch
        self._network = Network(model, batch)
        self._network.compile()
        self.connections = sum(shape.connections for shape in self._network.shapes)
        layout = build_layout(model, 1)
        pushes = bytes_per_push(layout, 1, batch * train.steps_per_push, experiment.name)
        factors = tuple(push.tensor for push in pushes if push.protocol == "factors")
        local = experiment.local_learning_rate_factor() != 0.0
        self._replica = Replica(
            self._network,
            layout,
            threads,
            batch,
            train.steps_per_push,
            train.steps_per_fetch,
            factors,
            applies_locally=local,
        )
        for index, tensor in enumerate(layout.tensors):
            rows = initial_rows(tensor, index, 0, tensor.shape[0], experiment.seed)
            self._replica.weights[tensor.offset : tensor.offset + tensor.size] = rows.reshape(-1)
        self._batches = self._made_up(experiment.seed)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._deadline = 0.0
        self._in_flight = self._next = self._examples_done = 0
        self._failure: BaseException | None = None
        skip = bool(factors) and not local
        self.is_native = self._network.is_native(self._replica.weight_views, skip)
        self._compute = ComputeThreads(
            self._network,
            self._replica,
            threads,
            self._done,
            skip_dense_gradients=skip,
            clip_norm=experiment.optimizer.clip_norm,
        )
        self._compute.start()

    def run(self, seconds: float) -> Rate:
        """Trains for about `seconds`, to the end of the last batches, and returns the result."""
        with self._lock:
            self._examples_done = 0
            start = time.perf_counter()
            self._deadline = start + seconds
            for _ in range(self.threads * BATCHES_AHEAD):
                self._submit()
            while self._in_flight:
                self._idle.wait()
            if self._failure is not None:
                raise self._failure
            return Rate(self._examples_done, time.perf_counter() - start)

    def run_batches(self, count: int) -> float:
        """Trains on so many batches; returns the seconds that took."""
        with self._lock:
            start = time.perf_counter()
            self._deadline = 0.0
            for _ in range(count):
                self._submit()
            while self._in_flight:
                self._idle.wait()
            if self._failure is not None:
                raise self._failure
            return time.perf_counter() - start

    def close(self) -> None:
        self._compute.stop()
        self._compute.join(JOIN_S)

    def _made_up(self, seed: int) -> list[Batch]:
        """Returns enough batches to exceed the cache, within EXAMPLES_BYTES_MAX."""
        generator = np.random.default_rng(seed)
        shape = (self.batch, *self._network.model.input)
        count = max(2, min(64, EXAMPLES_BYTES_MAX // (4 * int(np.prod(shape)))))
        units = self._network.shapes[-1].output[0]
        batches = []
        for number in range(count):
            images = generator.standard_normal(shape, np.float32)
            labels = generator.integers(0, units, self.batch).astype(np.int32)
            task = TrainTask(number, 0, 0, self.batch, 0.0, 0.0)
            key = step_key(seed, 0, number * self.batch)
            batches.append(Batch(task, images, labels, LEARNING_RATE, LEARNING_RATE, key=key))
        return batches

    def _submit(self) -> None:
        """Gives the threads one more batch. Called with the lock held."""
        self._compute.submit(self._batches[self._next % len(self._batches)])
        self._next += 1
        self._in_flight += 1

    def _done(self, done: BatchDone) -> None:
        if done.actions is not None and done.actions.push is not None:
            self._replica.acknowledged(done.actions.push)
        with self._lock:
            self._in_flight -= 1
            if done.failure is not None:
                self._failure = done.failure
                self._in_flight = 0
            else:
                self._examples_done += self.batch
                if time.perf_counter() < self._deadline:
                    self._submit()
            if not self._in_flight:
                self._idle.notify_all()
