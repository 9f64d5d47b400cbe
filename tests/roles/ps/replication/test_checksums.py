"""What goes to several servers is summed up once, by whoever comes first."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from adamctl.roles.ps.core.exactly_once import MemoryRecord
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy, arrays_checksum, lengths_of
from adamctl.roles.ps.replication import checksums as replica_checksums
from adamctl.roles.ps.replication.checksums import KEPT_MAX, Checksums


def record(counter: int, size: int = 10_000) -> CopyRecord:
    arrays = [np.full(size, counter, np.float32)]
    return CopyRecord(ShardCopy("a", 1, 0, 1, counter, 0, size, lengths_of(arrays), MemoryRecord()), arrays)


def test_a_version_is_summed_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    summed = []
    begun, go_on = threading.Event(), threading.Event()

    def slowly(one: CopyRecord) -> int:
        summed.append(one.copy.counter)
        begun.set()
        assert go_on.wait(20)
        return arrays_checksum(one)

    monkeypatch.setattr(replica_checksums, "arrays_checksum", slowly)
    checksums, found = Checksums(), list[int]()
    threads = [threading.Thread(target=lambda: found.append(checksums.of(record(5)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert summed == [5] and set(found) == {arrays_checksum(record(5))} and len(found) == 3
    assert checksums.of(record(6)) != found[0] and summed == [5, 6]
    assert checksums.of(record(7, 100)) == arrays_checksum(record(7, 100))


def test_what_fails_is_told_to_all_who_wait_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(one: CopyRecord) -> int:
        raise MemoryError

    monkeypatch.setattr(replica_checksums, "arrays_checksum", fail)
    checksums = Checksums()
    for _ in range(2):
        with pytest.raises(MemoryError):
            checksums.of(record(1))
    monkeypatch.undo()
    assert checksums.of(record(1)) == arrays_checksum(record(1)), "it is tried again"


def test_only_the_last_ones_are_kept() -> None:
    checksums = Checksums()
    for counter in range(KEPT_MAX + 10):
        checksums.of(record(counter, 5000))
    assert len(checksums._found) == KEPT_MAX
