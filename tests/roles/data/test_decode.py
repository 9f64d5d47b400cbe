"""Scaling, statistics, decoded examples in memory, and the decoding threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.roles.data.core import CachePlan, plan_cache
from adamctl.roles.data.decode import DecodePool, ExampleCache, Scaling, mean_and_deviation, scaling_for
from adamctl.roles.data.readers.source import TableSource
from tests.roles.data.data_examples import pattern


def source_of(images: NDArray[Any], value_max: float = 255.0) -> TableSource:
    labels = np.zeros(len(images), np.int32)
    return TableSource(
        "npz",
        {"train": (images, labels), "test": (images[:0], labels[:0])},
        value_max=value_max,
        stored_bytes=0,
        input_shape=None,
        origin="test",
    )


RANDOM = np.random.default_rng(3).integers(0, 256, (5000, 3, 3)).astype(np.uint8)


def test_mean_and_deviation_are_those_of_all_pixels() -> None:
    mean, deviation = mean_and_deviation(source_of(RANDOM), np.arange(5000))
    assert mean == pytest.approx(RANDOM.mean(), rel=1e-6)
    assert deviation == pytest.approx(RANDOM.std(), rel=1e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_standard_examples_have_mean_0_and_deviation_1(whole: bool) -> None:
    scaling = scaling_for("standard", source_of(RANDOM), np.arange(5000))
    values = RANDOM.astype(np.float32)
    (scaling.apply_whole if whole else scaling.apply)(values)
    assert abs(values.mean()) < 1e-4 and abs(values.std() - 1) < 1e-4


def test_statistics_leave_out_what_is_held_out() -> None:
    images = pattern(10)
    mean, _ = mean_and_deviation(source_of(images), np.array([0, 2]))
    assert mean == 1


def test_unit_divides_by_the_largest_value_and_none_by_nothing() -> None:
    assert scaling_for("unit", source_of(RANDOM, 16.0), np.arange(3)) == Scaling(1 / 16, 0.0)
    assert scaling_for("none", source_of(RANDOM), np.arange(3)) == Scaling(1.0, 0.0)


def test_equal_pixels_do_not_divide_by_zero() -> None:
    scaling = scaling_for("standard", source_of(np.full((4, 2, 2), 9, np.uint8)), np.arange(4))
    values = np.full(4, 9, np.float32)
    scaling.apply(values)
    np.testing.assert_allclose(values, 0, atol=1e-2)


class CountingSource(TableSource):
    """A source that must decode, and counts how often."""

    resident = False
    loaded = 0

    def load(self, split: Any, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        self.loaded += len(indices)
        super().load(split, indices, out)


@pytest.mark.parametrize("budget", [0, 16 * 7, 16 * 20, 16 * 4 * 20, 10**6])
def test_whatever_is_kept_the_same_examples_come_out(budget: int) -> None:
    images = pattern(20)
    labels = np.zeros(20, np.int32)
    source = CountingSource(
        "x",
        {"train": (images, labels), "test": (images[:0], labels[:0])},
        value_max=255.0,
        stored_bytes=0,
        input_shape=None,
        origin="test",
    )
    plan = plan_cache(20, 16, raw_item_bytes=1, resident=False, budget_bytes=budget)
    cache = ExampleCache(plan, source, "train", Scaling(0.5, 1.0))
    random = np.random.default_rng(5)
    for _ in range(6):
        indices = random.permutation(20)[: random.integers(1, 21)].astype(np.int64)
        out = np.empty((len(indices), 16), np.float32)
        cache.gather(indices, out)
        np.testing.assert_array_equal(out, np.repeat(indices[:, None] * 0.5 + 1, 16, axis=1))
    assert cache.filled_bytes <= plan.size_bytes <= max(budget, 0)
    before = source.loaded
    cache.gather(np.arange(20), np.empty((20, 16), np.float32))
    cache.gather(np.arange(20), np.empty((20, 16), np.float32))
    assert source.loaded - before <= 2 * (20 - plan.examples) + plan.examples
    if plan.examples == 20:
        assert source.loaded == 20, "what is kept is decoded once"


def test_filling_ahead_gives_the_same_values_as_asking() -> None:
    cache = ExampleCache(CachePlan("ready", 5000, 5000 * 36), source_of(RANDOM), "train", Scaling(0.1, -3.0))
    asked = np.empty((3, 9), np.float32)
    cache.gather(np.array([4999, 0, 7]), asked)
    cache.fill(0, 5000)
    again = np.empty((3, 9), np.float32)
    cache.gather(np.array([4999, 0, 7]), again)
    np.testing.assert_allclose(asked, again, rtol=1e-6)
    assert cache.filled_bytes == cache.plan.size_bytes


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
