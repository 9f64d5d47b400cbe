"""Compute threads of a batch algorithm: each does a whole bundle, portion after portion (DistBelief 4.2, Sandblaster).

All read the same parameters, and none changes them. A thread adds the gradients of a bundle's portions up in memory of
its own, in order and in float32, each a mean over its portion; a shorter last one by its share. What comes out depends
on the bundle and the parameters alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.operation import Array
from adamctl.kernels.step.network import Context, Network, Views
from adamctl.kernels.step.steps import STEPS_MAX, Accruing, Steps
from adamctl.kernels.threads import Binder
from adamctl.model.tally import Tally
from adamctl.net.shared_memory import SharedMemory, array_bytes
from adamctl.roles.worker.compute import TOGETHER_S
from adamctl.roles.worker.core.bundle_work import Held, Portion

GRADIENTS_PER_THREAD = 3
"""One that is computed while two are pushed: a push of a small bundle may take longer than the next bundle."""


class Bundle(NamedTuple):
    """What a thread works on: `images` [n, *input shape] and `labels` [n] of all portions, valid until it is done."""

    held: Held
    portions: Sequence[Portion]
    images: Array
    labels: Answers


class BundleDone(NamedTuple):
    """The result of a bundle.

    Attributes:
        gradient: which of the threads' gradients it is in, to be given back with `free`.
        loss_sum: over its examples, summed in order in float64.
        compute_s, wait_s: the time it took, and the time for which the thread had waited for it.
        failure: ends the worker.
    """

    bundle: Bundle
    gradient: int
    loss_sum: float
    compute_s: float
    wait_s: float
    failure: BaseException | None = None


class HeldOut(NamedTuple):
    """Examples of a held-out split, `images` [n, *input shape] and `labels` [n]; `views` of the parameters.

    `done` is called by the thread with what was added up over them, or with a failure.
    """

    views: Views
    images: Array
    labels: Answers
    done: Callable[[Tally | BaseException], None]


class PortionStep(NamedTuple):
    """A portion for native steps; nothing is applied locally, and nothing is left to chance."""

    images: Array
    labels: Answers
    local_learning_rate: float = 0.0
    key: int = 0


class _Own(NamedTuple):
    """What only one thread uses. `steps`: the native steps, if a whole step can run natively."""

    context: Context
    steps: Steps | None


class BundleThreads:
    """The threads of one worker. They call `done` after every bundle; it must only pass the result on.

    Attributes:
        memory: of what is here, for servers on this machine.
        parameters: flat vector, to be changed only while no thread has a bundle.
        gradients: flat vectors, GRADIENTS_PER_THREAD for each thread.
    """

    def __init__(self, network: Network, threads: int, done: Callable[[BundleDone], None]) -> None:
        """Raises MemoryError: the system does not have that much memory."""
        self._network, self._done = network, done
        count = threads * GRADIENTS_PER_THREAD
        self.memory = SharedMemory((1 + count) * array_bytes(network.flat_size))
        self.parameters = self.memory.array(network.flat_size)
        self.gradients = [self.memory.array(network.flat_size) for _ in range(count)]
        self._views = network.views(self.parameters)
        self._filled = np.zeros(count, np.int64)
        self._accrual = Accrual(network.backend)
        self._queue: queue.SimpleQueue[Bundle | HeldOut | None] = queue.SimpleQueue()
        self._free: list[queue.SimpleQueue[int | None]] = [queue.SimpleQueue() for _ in range(threads)]
        for gradient in range(count):
            self.free(gradient)
        self._portions_done = [0] * threads
        self._binder = Binder(threads)
        self._limits = threadpool_limits(limits=1, user_api="blas")
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"bundles-{index}", daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, bundle: Bundle | HeldOut) -> None:
        self._queue.put(bundle)

    def free(self, gradient: int) -> None:
        """Gives a gradient back: it is pushed, or not wanted."""
        self._free[gradient // GRADIENTS_PER_THREAD].put(gradient)

    def stop(self) -> None:
        """Stops the threads after their current bundles; give those up first. Drops what is queued."""
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        for free in self._free:
            self._queue.put(None)
            free.put(None)

    @property
    def portions_done(self) -> int:
        return sum(self._portions_done)

    def join(self, timeout_s: float) -> None:
        for thread in self._threads:
            thread.join(timeout_s)

    # --- one thread --------------------------------------------------------------------------------------------------

    def _run(self, thread: int) -> None:
        own = self._prepare(thread)
        clock, idle_since = time.perf_counter, time.perf_counter()
        while (bundle := self._queue.get()) is not None:
            if isinstance(bundle, HeldOut):
                tally = self._evaluate(own, bundle)
                self._portions_done[thread] += 1
                bundle.done(tally)
                continue
            gradient = self._free[thread].get()
            if gradient is None:
                return
            started = clock()
            try:
                if isinstance(own, BaseException):
                    raise own
                loss_sum = self._compute(thread, own, bundle, gradient)
            except BaseException as failure:  # reported: the event loop ends the worker with it
                self._done(BundleDone(bundle, gradient, 0.0, 0.0, 0.0, failure))
                return
            wait_s, idle_since = started - idle_since, clock()
            self._done(BundleDone(bundle, gradient, loss_sum, idle_since - started, wait_s))

    def _evaluate(self, own: _Own | BaseException, examples: HeldOut) -> Tally | BaseException:
        if isinstance(own, BaseException):
            return own
        try:
            return self._network.tally(own.context, examples.views, examples.images, examples.labels)
        except BaseException as failure:
            return failure

    def _prepare(self, thread: int) -> _Own | BaseException:
        """Binds the calling thread, then makes its context, so that it lies on the thread's node (Adam 3.2.1, 3.3.1).

        Returns a failure, which is reported with the first bundle.
        """
        try:
            self._binder.bind(thread)
            context = self._network.context()
            accruing = Accruing(self._accrual, self.gradients, self._filled, None)
            steps = self._network.native_steps(context, self._views, accruing)
            if steps is None:
                self._network.prepare(context, self._views)
            return _Own(context, steps)
        except BaseException as failure:
            return failure

    def _compute(self, thread: int, own: _Own, bundle: Bundle, gradient: int) -> float:
        """Returns the summed loss; what was done of a bundle that is given up means nothing."""
        held, portions, loss_sum = bundle.held, bundle.portions, 0.0
        self._filled[gradient] = 0
        done, together = 0, 1
        while done < len(portions) and not held.given_up:
            began_s = time.perf_counter()
            now = portions[done : done + together]
            for one in self._losses(own, bundle, now, gradient):
                loss_sum += one
            done += len(now)
            self._portions_done[thread] += len(now)
            step_s = (time.perf_counter() - began_s) / len(now)
            together = max(1, min(STEPS_MAX, int(TOGETHER_S / step_s)))
        return loss_sum

    def _losses(self, own: _Own, bundle: Bundle, portions: Sequence[Portion], gradient: int) -> list[float]:
        """Adds the gradients of portions; returns their summed losses, in order."""
        parts = [slice(portion.start, portion.stop) for portion in portions]
        batches = [PortionStep(bundle.images[part], bundle.labels[part]) for part in parts]
        steps, whole = own.steps, len(batches) - (portions[-1].share < 1)
        losses: list[float] = []
        if steps is not None and whole and all(steps.take(*batch[:2]) for batch in batches[:whole]):
            losses += [made[0] for made in steps.run(batches[:whole], gradient)]
        for batch, portion in zip(batches[len(losses) :], portions[len(losses) :], strict=True):
            losses.append(self._step(own.context, batch, portion.share, gradient))
        return losses

    def _step(self, context: Context, batch: PortionStep, share: float, gradient: int) -> float:
        result = self._network.step(context, self._views, batch.images, batch.labels)
        if share != 1:
            np.multiply(context.gradient, np.float32(share), out=context.gradient)
        self._accrual.accrue(self.gradients[gradient], context.gradient, not self._filled[gradient])
        self._filled[gradient] = 1
        return result.loss * len(batch.labels)
