"""Decoded examples in memory, and the decoding threads."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.errors import DamagedDataError
from adamctl.roles.data.core import plan_cache
from adamctl.roles.data.readers.source import TableSource
from adamctl.roles.data.sets import decode as decode_module
from adamctl.roles.data.sets.decode import DecodePool, ExampleCache
from tests.roles.data.data_examples import pattern, source_of


class CountingSource(TableSource):
    """A source that must decode, and counts how often."""

    resident = False
    loaded = 0

    def load(self, split: Any, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        self.loaded += len(indices)
        super().load(split, indices, out)


@pytest.mark.parametrize("budget", [0, 16 * 7, 16 * 19, 16 * 20, 10**6])
def test_whatever_is_kept_the_same_examples_come_out(budget: int) -> None:
    source = source_of(pattern(20), kind=CountingSource)
    plan = plan_cache(20, 16, resident=False, budget_bytes=budget)
    cache = ExampleCache(plan, source, "train")
    random = np.random.default_rng(5)
    for _ in range(6):
        indices = random.permutation(20)[: random.integers(1, 21)].astype(np.int64)
        out = np.empty((len(indices), 16), np.uint8)
        cache.gather(indices, out)
        np.testing.assert_array_equal(out, np.repeat(indices[:, None], 16, axis=1))
    assert cache.filled_bytes <= plan.size_bytes <= max(budget, 0)
    before = source.loaded
    cache.gather(np.arange(20), np.empty((20, 16), np.uint8))
    cache.gather(np.arange(20), np.empty((20, 16), np.uint8))
    assert source.loaded - before <= 2 * (20 - plan.examples) + plan.examples
    if plan.examples == 20:
        assert source.loaded == 20, "what is kept is decoded once"


def test_readers_get_what_they_ask_for_while_places_change_hands() -> None:
    """Threads read at random, and what the server owns changes all the time."""
    images = np.arange(400, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    source = source_of(images, kind=CountingSource)
    cache = ExampleCache(plan_cache(400, 16, resident=False, budget_bytes=16 * 100), source, "train")
    wrong: list[int] = []

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        for turn in range(300):
            owner = random.integers(0, 4)
            if turn % 3 == 0:
                cache.own(np.arange(400) % 4 == owner)
            indices = np.flatnonzero(np.arange(400) % 4 == owner)[random.permutation(100)[:30]]
            out = np.empty((len(indices), 16), np.uint8)
            cache.gather(indices, out)
            wrong.extend(indices[(out != (indices % 256)[:, None]).any(axis=1)].tolist())

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert wrong == []
    assert cache._places is not None and cache._places.turns.sum() > 100


def test_numbers_in_memory_are_checked_once_and_bad_ones_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(3).random((10, 3, 3), np.float32)
    images[7, 1, 1] = np.nan
    source = source_of(images)
    cache = ExampleCache(plan_cache(10, 36, resident=True, budget_bytes=10**6), source, "train")
    out = np.empty((3, 9), np.float32)
    for _ in range(2):
        with pytest.raises(DamagedDataError, match="found nan in example 7"):
            cache.gather(np.array([1, 7, 2]), out)
    checked: list[int] = []
    monkeypatch.setattr(decode_module, "check_finite", lambda values, indices, origin: checked.extend(indices))
    for indices in ([1, 2, 3], [3, 1, 2], [2, 3, 4]):
        cache.gather(np.array(indices), out)
        np.testing.assert_array_equal(out, images[indices].reshape(3, 9))
    assert checked == [1, 2, 3, 2, 3, 4]


def test_urgent_tasks_come_first_equals_in_order() -> None:
    pool = DecodePool(1, 10)
    began, go_on, done = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []
    pool.submit(0, [lambda: (began.set(), go_on.wait(10))])
    assert began.wait(10)
    pool.submit(2, [lambda: order.append("fill"), done.set])
    pool.submit(1, [lambda: order.append("ahead 1"), lambda: order.append("ahead 2")])
    pool.submit(0, [lambda: order.append("urgent")])
    go_on.set()
    assert done.wait(10)
    pool.close()
    assert order == ["urgent", "ahead 1", "ahead 2", "fill"]


def test_the_queue_is_bounded_and_takes_all_of_a_range_or_nothing() -> None:
    pool = DecodePool(1, 2)
    began, go_on = threading.Event(), threading.Event()
    pool.submit(0, [lambda: (began.set(), go_on.wait(10))])
    assert began.wait(10)
    assert not pool.submit(0, [lambda: None] * 3)
    assert pool.waiting == 0
    assert pool.submit(0, [lambda: None] * 2)
    assert not pool.submit(0, [lambda: None])
    go_on.set()
    pool.close()
    assert not pool.submit(0, [lambda: None])


def test_a_task_that_fails_does_not_end_its_thread() -> None:
    pool = DecodePool(1, 4)
    done = threading.Event()
    pool.submit(0, [lambda: 1 // 0, done.set])
    assert done.wait(10)
    pool.close()
