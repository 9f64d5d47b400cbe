"""Checksums of shard states that go to several servers, each computed only once. Usable from any thread."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock
from typing import TypeAlias

from adamctl.roles.ps.core.shard_message import CopyRecord, arrays_checksum

KEPT_MAX = 256
SIZE_MIN = 1 << 12
"""In elements; for smaller shards computing the checksum takes less time than looking it up."""

Version: TypeAlias = tuple[str, int, int, int, int, tuple[int, ...]]


class Checksums:
    """Recent checksums by job, shard, version and lengths: what is sent of a version is the same for everyone."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: OrderedDict[Version, Future[int]] = OrderedDict()

    def of(self, record: CopyRecord) -> int:
        """Returns the checksum of a record's arrays; waits if another thread is computing it."""
        copy = record.copy
        if copy.size < SIZE_MIN:
            return arrays_checksum(record)
        key = (copy.job, copy.born, copy.shard, copy.epoch, copy.counter, copy.lengths)
        with self._lock:
            found = self._found.get(key)
            if found is None:
                mine = self._found[key] = Future()  # not Future[int](): each would keep a description of that
                if len(self._found) > KEPT_MAX:
                    self._found.popitem(last=False)
        if found is not None:
            return found.result()
        try:
            checksum = arrays_checksum(record)
        except BaseException as error:
            with self._lock:  # waiting threads fail as well; later ones try again
                if self._found.get(key) is mine:
                    del self._found[key]
            mine.set_exception(error)
            raise
        mine.set_result(checksum)
        return checksum
