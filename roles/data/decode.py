"""Prepares raw values for training: scaling and its statistics, memory for decoded examples, and the threads."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.roles.data.core import CachePlan, Indices
from adamctl.roles.data.readers.source import FileSplit, Source, check_finite

STATISTICS_EXAMPLES_MAX: Final = 2048
"""For sources that decode files, mean and deviation come from this many evenly spaced training examples."""
BLOCK_EXAMPLES: Final = 2048
_DEVIATION_MIN: Final = 1e-6

_log = logging.getLogger("adamctl.data")

Floats = NDArray[np.float32]


# --- scaling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaling:
    """ready = raw * factor + shift, in float32."""

    factor: float
    shift: float

    def apply(self, values: Floats) -> None:
        """Scales in place. For ranges that fit in cache, where numpy's two passes cost less than a compiled one."""
        if self.factor != 1.0:
            np.multiply(values, np.float32(self.factor), out=values)
        if self.shift != 0.0:
            np.add(values, np.float32(self.shift), out=values)

    def apply_whole(self, values: Floats) -> None:
        """Scales a large array in place, in one pass over memory with all of numexpr's threads."""
        if self.shift == 0.0:
            self.apply(values)
            return
        import numexpr

        local = {"values": values, "factor": np.float32(self.factor), "shift": np.float32(self.shift)}
        numexpr.evaluate("values * factor + shift", local_dict=local, global_dict={}, out=values)


def scaling_for(scale: str, source: Source, train: Indices) -> Scaling:
    """Returns the scaling for `DataConfig.scale`.

    `train` are the file indices of the training examples, without those held out. The result is equal on every server.
    """
    if scale == "none":
        return Scaling(1.0, 0.0)
    if scale == "unit":
        return Scaling(1.0 / source.value_max, 0.0)
    mean, deviation = mean_and_deviation(source, train)
    return Scaling(1.0 / max(deviation, _DEVIATION_MIN), -mean / max(deviation, _DEVIATION_MIN))


