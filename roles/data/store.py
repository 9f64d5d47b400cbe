"""Open data sets, and ranges of them prepared ahead of need in buffers that are sent as they are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import BackpressureError, ConfigurationError, RemoteError
from adamctl.net.pool import BufferPool, PooledBuffer, capacity_for
from adamctl.roles.data.catalogue import find_source
from adamctl.roles.data.core import (
    AheadPlanner,
    Holder,
    Ledger,
    Range,
    dataset_identity,
    datasets_to_close,
    range_problem,
)
from adamctl.roles.data.dataset import OpenDataSet
from adamctl.roles.data.decode import DecodePool
from adamctl.roles.data.memory import memory_of_machine
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.source import FILE_SPLITS, keeps_examples
from adamctl.wire.constants import ErrorCode

DATASETS_MAX: Final = 32
MEMORY_SHARE_MAX: Final = 0.9
"""A client that opens a data set says how much of this machine's memory it may use; others need some as well."""
IDLE_S_MIN: Final = 60.0  # a data set read more recently is not closed for another one
_TASKS_MAX: Final = 16384
_CHUNK_EXAMPLES: Final = 16  # a range of files is decoded in chunks, so that several threads work on it
_URGENT, _AHEAD, _FILL = 0, 1, 2

_log = logging.getLogger("adamctl.data")


class ReadyRange:
    """A range in its buffer, laid out as `ExampleForm.body` says. `release` it exactly once."""

    def __init__(self, buffer: PooledBuffer, examples: int, labels_offset: int) -> None:
        self.buffer = buffer
        self.examples = examples
        self.labels_offset = labels_offset

    @property
    def body(self) -> memoryview:
        return self.buffer.view

    def release(self) -> None:
        self.buffer.release()


Done = Callable[["ReadyRange | Exception"], None]
_Key = tuple[str, Range]


@dataclass(eq=False)
class _Job:
    """A range being prepared. The store's lock guards all fields."""

    ready: ReadyRange
    tasks_left: int
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


