"""Open data sets, and ranges of them prepared ahead of need in buffers that are sent as they are."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from math import prod
from pathlib import Path
from typing import Any, Final

from adamctl.config.data import DataConfig
from adamctl.config.urls import Url
from adamctl.errors import ChangedDataError, ConfigurationError, RemoteError, UnreachableError
from adamctl.net.pool import BufferPool
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.core import (
    PROCESS_BYTES,
    Holder,
    dataset_identity,
    datasets_to_close,
    files_changed,
    range_problem,
)
from adamctl.roles.data.memory import bytes_for, memory_of_machine
from adamctl.roles.data.order.ownership import share_problem
from adamctl.roles.data.preparing import Asked, Done, RangePreparer, ReadyRange
from adamctl.roles.data.readers import open_source, state_of
from adamctl.roles.data.readers.source import FILE_SPLITS, keeps_examples
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.wire.constants import ErrorCode

DATASETS_MAX: Final = 32
IDLE_S_MIN: Final = 60.0  # a data set read more recently is not closed for another one

_log = logging.getLogger("adamctl.data")


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
        self._process = secrets.token_bytes(PROCESS_BYTES)
        self.search = tuple(search)
        self.memory_bytes = memory_bytes
        buffers = BufferPool(buffers_bytes or memory_of_machine(memory_bytes).buffers_bytes)
        self._preparer = RangePreparer(threads, ahead, buffers)
        self._buffers = buffers
        self._lock = threading.RLock()  # guards all below
        self._datasets: dict[str, OpenDataSet] = {}
        self._opening: dict[str, Future[OpenDataSet]] = {}
        self._promised_bytes: dict[str, int] = {}  # what those that are being opened may use
        self._closed_read_bytes = self._closed_skipped = 0  # of data sets that were closed

    # --- data sets --------------------------------------------------------------------------------------------------

    def open(
        self, config: DataConfig, input_shape: Sequence[int], seed: int, *, name: str = "", again: bool = False
    ) -> OpenDataSet:
        """Opens a data set, or returns it if it is open and its files are as they were. Blocks while files are read.

        Args:
            name: what it is called in reads; empty: its identity.
            again: it is only asked about: if it is open, its files are not looked at.

        Raises:
            ConfigurationError, DamagedDataError: as raised by the readers.
            ConfigurationError: files have changed, and readers have the set open.
        """
        name = name or dataset_identity(config, input_shape, seed)
        with self._lock:
            if again and name in self._datasets:
                return self._datasets[name]
            opening = self._opening.get(name)
            if opening is None:
                mine: Future[OpenDataSet] = Future()
                self._opening[name] = mine
        if opening is not None:
            return opening.result()
        try:
            dataset = self._current(name, config, input_shape, seed)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(dataset)
            return dataset
        finally:
            with self._lock:
                del self._opening[name]

    def _current(self, name: str, config: DataConfig, input_shape: Sequence[int], seed: int) -> OpenDataSet:
        """Returns a data set with its files as they are now: the open one, or a new one."""
        place = find_source(config, self.search)
        with self._lock:
            dataset = self._datasets.get(name)
        try:
            state = state_of(config, place)  # before they are read: a change meanwhile shows next time
        except UnreachableError as error:
            if dataset is None:
                raise
            _log.warning("%s is served as it was when it was opened: %s", config.source, error)
            return dataset
        with self._lock:
            dataset = self._datasets.get(name)
            if dataset is not None and dataset.files_state == state:
                dataset.read_at_s = time.monotonic()
                return dataset
            if dataset is not None:
                self._close_changed(dataset)
        return self._open(name, config, place, input_shape, seed, state)

    def _close_changed(self, dataset: OpenDataSet) -> None:
        """Closes a data set whose files are others now; refuses if a run has it open."""
        if dataset.readers:
            raise ConfigurationError(
                f"{dataset.config.source}: expected the files that this data server has open, found others or changed "
                f"ones, and a run has the old ones open (connections: {len(dataset.readers)}): wait until it has "
                "ended, or give the new files another name"
            )
        _log.info("%s is opened anew: its files have changed", dataset.config.source)
        self.close_dataset(dataset.name)

    def _open(
        self,
        name: str,
        config: DataConfig,
        place: Path | Url | None,
        input_shape: Sequence[int],
        seed: int,
        state: bytes,
    ) -> OpenDataSet:
        if not 0 <= config.validation < 1:
            raise ConfigurationError(f"data.validation: expected a share from 0 to below 1, found {config.validation}")
        if not 0 < config.memory_share <= 1:
            raise ConfigurationError(
                f"data.memory_share: expected a share above 0 and at most 1, found {config.memory_share}"
            )
        budget = bytes_for(config.memory_share, self.memory_bytes)
        source = open_source(config, place, input_shape, budget_bytes=self._room(budget))
        example_bytes = 0 if keeps_examples(source) else prod(source.example_shape) * source.dtype.itemsize
        examples = sum(len(source.labels(split)) for split in FILE_SPLITS)
        with self._lock:
            promised_bytes = sum(self._promised_bytes.values())
            self._make_room(promised_bytes + source.resident_bytes + example_bytes * examples, budget)
            taken_bytes = promised_bytes + sum(other.size_bytes for other in self._datasets.values())
            left = budget - source.resident_bytes - taken_bytes
            self._promised_bytes[name] = source.resident_bytes + min(max(left, 0), example_bytes * examples)
        try:
            dataset = OpenDataSet(name, config, source, seed, left, budget - source.resident_bytes)
            dataset.files_state = state
            with self._lock:
                self._datasets[name] = dataset
        finally:
            with self._lock:
                del self._promised_bytes[name]
        self._preparer.fill(dataset.fill_tasks())
        by = f", images decoded by {config.decoder}" if hasattr(source, "sizes") else ""
        _log.info("opened %s %s: %s%s", config.format, config.source, dataset.examples, by)
        return dataset

    def _room(self, budget_bytes: int) -> int:
        """Returns what of a budget is free, or is once all data sets that have been idle long enough are closed."""
        now = time.monotonic()
        with self._lock:
            busy = [other for other in self._datasets.values() if now - other.read_at_s < IDLE_S_MIN]
            taken_bytes = sum(self._promised_bytes.values()) + sum(other.size_bytes for other in busy)
        return max(budget_bytes - taken_bytes, 0)

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
            dataset = self._datasets.pop(name, None)
            if dataset is not None:
                self._closed_read_bytes += dataset.read_bytes
                self._closed_skipped += dataset.skipped
            self._preparer.forget(name)

    # --- readers ----------------------------------------------------------------------------------------------------

    def files_of(self, dataset: OpenDataSet) -> bytes:
        """Returns what a reader says in its reads, so that it never gets examples of other files."""
        return self._process + dataset.files_state

    def came(self, reader: int, dataset: OpenDataSet) -> None:
        """A connection has opened a data set: until it has `left`, changed files do not take its place."""
        with self._lock:
            dataset.readers.add(reader)

    def left(self, reader: int) -> None:
        """A connection is gone."""
        with self._lock:
            for dataset in self._datasets.values():
                dataset.readers.discard(reader)

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(
        self, name: str, asked: Asked, done: Done, *, reader: int | None = None, files: bytes = b""
    ) -> ReadyRange | None:
        """Returns a range if it is ready; else None, and a decoding thread will call `done` with it or with the error.

        Args:
            reader: the connection that reads; None: none has to be remembered.
            files: what `files_of` said to the reader; empty: it does not compare.

        Raises:
            RemoteError: UNKNOWN_DATASET or BAD_RANGE.
            ChangedDataError: the set has been opened anew, since its files have changed.
            BackpressureError: too many requests at once; try again later.
        """
        with self._lock:
            dataset = self._datasets.get(name)
            if dataset is None:
                raise RemoteError(ErrorCode.UNKNOWN_DATASET, f"data set {name} is not open on this server; open it")
            if files_changed(files, self.files_of(dataset)):
                raise ChangedDataError(f"{dataset.config.source}: the files have changed during the run")
            problem = range_problem(asked.range, dataset.examples, dataset.form.examples_per_read_max)
            problem = problem or share_problem(asked.share, asked.range.stop - asked.range.start)
            if problem:
                raise RemoteError(ErrorCode.BAD_RANGE, problem)
            dataset.read_at_s = time.monotonic()
            if reader is not None:
                dataset.readers.add(reader)
            return self._preparer.read(dataset, asked, done)

    # --- the rest ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Returns plain values: data sets, bytes, and the share of reads that found their range ready.

        What is counted of all data sets, closed ones included, only grows.
        """
        with self._lock:
            read_bytes, skipped = self._closed_read_bytes, self._closed_skipped
            counters, datasets = self._preparer.counters, list(self._datasets.values())
            ahead_bytes = self._preparer.ahead_bytes
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
                    "skipped": dataset.skipped,
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
            "read_bytes": read_bytes + sum(dataset.read_bytes for dataset in datasets),
            "skipped": skipped + sum(dataset.skipped for dataset in datasets),
        }

    def close(self) -> None:
        """Stops the threads and closes all data sets; reads in progress are never answered."""
        self._preparer.close()
        for name in list(self._datasets):
            self.close_dataset(name)
