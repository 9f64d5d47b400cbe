"""Ranges of open data sets prepared in threads, ahead of need as far as there is room, in buffers that are sent as
they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import BackpressureError
from adamctl.net.pool import BufferPool, PooledBuffer, capacity_for
from adamctl.roles.data.core import AheadPlanner, Indices, Ledger, Range
from adamctl.roles.data.form import BodyLayout
from adamctl.roles.data.order.ownership import Share
from adamctl.roles.data.sets.decode import DecodePool
from adamctl.roles.data.sets.open_data_set import OpenDataSet

_TASKS_MAX: Final = 16384
_CHUNK_EXAMPLES: Final = 16  # a range of files is decoded in chunks, so that several threads work on it
_URGENT, _AHEAD, _FILL = 0, 1, 2


class Asked(NamedTuple):
    """What is read: a range, or what one of several servers owns of it."""

    range: Range
    share: Share | None = None


class ReadyRange:
    """Examples in a buffer, laid out as `ExampleForm.body` says. `release` it exactly once.

    `positions` are the places in the range of those that it has; None: all of them, in order.
    """

    def __init__(
        self, buffer: PooledBuffer, examples: int, layout: BodyLayout, positions: Indices | None = None
    ) -> None:
        self.buffer = buffer
        self.examples = examples
        self.layout = layout
        self.positions = positions
        if positions is not None:
            np.frombuffer(self.body, np.int32, examples, layout.positions_offset)[...] = positions

    @property
    def body(self) -> memoryview:
        return self.buffer.view[: self.layout.size_bytes]

    def release(self) -> None:
        self.buffer.release()


Done = Callable[["ReadyRange | Exception"], None]
_Key = tuple[str, Asked]


@dataclass(eq=False)
class _Job:
    """A range being prepared. The lock guards all fields."""

    ready: ReadyRange | None = None  # None until it is known how many examples it has
    tasks_left: int = 0
    done: Done | None = None  # None until it is requested
    error: Exception | None = None
    dropped: bool = False
    finished: bool = False


@dataclass
class Counters:
    """Counts reads by the state of their range: prepared ahead, in progress, not begun."""

    ready: int = 0
    in_work: int = 0
    not_begun: int = 0
    examples: int = 0
    refused: int = 0


class RangePreparer:
    """Prepares what is asked for, and what will be. Thread-safe; nothing blocks but `close`."""

    def __init__(self, threads: int, ahead: int, buffers: BufferPool) -> None:
        """`ahead`: how many ranges are kept ready ahead of each pass's readers."""
        self.counters = Counters()
        self._decoders = DecodePool(threads, _TASKS_MAX)
        self._buffers = buffers
        self._lock = threading.RLock()  # guards all below
        self._jobs: dict[_Key, _Job] = {}  # prepared ahead and not requested yet, as the ledger books them
        self._ledger: Ledger[_Key] = Ledger(buffers.quota_bytes // 2)
        self._planner = AheadPlanner(ahead)

    @property
    def ahead_bytes(self) -> int:
        return self._ledger.used_bytes

    def read(self, dataset: OpenDataSet, asked: Asked, done: Done) -> ReadyRange | None:
        """Returns a range if it is ready; else None, and a thread will call `done` with it or with the error.

        Raises:
            BackpressureError: too many requests at once; try again later.
        """
        with self._lock:
            key = (dataset.name, asked)
            job = self._jobs.pop(key, None)
            self._ledger.remove(key)
            result: ReadyRange | None = None
            if job is None:
                self._begin_urgent(dataset, asked, done)
                self.counters.not_begun += 1
            elif not job.finished:
                job.done = done
                self.counters.in_work += 1
            else:
                result = job.ready
                self.counters.ready += 1
            self.counters.examples += asked.range.stop - asked.range.start
            self._begin_ahead(dataset, asked)
            return result

    def fill(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Does what a data set may do before anything is asked for, when there is nothing else to do."""
        self._decoders.submit(_FILL, tasks)

    def forget(self, name: str) -> None:
        """Drops everything prepared of a data set."""
        with self._lock:
            self._planner.forget(name)
            for key in [key for key in self._jobs if key[0] == name]:
                self._ledger.remove(key)
                self._drop(key)

    def close(self) -> None:
        """Stops the threads; reads in progress are never answered."""
        self._decoders.close()
        with self._lock:
            for key in list(self._jobs):
                self._ledger.remove(key)
                self._drop(key)

    # --- beginning, with the lock held ------------------------------------------------------------------------------

    def _begin_urgent(self, dataset: OpenDataSet, asked: Asked, done: Done) -> None:
        if not self._begin(dataset, asked, _Job(done=done), _URGENT):
            self.counters.refused += 1
            raise _too_many()

    def _begin_ahead(self, dataset: OpenDataSet, asked: Asked) -> None:
        if asked.share is not None and asked.share.rows:
            return  # asked again for what another server did not give: nobody else will
        ranges = self._planner.asked(dataset.name, asked.range, dataset.examples[asked.range.split])
        keys = {(dataset.name, asked._replace(range=wanted)): wanted for wanted in ranges}
        for key, wanted in keys.items():
            if key in self._jobs:
                self._ledger.touch(key)
                continue
            size_bytes = dataset.form.body(*_expected(wanted, asked.share)).size_bytes
            dropped = self._ledger.admit(key, capacity_for(size_bytes), keep=keys.keys())
            for old in dropped or ():
                self._drop(old)
            job = self._jobs[key] = _Job()
            if dropped is None or not self._begin(dataset, key[1], job, _AHEAD):
                del self._jobs[key]
                self._ledger.remove(key)
                return

    def _begin(self, dataset: OpenDataSet, asked: Asked, job: _Job, urgency: int) -> bool:
        """Queues the work of a range; returns whether there was room for all of it."""
        if asked.share is not None:  # which examples it is takes a thread to find out
            return self._decoders.submit(urgency, [partial(self._find, dataset, asked, job, urgency)])
        examples = asked.range.stop - asked.range.start
        job.ready = self._allocate(dataset, examples, None, urgency == _URGENT)
        if job.ready is None:
            return False
        if self._decoders.submit(urgency, self._tasks(dataset, asked, job, job.ready)):
            return True
        job.ready.release()
        job.ready = None
        return False

    def _allocate(
        self, dataset: OpenDataSet, examples: int, positions: Indices | None, urgent: bool
    ) -> ReadyRange | None:
        layout = dataset.form.body(examples, 0 if positions is None else examples)
        buffer = self._buffers.try_allocate(max(layout.size_bytes, 1))
        while buffer is None and urgent and self._jobs:  # requested ranges take precedence over prepared ones
            key = next(iter(self._jobs))
            self._ledger.remove(key)
            self._drop(key)
            buffer = self._buffers.try_allocate(max(layout.size_bytes, 1))
        return None if buffer is None else ReadyRange(buffer, examples, layout, positions)

    def _tasks(self, dataset: OpenDataSet, asked: Asked, job: _Job, ready: ReadyRange) -> list[Callable[[], None]]:
        """Returns the work of a range, in chunks if files must be decoded; at least one piece."""
        form, examples = dataset.form, ready.examples
        images = np.frombuffer(ready.body, form.numpy_dtype, examples * form.elements).reshape(examples, form.elements)
        end = ready.layout.labels_offset + examples * form.label_bytes
        labels = np.frombuffer(ready.body[ready.layout.labels_offset : end], form.label_dtype)
        labels = labels.reshape(form.label_shape(examples))
        chunk = max(examples, 1) if dataset.visits.whole_ranges else _CHUNK_EXAMPLES

        def work(start: int) -> Callable[[], None]:
            part = slice(start, min(start + chunk, examples))
            return lambda: self._work(dataset, asked.range, ready, part, images[part], labels[part], job)

        tasks = [work(start) for start in range(0, max(examples, 1), chunk)]
        job.tasks_left = len(tasks)
        return tasks

    # --- in the decoding threads ------------------------------------------------------------------------------------

    def _find(self, dataset: OpenDataSet, asked: Asked, job: _Job, urgency: int) -> None:
        """Finds the examples of a share, and queues the work, or does it if it is one piece."""
        assert asked.share is not None
        if job.dropped:
            return
        try:
            positions = dataset.positions_of(asked.range, asked.share)
        except Exception as error:
            self._end(job, error)
            return
        with self._lock:
            if job.dropped:
                return
            urgent = urgency == _URGENT or job.done is not None
            job.ready = self._allocate(dataset, len(positions), positions, urgent)
            tasks = [] if job.ready is None else self._tasks(dataset, asked, job, job.ready)
            queued = len(tasks) > 1 and self._decoders.submit(_URGENT if urgent else _AHEAD, tasks)
        if not queued and len(tasks) == 1:
            tasks[0]()
        elif not queued:
            self._end(job, _too_many())

    def _work(
        self,
        dataset: OpenDataSet,
        wanted: Range,
        ready: ReadyRange,
        part: slice,
        images: NDArray[Any],
        labels: NDArray[Any],
        job: _Job,
    ) -> None:
        error: Exception | None = None
        if not job.dropped and job.error is None and (len(images) or dataset.visits.whole_ranges):
            try:
                if ready.positions is None:
                    rows = wanted._replace(start=wanted.start + part.start, stop=wanted.start + part.stop)
                    dataset.gather(rows, images, labels)
                else:
                    dataset.gather(wanted, images, labels, ready.positions[part])
                self._decoders.submit(_FILL, dataset.ahead_tasks())
            except Exception as caught:
                error = caught
        with self._lock:
            job.error = job.error or error
            job.tasks_left -= 1
            left = job.tasks_left
        if not left:
            self._end(job, job.error)

    def _end(self, job: _Job, error: Exception | None) -> None:
        """A job is done, or cannot be."""
        with self._lock:
            job.error, job.finished = error, True
            done, ready = job.done, job.ready
            if ready is not None and (job.dropped or error is not None):
                ready.release()
            if done is None and error is not None and not job.dropped:
                self._forget_failed(job)
        if done is not None:
            assert error is not None or ready is not None
            done(error if error is not None else ready)  # type: ignore[arg-type]

    def _forget_failed(self, job: _Job) -> None:
        """Drops a range whose preparation failed; it is tried again, and errors reported, when it is requested."""
        for key in [key for key, other in self._jobs.items() if other is job]:
            del self._jobs[key]
            self._ledger.remove(key)

    def _drop(self, key: _Key) -> None:
        """Drops a range that was not requested. Called with the lock held."""
        job = self._jobs.pop(key)
        job.dropped = True
        if job.finished and job.ready is not None:
            job.ready.release()


def _expected(wanted: Range, share: Share | None) -> tuple[int, int]:
    """Returns how many examples, and positions, to book room for: of a share it is known when it has been found."""
    examples = wanted.stop - wanted.start
    if share is None:
        return examples, 0
    expected = min(examples, 16 + 3 * examples // (2 * len(share.servers)))
    return expected, expected


def _too_many() -> BackpressureError:
    return BackpressureError("the data server has as many reads in progress as it can hold; try again later")
