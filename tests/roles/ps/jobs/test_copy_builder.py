"""Buckets are read back from the store in a thread, while the event loop may free their records or get others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adamctl.errors import DamagedDataError
from adamctl.model.layout import ParameterLayout
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.jobs import copy_builder
from adamctl.roles.ps.jobs.copy_builder import Copies
from adamctl.roles.ps.jobs.keeper import stored_identity
from adamctl.roles.ps.store.record import Holding
from adamctl.roles.ps.store.recovered_jobs import FoundJob, FoundShard, entries_that_count
from tests.sim.servers.cluster import make_layout

VIEW: Any = SimpleNamespace(revision=7, record=SimpleNamespace(layout_hash=5, rule=SimpleNamespace(name="sgd")))
IDENTITY = stored_identity("j", VIEW)
BUCKETS = (0, 1)
Meanwhile = Callable[[], None]


def entry(sequence: int) -> Entry:
    made = Entry(None, 100, IDENTITY)
    made.sequence = sequence
    return made


class ReadingCopies(Copies):
    """What is read of a bucket is the numbers of its records; `meanwhile` happens during each reading, in turn."""

    def __init__(self, layout: ParameterLayout, *meanwhile: Meanwhile) -> None:
        self.layout, self.meanwhile, self.reads = layout, list(meanwhile), list[list[int]]()
        shards = range(layout.buckets[BUCKETS[-1]].shard_stop)
        self.found = FoundJob(
            Holding(IDENTITY, dict.fromkeys(BUCKETS, (1, 10))),
            entry(9),
            {index: FoundShard(10 + index, entry(10 + index)) for index in shards},
        )
        holdings = SimpleNamespace(found={IDENTITY: self.found})
        self.job: Any = SimpleNamespace(name="j", layout=layout)
        self.taken: dict[int, Any] = {}
        self._core = cast(Any, SimpleNamespace(jobs={"j": self.job}))
        self._storing = cast(Any, SimpleNamespace(holdings=holdings))
        self._replicating = cast(Any, SimpleNamespace(loaded=lambda name, contents: [self.taken.update(contents)]))
        self._log, self._loaded = logging.getLogger("test"), {}

    def _read_back(self, job: Any, view: Any, buckets: Any, found: FoundJob, start: Any) -> Any:
        self.reads.append(list(buckets))
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return {bucket: self.numbers(found, bucket) for bucket in buckets}

    def numbers(self, found: FoundJob, bucket: int) -> Any:
        return [one.sequence for one in entries_that_count(found, self.layout, [bucket]).values()]

    def free(self, bucket: int) -> None:
        """The bucket comes from another server, and what the store has of it is not needed any more."""
        del self.found.holding.buckets[bucket]
        described = self.layout.buckets[bucket]
        for index in range(described.shard_start, described.shard_stop):
            del self.found.shards[index]

    async def load(self) -> dict[int, Any]:
        await self._load(self.job, VIEW, BUCKETS, cast(Any, None))
        return self.taken


async def test_what_nobody_touches_is_read_once() -> None:
    copies = ReadingCopies(make_layout())
    expected = {bucket: copies.numbers(copies.found, bucket) for bucket in BUCKETS}
    assert await copies.load() == expected and all(expected.values())
    assert copies.reads == [[0, 1]] and copies._loaded.keys() == {("j", 0), ("j", 1)}


async def test_a_bucket_that_is_freed_meanwhile_is_not_there() -> None:
    copies = ReadingCopies(make_layout(), lambda: copies.free(0))
    expected = copies.numbers(copies.found, 1)
    assert await copies.load() == {0: None, 1: expected}
    assert copies.reads == [[0, 1]] and copies._loaded.keys() == {("j", 1)}


async def test_records_that_are_gone_under_the_reader_are_no_damage() -> None:
    def gone() -> None:
        copies.free(0)
        raise KeyError(10)

    copies = ReadingCopies(make_layout(), gone)
    expected = copies.numbers(copies.found, 1)
    assert await copies.load() == {0: None, 1: expected}
    assert copies.reads == [[0, 1], [1]]


async def test_a_bucket_that_gets_other_records_meanwhile_is_read_again() -> None:
    def rewritten() -> None:
        copies.found.shards[0] = FoundShard(0, entry(77))

    copies = ReadingCopies(make_layout(), rewritten)
    found = await copies.load()
    assert copies.reads == [[0, 1], [0]]
    assert 77 in found[0] and copies._loaded["j", 0][0].sequence == 77


async def test_damage_is_told() -> None:
    def damaged() -> None:
        raise DamagedDataError("a record is damaged")

    copies = ReadingCopies(make_layout(), damaged)
    with pytest.raises(DamagedDataError, match="a record is damaged"):
        await copies.load()


async def test_of_a_job_that_ends_meanwhile_nothing_is_taken() -> None:
    copies = ReadingCopies(make_layout(), lambda: copies._core.jobs.clear())
    assert not await copies.load()


async def test_of_a_bucket_that_is_not_held_after_all_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its places in the log may be freed, and a later copy must not get them."""

    async def no_checkpoint(*arguments: Any) -> tuple[str, None]:
        return "", None

    monkeypatch.setattr(copy_builder, "checkpoint_place", no_checkpoint)
    copies = ReadingCopies(make_layout())
    memory = SimpleNamespace(end=lambda name, size_bytes: None)
    copies._context, copies._keeper = cast(Any, None), cast(Any, SimpleNamespace(memory=memory, roots=None))
    held: list[Any] = []
    copies._carry_out = lambda instructions: held.extend(copies._loaded)  # nothing is held of what was read
    await copies._make(copies.job, 0, VIEW, BUCKETS, copies._load)
    assert held == [("j", 0), ("j", 1)] and not copies._loaded