class DataStore:
    """All open data sets of a server. Thread-safe; `open` blocks, `read` does not."""

    def __init__(
        self,
        search: Sequence[str] = (),
        *,
        threads: int,
        ahead: int = 8,
        memory_bytes: int | None = None,
        buffers_bytes: int | None = None,
    ) -> None:
        """
        Args:
            search: folders for bare names, used after those in a data set's own configuration.
            threads: the number of decoding threads.
            ahead: how many ranges are kept ready ahead of each pass's readers.
            memory_bytes: the memory of which `memory_share` is a share; None: this machine's.
            buffers_bytes: memory for ranges that are prepared or sent; None: an eighth, within bounds.
        """
        if memory_bytes is None:
            import psutil

            memory_bytes = int(psutil.virtual_memory().total)
        self.search = tuple(search)
        self.memory_bytes = memory_bytes
        self.counters = Counters()
        self._decoders = DecodePool(threads, _TASKS_MAX)
        self._buffers = BufferPool(buffers_bytes or memory_of_machine(memory_bytes).buffers_bytes)
        self._lock = threading.RLock()  # guards all below
        self._datasets: dict[str, OpenDataSet] = {}
        self._opening: dict[str, Future[OpenDataSet]] = {}
        self._jobs: dict[_Key, _Job] = {}  # prepared ahead and not requested yet, as the ledger books them
        self._ledger: Ledger[_Key] = Ledger(self._buffers.quota_bytes // 2)
        self._planner = AheadPlanner(ahead)

    # --- data sets --------------------------------------------------------------------------------------------------

    def open(self, config: DataConfig, input_shape: Sequence[int], seed: int) -> OpenDataSet:
        """Opens a data set, or returns it if it is already open. Blocks while files are read.

        Raises:
            ConfigurationError, DamagedDataError: as raised by the readers.
        """
        name = dataset_identity(config, input_shape, seed)
        with self._lock:
            if name in self._datasets:
                return self._datasets[name]
            opening = self._opening.get(name)
            if opening is None:
                mine: Future[OpenDataSet] = Future()
                self._opening[name] = mine
        if opening is not None:
            return opening.result()
        try:
            dataset = self._open(name, config, input_shape, seed)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(dataset)
            return dataset
        finally:
            with self._lock:
                del self._opening[name]

    def _open(self, name: str, config: DataConfig, input_shape: Sequence[int], seed: int) -> OpenDataSet:
        if not 0 <= config.validation < 1:
            raise ConfigurationError(f"data.validation: expected a share from 0 to below 1, found {config.validation}")
        source = open_source(config, find_source(config, self.search), input_shape)
        example_bytes = 0 if keeps_examples(source) else prod(source.example_shape) * source.dtype.itemsize
        examples = sum(len(source.labels(split)) for split in FILE_SPLITS)
        if not 0 < config.memory_share <= 1:
            raise ConfigurationError(
                f"data.memory_share: expected a share above 0 and at most 1, found {config.memory_share}"
            )
        budget = int(min(config.memory_share, MEMORY_SHARE_MAX) * self.memory_bytes)
        with self._lock:
            self._make_room(source.resident_bytes + example_bytes * examples, budget)
            left = budget - source.resident_bytes - sum(other.size_bytes for other in self._datasets.values())
        dataset = OpenDataSet(name, config, source, seed, left, budget - source.resident_bytes)
        with self._lock:
            self._datasets[name] = dataset
        self._decoders.submit(_FILL, dataset.fill_tasks())
        _log.info("opened %s %s: %s", config.format, config.source, dataset.examples)
        return dataset

    def _make_room(self, wanted_bytes: int, budget_bytes: int) -> None:
        """Closes data sets that have been idle long enough. Called with the lock held."""
        now = time.monotonic()
        holders = [Holder(other.name, other.size_bytes, now - other.read_at_s) for other in self._datasets.values()]
        for name in datasets_to_close(holders, wanted_bytes, budget_bytes, IDLE_S_MIN):
            self.close_dataset(name)
        while len(self._datasets) >= DATASETS_MAX:
            self.close_dataset(min(self._datasets.values(), key=lambda other: other.read_at_s).name)

    def close_dataset(self, name: str) -> None:
        """Forgets a data set; a client that still reads it opens it again."""
        with self._lock:
            self._datasets.pop(name, None)
            self._planner.forget(name)
            for key in [key for key in self._jobs if key[0] == name]:
                self._ledger.remove(key)
                self._drop(key)

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, name: str, wanted: Range, done: Done) -> ReadyRange | None:
        """Returns a range if it is ready; else None, and a decoding thread will call `done` with it or with the error.

        Raises:
            RemoteError: UNKNOWN_DATASET or BAD_RANGE.
            BackpressureError: too many requests at once; try again later.
        """
        with self._lock:
            dataset = self._datasets.get(name)
            if dataset is None:
                raise RemoteError(ErrorCode.UNKNOWN_DATASET, f"data set {name} is not open on this server; open it")
            if problem := range_problem(wanted, dataset.examples, dataset.form.examples_per_read_max):
                raise RemoteError(ErrorCode.BAD_RANGE, problem)
            dataset.read_at_s = time.monotonic()
            key = (name, wanted)
            job = self._jobs.pop(key, None)
            self._ledger.remove(key)
            result: ReadyRange | None = None
            if job is None:
                self._begin_urgent(dataset, wanted, done)
                self.counters.not_begun += 1
            elif not job.finished:
                job.done = done
                self.counters.in_work += 1
            else:
                result = job.ready
                self.counters.ready += 1
            self.counters.examples += wanted.stop - wanted.start
            self._begin_ahead(dataset, wanted)
            return result

    def _begin_urgent(self, dataset: OpenDataSet, wanted: Range, done: Done) -> None:
        buffer = self._allocate(dataset, wanted)
        while buffer is None and self._jobs:  # requested ranges take precedence over prepared ones
            key = next(iter(self._jobs))
            self._ledger.remove(key)
            self._drop(key)
            buffer = self._allocate(dataset, wanted)
        if buffer is None or not self._submit(dataset, wanted, _Job(buffer, 0, done), _URGENT):
            if buffer is not None:
                buffer.release()
            self.counters.refused += 1
            raise BackpressureError("the data server has as many reads in progress as it can hold; try again later")

    def _begin_ahead(self, dataset: OpenDataSet, asked: Range) -> None:
        ranges = self._planner.asked(dataset.name, asked, dataset.examples[asked.split])
        keys = {(dataset.name, wanted) for wanted in ranges}
        for wanted in ranges:
            key = (dataset.name, wanted)
            if key in self._jobs:
                self._ledger.touch(key)
                continue
            size_bytes = dataset.form.body(wanted.stop - wanted.start).size_bytes
            dropped = self._ledger.admit(key, capacity_for(size_bytes), keep=keys)
            for old in dropped or ():
                self._drop(old)
            buffer = self._allocate(dataset, wanted) if dropped is not None else None
            if buffer is None or not self._submit(dataset, wanted, _Job(buffer, 0), _AHEAD):
                if buffer is not None:
                    buffer.release()
                self._ledger.remove(key)
                return

    def _allocate(self, dataset: OpenDataSet, wanted: Range) -> ReadyRange | None:
        examples = wanted.stop - wanted.start
        labels_offset, size_bytes = dataset.form.body(examples)
        buffer = self._buffers.try_allocate(size_bytes)
        return None if buffer is None else ReadyRange(buffer, examples, labels_offset)

    def _submit(self, dataset: OpenDataSet, wanted: Range, job: _Job, urgency: int) -> bool:
        """Queues the work of a range, in chunks if files must be decoded. Called with the lock held."""
        examples = job.ready.examples
        chunk = examples if dataset.visits.whole_ranges else _CHUNK_EXAMPLES
        form = dataset.form
        images = np.frombuffer(job.ready.body, form.numpy_dtype, examples * form.elements).reshape(examples, -1)
        labels = np.frombuffer(job.ready.body, np.int32, examples, job.ready.labels_offset)

        def work(start: int, stop: int) -> Callable[[], None]:
            part = wanted._replace(start=wanted.start + start, stop=wanted.start + stop)
            return lambda: self._work(dataset, part, images[start:stop], labels[start:stop], job)

        tasks = [work(start, min(start + chunk, examples)) for start in range(0, examples, chunk)]
        job.tasks_left = len(tasks)
        if job.done is None:
            self._jobs[dataset.name, wanted] = job
        if self._decoders.submit(urgency, tasks):
            return True
        self._jobs.pop((dataset.name, wanted), None)
        return False

    def _work(self, dataset: OpenDataSet, part: Range, images: NDArray[Any], labels: NDArray[Any], job: _Job) -> None:
        """Runs in a decoding thread."""
        error: Exception | None = None
        if not job.dropped and job.error is None:
            try:
                dataset.gather(part, images, labels)
                self._decoders.submit(_FILL, dataset.ahead_tasks())
            except Exception as caught:
                error = caught
        with self._lock:
            job.error = job.error or error
            job.tasks_left -= 1
            if job.tasks_left:
                return
            job.finished = True
            done = job.done
            if job.dropped or job.error is not None:
                job.ready.release()
            if done is None and job.error is not None and not job.dropped:
                self._forget_failed(job)
        if done is not None:
            done(job.ready if job.error is None else job.error)

    def _forget_failed(self, job: _Job) -> None:
        """Drops a range whose preparation failed; it is tried again, and errors reported, when it is requested."""
        for key in [key for key, other in self._jobs.items() if other is job]:
            del self._jobs[key]
            self._ledger.remove(key)

    def _drop(self, key: _Key) -> None:
        """Drops a range that was not requested. Called with the lock held."""
        job = self._jobs.pop(key)
        job.dropped = True
        if job.finished:
            job.ready.release()

    # --- the rest ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Returns plain values: data sets, bytes, and the share of reads that found their range ready."""
        with self._lock:
            counters, datasets = self.counters, list(self._datasets.values())
            ahead_bytes = self._ledger.used_bytes
        reads = counters.ready + counters.in_work + counters.not_begun
        return {
            "datasets": [
                {
                    "dataset": dataset.name,
                    "format": dataset.config.format,
                    "source": dataset.config.source,
                    "examples": dataset.examples,
                    "held_bytes": dataset.held_bytes,
                    "read_bytes": dataset.read_bytes,
                    "cache": dict(dataset.visits.forms),
                }
                for dataset in datasets
            ],
            "cache_bytes": sum(dataset.held_bytes for dataset in datasets),
            "ahead_bytes": ahead_bytes,
            "reads": reads,
            "reads_ready": counters.ready,
            "reads_in_work": counters.in_work,
            "reads_refused": counters.refused,
            "ready_share": counters.ready / reads if reads else 1.0,
            "examples": counters.examples,
        }

    def close(self) -> None:
        """Stops the threads and closes all data sets; reads in progress are never answered."""
        self._decoders.close()
        for name in list(self._datasets):
            self.close_dataset(name)
