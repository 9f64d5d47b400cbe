"""Memory for decoded examples, and the threads that decode."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from itertools import count
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.roles.data.core import CachePlan, Indices
from adamctl.roles.data.readers.source import FileSplit, Source, check_finite
from adamctl.roles.data.sets.places import Places

_log = logging.getLogger("adamctl.data")


# --- memory ---------------------------------------------------------------------------------------------------------


class ExampleCache:
    """Decoded examples of one file split as the source has them, kept as the `CachePlan` says. Thread-safe.

    An example's values are written before its `_filled` flag; two threads that decode one at the same time write the
    same values, so no reader ever sees anything else. Where places change hands, a reader looks afterwards whether
    those that it has read from did.
    """

    def __init__(self, plan: CachePlan, source: Source, split: FileSplit) -> None:
        self.plan = plan
        self._source = source
        self._split: FileSplit = split
        self._elements = prod(source.example_shape)
        examples = len(source.labels(split))
        self._values: NDArray[Any] = np.empty((plan.examples, self._elements), source.dtype)
        self._filled = np.zeros(plan.examples, np.bool_)
        self._checked = np.zeros(examples if source.resident and source.dtype.kind == "f" else 0, np.bool_)
        self._lock = threading.Lock()  # guards _places, values that are written to them, and loaded_examples
        self._places = Places(examples, plan.examples) if plan.form == "part" else None
        self.loaded_examples = 0

    @property
    def filled_bytes(self) -> int:
        """Bytes of the examples stored so far."""
        return int(np.count_nonzero(self._filled)) * self._elements * self._values.itemsize

    def gather(self, indices: Indices, out: NDArray[Any]) -> None:
        """Writes examples into `out` [len(indices), elements] of the source's type; decodes those that are not kept.

        Raises:
            DamagedDataError: a file cannot be decoded.
        """
        if self.plan.form == "none":
            self._load(indices, out)
            return
        places, turns = self._claim(indices)
        there = (places >= 0) & self._filled[places]
        if there.all():
            np.take(self._values, places, axis=0, out=out, mode="clip")  # clip: with "raise" numpy copies twice
        else:
            missing = np.flatnonzero(~there)
            values = self._loaded(indices[missing])
            self._keep(places[missing], turns[missing], values)
            out[missing] = values
            found = np.flatnonzero(there)
            out[found] = self._values[places[found]]
        if self._places is not None:
            read = np.flatnonzero(there)
            moved = read[self._places.turns[places[read]] != turns[read]]
            if len(moved):
                out[moved] = self._loaded(indices[moved])

    def own(self, owned: NDArray[np.bool_]) -> None:
        """Only these examples [examples] are this server's now; others give way to them where there is no room."""
        if self._places is not None:
            with self._lock:
                self._places.own(owned)

    def _load(self, indices: Indices, out: NDArray[Any]) -> None:
        """Raises DamagedDataError: an example cannot be decoded, or is not finite."""
        self._source.load(self._split, indices, out.reshape(len(indices), *self._source.example_shape))
        if not self._source.resident:
            with self._lock:
                self.loaded_examples += len(indices)
        if self._source.dtype.kind != "f" or (len(self._checked) and self._checked[indices].all()):
            return
        check_finite(out, indices, f"{self._source.origin}: {self._split}")
        if len(self._checked):
            self._checked[indices] = True

    def _loaded(self, indices: Indices) -> NDArray[Any]:
        values = np.empty((len(indices), self._elements), self._values.dtype)
        self._load(indices, values)
        return values

    def _keep(self, places: Indices, turns: Indices, values: NDArray[Any]) -> None:
        if self._places is None:
            self._values[places] = values
            self._filled[places] = True
            return
        with self._lock:
            held = (places >= 0) & (self._places.turns[places] == turns)
            self._values[places[held]] = values[held]
            self._filled[places[held]] = True

    def _claim(self, indices: Indices) -> tuple[Indices, Indices]:
        """Returns each example's place, -1 for those without one, and how often it had changed hands by then."""
        if self._places is None:
            return indices, indices
        with self._lock:
            places, taken = self._places.claim(indices)
            self._filled[taken] = False
            return places, self._places.turns[places]


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
