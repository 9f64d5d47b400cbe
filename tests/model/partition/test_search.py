"""Cuts are improved where that pays, and the number of partitions follows memory first, speed second."""

from __future__ import annotations

import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, Dropout, MaxPool2D, Model, Softmax
from adamctl.model.partition.cost import price
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.search import (
    choose_partitions,
    compare,
    find_cuts,
    largest_bytes,
    smallest_that_fits,
    too_large,
)
from adamctl.model.partition.work import Work
from tests.model.partition.machines import Even, conditions

DENSE = Model((1000,), (Dense(600), Dense(400), Softmax(10)))
IMAGES = Model((35, 20, 3), (Conv2D(8, 5), MaxPool2D(3, 2), Dropout(0.1), Dense(40), Softmax(10)))


def test_a_boundary_moves_to_where_both_sides_take_equally_long() -> None:
    """15 pooled rows are 7 and 8; the even cut of an odd number stays, one that is lopsided does not."""
    plan, found = find_cuts(IMAGES, 2, Even(), conditions(flights=9))
    ruled = price(make_plan(IMAGES, 2), Even(), conditions(flights=9))
    assert found.interval_s <= ruled.interval_s
    assert max(found.compute_s) / min(found.compute_s) < 1.1
    assert plan.stages[1].cut == plan.stages[0].cut  # dropout follows


def test_a_users_cut_stays() -> None:
    cut = Cut("units", (100,))
    plan, _ = find_cuts(DENSE, 2, Even(), conditions(), {"dense1": cut, "softmax1": Cut(whole=1)})
    assert plan.stages[0].cut == cut and plan.stages[2].cut == Cut(whole=1)


def test_a_small_head_is_left_whole_where_latency_is_dear() -> None:
    plan, found = find_cuts(DENSE, 2, Even(), conditions(latency_s=1.0, flights=1))
    assert found.interval_s < price(make_plan(DENSE, 2), Even(), conditions(latency_s=1.0, flights=1)).interval_s
    assert {stage.cut.axis for stage in plan.stages} == {"whole"}


def test_the_search_is_the_same_every_time() -> None:
    assert find_cuts(IMAGES, 3, Even(), conditions()) == find_cuts(IMAGES, 3, Even(), conditions())


def test_replicas_win_where_nothing_has_to_be_sent_to_servers() -> None:
    choice = compare(DENSE, 2, Even(), conditions(bytes_per_s=1e6, steps_per_push=10**6))
    assert choice.wins == "replicas" and choice.replicas.examples_per_s > choice.price.examples_per_s


class Caches(Even):
    """Work out of cache takes ten times as long (Adam 3.2.4)."""

    def seconds(self, work: Work, batch: int) -> float:
        return super().seconds(work, batch) * (10 if work.working_set_bytes > 1 << 20 else 1)


def test_partitions_win_where_a_part_fits_a_cache_and_the_whole_does_not() -> None:
    choice = compare(DENSE, 4, Caches(), conditions(flights=4))
    assert choice.wins == "partitions"
    assert choice.price.examples_per_s > 5 * choice.replicas.examples_per_s


def test_the_memory_decides_before_the_speed() -> None:
    whole, half = (largest_bytes(make_plan(DENSE, p), conditions()) for p in (1, 2))
    assert half < whole
    slow = conditions(memory_bytes=half + 1000, bytes_per_s=1e3)
    choice = compare(DENSE, 2, Even(), slow)
    assert choice.wins == "partitions" and not choice.replicas.fits
    assert choose_partitions(DENSE, 4, Even(), slow).plan.partitions in (2, 4)
    chosen = choose_partitions(DENSE, 4, Even(), conditions(bytes_per_s=1e6, steps_per_push=10**6))
    assert chosen.plan.partitions == 1 and chosen.wins == "replicas" and chosen.price == chosen.replicas
    assert choose_partitions(DENSE, 4, Even(), slow).wins == "partitions"
    assert choose_partitions(DENSE, 4, Even(), conditions(flights=9), numbers=(4,)).plan.partitions == 4
    assert compare(DENSE, 2, Even(), conditions(memory_bytes=1000)).wins == "neither"


def test_what_does_not_fit_is_refused_with_the_smallest_number_that_does() -> None:
    sizes = {p: largest_bytes(make_plan(DENSE, p), conditions()) for p in range(1, 10)}
    limited = conditions(memory_bytes=sizes[5])
    assert smallest_that_fits(DENSE, limited) == min(p for p in sizes if sizes[p] <= sizes[5]) > 2
    with pytest.raises(ConfigurationError, match=r"2 workers of .* GB each: .* needs .* GB; .* fits is 5: set"):
        choose_partitions(DENSE, 2, Even(), limited)
    assert "no cut into up to 64 partitions meets it" in str(
        too_large("a worker", 1, 2, smallest_that_fits(DENSE, conditions(memory_bytes=1)))
    )


def test_cuts_for_one_number_of_partitions_are_even_for_another() -> None:
    cuts = {"dense1": Cut("units", (100,)), "softmax1": Cut(whole=0)}
    assert find_cuts(DENSE, 3, Even(), conditions(), cuts)[0].stages[0].cut == Cut("units", (200, 400))
    assert smallest_that_fits(DENSE, conditions(), cuts) == 1