def mean_and_deviation(source: Source, indices: Indices, split: FileSplit = "train") -> tuple[float, float]:
    """Returns mean and standard deviation of the raw values of examples, one of each over all pixels.

    Block by block: counts, means and squared deviations combine as in Chan, Golub, LeVeque 1979, eq. 2.1.
    """
    if not source.resident and len(indices) > STATISTICS_EXAMPLES_MAX:
        indices = indices[:: -(-len(indices) // STATISTICS_EXAMPLES_MAX)]
    total, mean, squares = 0, 0.0, 0.0
    elements = prod(source.example_shape)
    buffer = np.empty((min(BLOCK_EXAMPLES, len(indices)), elements), np.float32)
    for start in range(0, len(indices), BLOCK_EXAMPLES):
        block = indices[start : start + BLOCK_EXAMPLES]
        values = buffer[: len(block)]
        source.load(split, block, values.reshape(len(block), *source.example_shape))
        if source.dtype.kind == "f":
            check_finite(values, block, f"{source.origin}: {split}")
        block_mean = float(values.mean(dtype=np.float64))
        block_squares = float(values.var(dtype=np.float64)) * values.size
        delta = block_mean - mean
        squares += block_squares + delta * delta * total * values.size / (total + values.size)
        total += values.size
        mean += delta * values.size / total
    return mean, sqrt(squares / total)


# --- memory ---------------------------------------------------------------------------------------------------------


class ExampleCache:
    """Decoded examples of one file split, kept as its `CachePlan` says. Thread-safe.

    An example's values are written before its `_filled` flag; two threads that decode one at the same time write the
    same values, so no reader ever sees anything else.
    """

    def __init__(self, plan: CachePlan, source: Source, split: FileSplit, scaling: Scaling) -> None:
        self.plan = plan
        self._source = source
        self._split: FileSplit = split
        self._scaling = scaling
        self._elements = prod(source.example_shape)
        dtype = np.dtype(np.float32) if plan.form == "ready" else source.dtype
        self._values: NDArray[Any] = np.empty((plan.examples, self._elements), dtype)
        self._filled = np.zeros(plan.examples, np.bool_)
        self._lock = threading.Lock()  # guards _slots and _used of a `raw` cache
        self._slots = np.full(len(source.labels(split)) if plan.form == "raw" else 0, -1, np.int64)
        self._used = 0

    @property
    def filled_bytes(self) -> int:
        """Bytes of the examples stored so far."""
        return int(np.count_nonzero(self._filled)) * self._elements * self._values.itemsize

    def gather(self, indices: Indices, out: Floats) -> None:
        """Writes ready examples into `out` [len(indices), elements], and decodes those that are not cached yet.

        Raises:
            DamagedDataError: a file cannot be decoded.
        """
        if self.plan.form == "none":
            self._load(indices, out)
            self._scaling.apply(out)
            return
        slots = indices if self.plan.form == "ready" else self._claim(indices)
        there = (slots >= 0) & self._filled[slots]
        if not there.all():
            missing = np.flatnonzero(~there)
            values = np.empty((len(missing), self._elements), self._values.dtype)
            self._load(indices[missing], values)
            if self.plan.form == "ready":
                self._scaling.apply(values)
            self._keep(slots[missing], values)
            out[missing] = values
            found = np.flatnonzero(there)
            out[found] = self._values[slots[found]]
        elif self._values.dtype == out.dtype:
            np.take(self._values, slots, axis=0, out=out, mode="clip")  # clip: with "raise" numpy copies twice
        else:
            out[...] = self._values[slots]
        if self.plan.form == "raw":
            self._scaling.apply(out)

    def fill(self, start: int, stop: int) -> None:
        """Prepares examples [start, stop) of a `ready` cache before they are requested."""
        missing = start + np.flatnonzero(~self._filled[start:stop])
        values = np.empty((len(missing), self._elements), np.float32)
        self._load(missing, values)
        self._scaling.apply_whole(values)
        self._keep(missing, values)

    def _load(self, indices: Indices, out: NDArray[Any]) -> None:
        """Raises DamagedDataError: an example cannot be decoded, or is not finite."""
        self._source.load(self._split, indices, out.reshape(len(indices), *self._source.example_shape))
        if self._source.dtype.kind == "f":
            check_finite(out, indices, f"{self._source.origin}: {self._split}")

    def _keep(self, slots: Indices, values: NDArray[Any]) -> None:
        held = slots >= 0
        self._values[slots[held]] = values[held]
        self._filled[slots[held]] = True

    def _claim(self, indices: Indices) -> Indices:
        """Returns each example's slot, -1 for those without one."""
        with self._lock:
            new = indices[self._slots[indices] < 0][: self.plan.examples - self._used]
            self._slots[new] = np.arange(self._used, self._used + len(new))
            self._used += len(new)
            return self._slots[indices]


# --- threads --------------------------------------------------------------------------------------------------------


class DecodePool:
    """Threads that run tasks, most urgent first, tasks of equal urgency in order."""

    def __init__(self, threads: int, tasks_max: int) -> None:
        """At most `tasks_max` tasks wait; the threads are daemons, so a forgotten pool does not hold up exit."""
        self.tasks_max = tasks_max
        self._ready = threading.Condition()  # guards all below
        self._tasks: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, urgency: int, tasks: Sequence[Callable[[], None]]) -> bool:
        """Queues all tasks, or none if there is no room for all; returns whether it did. Lower numbers first."""
        with self._ready:
            if self._closed or len(self._tasks) + len(tasks) > self.tasks_max:
                return False
            for task in tasks:
                heapq.heappush(self._tasks, (urgency, next(self._order), task))
            self._ready.notify(len(tasks))
            return True

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def close(self) -> None:
        """Drops waiting tasks and returns when the threads have ended."""
        with self._ready:
            self._closed = True
            self._tasks.clear()
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._tasks and not self._closed:
                    self._ready.wait()
                if self._closed:
                    return
                _, _, task = heapq.heappop(self._tasks)
            try:
                task()
            except Exception:
                _log.exception("a decoding task failed")
            del task  # or the last task's buffers would stay alive until the next one
