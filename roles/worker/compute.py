"""Compute threads: each takes batches from a common queue and trains shared weights without locks (Adam 3.2.1,
3.2.2)."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from threadpoolctl import threadpool_limits

from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.native import Word
from adamctl.kernels.operation import Array
from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Context, Network
from adamctl.kernels.step.steps import CLIPPED, STEPS_MAX, StepMade, Steps
from adamctl.kernels.threads import Binder
from adamctl.roles.worker.core.batches import Task
from adamctl.roles.worker.core.slots import StepActions
from adamctl.roles.worker.pace import StepGate
from adamctl.roles.worker.replica import Replica
from adamctl.wire.messages import TrainTask

TOGETHER_S = 0.03  # how long a thread may train without a check: it must notice a stop, and share waiting batches
NOTHING = StepActions(None, False)
NOT_MADE: StepMade = (0.0, 0, 0)
NO_SUMS: tuple[float, ...] = ()


class Countdown(Protocol):
    """Counts the finished batches of a task."""

    def finish(self) -> bool:
        """Counts one; returns True for the last one."""


class Batch(NamedTuple):
    """What a thread works on. The arrays are valid until the batch is reported done.

    `key` decides what is left to chance in its step (`adamctl.kernels.numeric.mix.step_key`).
    """

    task: Task
    images: Array
    labels: Answers
    learning_rate: float = 0.0
    local_learning_rate: float = 0.0
    siblings: Countdown | None = None
    key: int = 0


class BatchDone(NamedTuple):
    """The result of a batch. `wait_s` is how long the thread waited for it; a `failure` ends the worker.

    `sums`: as in `TaskReport`.
    """

    batch: Batch
    loss_sum: float
    correct: int
    compute_s: float
    wait_s: float
    actions: StepActions | None = None
    failure: BaseException | None = None
    sums: tuple[float, ...] = ()


class _Own(NamedTuple):
    """What only one thread uses. `steps`: the native steps, if the whole step can run natively."""

    context: Context
    clip: LayerNormClip | None
    steps: Steps | None


class ComputeThreads:
    """The threads of one replica. They call `done` after every batch; it must only pass the result on."""

    def __init__(
        self,
        network: Network,
        replica: Replica,
        threads: int,
        done: Callable[[BatchDone], None],
        skip_dense_gradients: bool,
        clip_norm: float | None = None,
        gate: StepGate | None = None,
    ) -> None:
        """`gate` is called before every step."""
        self._network, self._replica, self._done = network, replica, done
        self._skip_dense_gradients, self._sends_factors = skip_dense_gradients, bool(replica.factor_tensors)
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._clip_norm, self._gate = clip_norm, gate
        self._binder = Binder(threads)
        self._limits = threadpool_limits(limits=1, user_api="blas")
        self._count = threads
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"compute-{index}", daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch) -> None:
        self._queue.put(batch)

    def stop(self) -> None:
        """Stops the threads after their current work; drops batches that are still queued."""
        self._replica.stop()
        if self._gate is not None:
            self._gate.stop()
        while not self._queue.empty():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self, thread: int) -> None:
        own = self._prepare(thread)
        clock, taken = time.perf_counter, self._queue.get
        idle_since, step_s = clock(), TOGETHER_S
        following: Batch | None = None
        while (batch := following or taken()) is not None:
            following, started, sums = None, clock(), NO_SUMS
            wait_s, batches = started - idle_since, [batch]
            try:
                if isinstance(own, BaseException):
                    raise own
                steps = own.steps
                if steps is not None and _trains(steps, batch):
                    batches, following = self._together(thread, steps, batch, int(TOGETHER_S / step_s))
                    made, actions = self._make_steps(thread, own, steps, batches)
                elif isinstance(batch.task, TrainTask):
                    made, actions = self._step(thread, own, batch)
                else:
                    (made, sums), actions = self._evaluate(own, batch), None
            except BaseException as failure:  # reported: the event loop ends the worker with it
                self._done(BatchDone(batch, 0.0, 0, 0.0, 0.0, None, failure))
                return
            step_s = (clock() - started) / len(batches)
            last = batches[-1]
            for batch, (loss_sum, correct, _) in zip(batches, made, strict=True):
                its = actions if batch is last or actions is None else NOTHING
                self._done(BatchDone(batch, loss_sum, correct, step_s, wait_s, its, sums=sums))
                wait_s = 0.0
            idle_since = clock()  # reporting is no waiting for a batch, however long a busy machine makes it

    def _together(self, thread: int, steps: Steps, first: Batch, limit: int) -> tuple[list[Batch], Batch | None]:
        """Returns batches to train on before anything else is due, and a batch taken that does not belong to them.

        They are at most this thread's share of the waiting batches, and no more than `limit`.
        """
        get, batches = self._queue.get_nowait, [first]
        if self._gate is not None:
            return batches, None
        share = 1 + self._queue.qsize() // self._count
        for _ in range(1, min(limit, share, STEPS_MAX, self._replica.core.steps_until_actions(thread))):
            try:
                batch = get()
            except queue.Empty:
                break
            if batch is None:
                self._queue.put(None)
                break
            if not _trains(steps, batch):
                return batches, batch
            batches.append(batch)
        return batches, None

    def _make_steps(
        self, thread: int, own: _Own, steps: Steps, batches: list[Batch]
    ) -> tuple[list[StepMade], StepActions | None]:
        gate, count, last = self._gate, len(batches), batches[-1]
        if gate is not None and not gate.begin():
            return [NOT_MADE] * count, None
        slot = self._replica.begin_step(thread, last.local_learning_rate)
        if slot is None:
            return [NOT_MADE] * count, None
        made = steps.run(batches, slot.index)
        if own.clip is not None:
            for _, _, clipped in made:
                own.clip.clipped += clipped
        examples = count * len(last.labels)
        actions = self._replica.end_native_steps(thread, count, examples, last.learning_rate, last.local_learning_rate)
        if gate is not None:
            gate.finish()
        return made, actions

    def _prepare(self, thread: int) -> _Own | BaseException:
        """Binds the calling thread, then makes its context, so that it lies on the thread's node (Adam 3.2.1, 3.3.1).

        Returns a failure, which is reported with the first batch.
        """
        try:
            self._binder.bind(thread)
            context = self._network.context()
            clip = None if self._clip_norm is None else LayerNormClip(self._network, context, self._clip_norm)
            steps = self._native_steps(context, clip)
            if steps is None:
                skip = self._skip_dense_gradients
                self._network.prepare(context, self._replica.weight_views, skip, clip.native(skip) if clip else ())
            return _Own(context, clip, steps)
        except BaseException as failure:
            return failure

    def _native_steps(self, context: Context, clip: LayerNormClip | None) -> Steps | None:
        accruing = self._replica.accruing
        clipping = [] if clip is None else clip.native(self._skip_dense_gradients, Word(CLIPPED))
        if accruing is None or self._skip_dense_gradients or bool(clip) != bool(clipping):
            return None
        return self._network.native_steps(context, self._replica.weight_views, accruing, clipping)

    def _evaluate(self, own: _Own, batch: Batch) -> tuple[list[StepMade], tuple[float, ...]]:
        found = self._network.tally(own.context, self._replica.snapshot_views, batch.images, batch.labels)
        return [(found.loss_sum, found.correct, 0)], found.sums

    def _step(self, thread: int, own: _Own, batch: Batch) -> tuple[list[StepMade], StepActions | None]:
        context, clip, _ = own
        if self._gate is not None and not self._gate.begin():
            return [NOT_MADE], None
        slot = self._replica.begin_step(thread)
        if slot is None:
            return [NOT_MADE], None
        count = len(batch.labels)
        skip = self._skip_dense_gradients
        result = self._network.step(context, self._replica.weight_views, batch.images, batch.labels, skip, batch.key)
        if clip is not None:
            if result.after:
                clip.settle(self._sends_factors)
            else:
                clip.apply(self._skip_dense_gradients, self._sends_factors)
        actions = self._replica.end_step(thread, slot, context, count, batch.learning_rate, batch.local_learning_rate)
        if self._gate is not None:
            self._gate.finish()
        return [(result.loss * count, result.correct, 0)], actions


def _trains(steps: Steps, batch: Batch) -> bool:
    return isinstance(batch.task, TrainTask) and steps.take(batch.images, batch.labels)
