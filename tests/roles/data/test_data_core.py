"""What data servers decide alone and alike: order, splits, ranges, memory, what to prepare ahead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adamctl.config.data import DataConfig
from adamctl.roles.data.core import (
    FILE_ORDER,
    AheadPlanner,
    Holder,
    Ledger,
    Range,
    dataset_identity,
    datasets_to_close,
    pass_order,
    plan_cache,
    range_problem,
    split_validation,
)

seeds = st.integers(-(2**63), 2**64)
passes = st.integers(0, 10**6)
ORDER_OF_SEED_7 = [8, 7, 6, 0, 4, 3, 9, 5, 1, 2]


@given(st.integers(0, 300), seeds, passes)
def test_a_pass_visits_every_example_exactly_once(examples: int, seed: int, pass_number: int) -> None:
    assert sorted(pass_order(examples, seed, pass_number).tolist()) == list(range(examples))


@given(st.integers(50, 300), seeds, passes)
def test_servers_agree_and_passes_and_seeds_differ(examples: int, seed: int, pass_number: int) -> None:
    order = pass_order(examples, seed, pass_number).tolist()
    assert pass_order(examples, seed, pass_number).tolist() == order
    assert pass_order(examples, seed, pass_number + 1).tolist() != order
    assert pass_order(examples, seed + 1, pass_number).tolist() != order


def test_the_order_never_changes_between_releases() -> None:
    assert pass_order(10, 7, 0).tolist() == ORDER_OF_SEED_7
    assert pass_order(5, 7, FILE_ORDER).tolist() == [0, 1, 2, 3, 4]


def test_an_order_is_random() -> None:
    """Each example comes first about equally often."""
    first = np.bincount([pass_order(4, 7, pass_number)[0] for pass_number in range(4000)])
    assert first.min() > 850 and first.max() < 1150


@given(st.integers(0, 500), st.floats(0, 0.99), seeds)
def test_validation_is_held_out_of_training(examples: int, share: float, seed: int) -> None:
    train, validation = split_validation(examples, share, seed)
    assert len(validation) == round(examples * share)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(examples))


def test_identity_depends_on_everything_that_examples_depend_on() -> None:
    base = (DataConfig(), (8, 8, 1), 7)
    assert dataset_identity(*base) == dataset_identity(DataConfig(), [8, 8, 1], 7)
    others = [
        (DataConfig(format="idx"), (8, 8, 1), 7),
        (DataConfig(source="x"), (8, 8, 1), 7),
        (DataConfig(validation=0.1), (8, 8, 1), 7),
        (DataConfig(stratify=True), (8, 8, 1), 7),
        (DataConfig(scale="standard"), (8, 8, 1), 7),
        (DataConfig(search=("a",)), (8, 8, 1), 7),
        (DataConfig(), (64,), 7),
        (DataConfig(), (8, 8, 1), 8),
    ]
    assert len({dataset_identity(*each) for each in [base, *others]}) == len(others) + 1


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (Range("training", 0, 0, 1), "splits"),
        (Range("train", -2, 0, 1), "pass number"),
        (Range("train", 0, -1, 1), "start"),
        (Range("train", 0, 3, 3), "start"),
        (Range("train", 0, 5, 4), "start"),
        (Range("train", 0, 0, 11), "<= 10"),
        (Range("test", 0, 0, 1), "<= 0"),
    ],
)
def test_a_range_outside_the_split_is_refused_with_a_reason(asked: Range, found: str) -> None:
    assert found in str(range_problem(asked, {"train": 10, "test": 0}, 1000))


def test_a_range_longer_than_a_body_is_refused() -> None:
    assert "in parts" in str(range_problem(Range("train", 0, 0, 100), {"train": 100}, 7))
    assert range_problem(Range("train", -1, 0, 7), {"train": 100}, 7) is None


# --- memory ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.booleans(), st.integers(-5, 10**10))
def test_a_cache_never_takes_more_than_its_budget(
    examples: int, example_bytes: int, resident: bool, budget: int
) -> None:
    plan = plan_cache(examples, example_bytes, resident=resident, budget_bytes=budget)
    assert plan.size_bytes <= max(budget, 0)
    assert plan.examples <= examples
    assert plan.size_bytes == plan.examples * example_bytes


def test_what_fits_is_kept_and_what_the_source_has_in_memory_not_again() -> None:
    def form(budget: int, resident: bool) -> tuple[str, int]:
        plan = plan_cache(100, 10, resident=resident, budget_bytes=budget)
        return plan.form, plan.examples

    assert form(1000, False) == ("all", 100)
    assert form(999, False) == ("part", 99)
    assert form(555, False) == ("part", 55)
    assert form(1000, True) == ("none", 0)
    assert form(9, False) == ("none", 0)


def test_only_idle_data_sets_are_closed_oldest_first() -> None:
    holders = [Holder("busy", 50, 1.0), Holder("old", 30, 100.0), Holder("older", 30, 200.0)]
    assert datasets_to_close(holders, 10, 200, 60) == []
    assert datasets_to_close(holders, 20, 100, 60) == ["older"]
    assert datasets_to_close(holders, 50, 100, 60) == ["older", "old"]
    assert datasets_to_close(holders, 500, 100, 60) == ["older", "old"]


# --- ahead ----------------------------------------------------------------------------------------------------------


def test_the_next_ranges_of_the_pass_are_prepared() -> None:
    planner = AheadPlanner(3)
    assert planner.asked("d", Range("train", 2, 0, 10), 100) == [
        Range("train", 2, 10, 20),
        Range("train", 2, 20, 30),
        Range("train", 2, 30, 40),
    ]


def test_a_server_that_shares_a_pass_prepares_its_own_ranges() -> None:
    planner = AheadPlanner(2)
    planner.asked("d", Range("train", 0, 10, 20), 100)
    assert planner.asked("d", Range("train", 0, 40, 50), 100) == [Range("train", 0, 70, 80), Range("train", 1, 10, 20)]


def test_workers_that_overtake_each_other_do_not_disturb_it() -> None:
    planner = AheadPlanner(1)
    for start in (0, 20, 10, 30, 50):
        ahead = planner.asked("d", Range("train", 0, start, start + 10), 100)
    assert ahead == [Range("train", 0, 60, 70)]
    assert planner.asked("d", Range("train", 0, 40, 50), 100) == [Range("train", 0, 60, 70)]


def test_at_the_end_of_a_pass_the_next_one_is_prepared() -> None:
    planner = AheadPlanner(2)
    planner.asked("d", Range("train", 0, 0, 10), 25)
    planner.asked("d", Range("train", 0, 10, 20), 25)
    assert planner.asked("d", Range("train", 0, 20, 25), 25) == [Range("train", 1, 0, 10), Range("train", 1, 10, 20)]


def test_file_order_has_no_next_pass() -> None:
    planner = AheadPlanner(4)
    assert planner.asked("d", Range("test", FILE_ORDER, 90, 100), 100) == []


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)), max_size=60))
def test_what_is_prepared_is_always_readable_and_bounded(reads: list[tuple[int, int]]) -> None:
    planner = AheadPlanner(5)
    for start, length in reads:
        asked = Range("train", 0, start, min(start + length, 100))
        ahead = planner.asked("d", asked, 100)
        assert len(ahead) <= 5 and len(set(ahead)) == len(ahead)
        assert all(range_problem(each, {"train": 100}, 1000) is None for each in ahead)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=80))
def test_the_ledger_keeps_its_bound_and_drops_the_oldest(admissions: list[tuple[int, int]]) -> None:
    ledger: Ledger[int] = Ledger(100)
    model: list[tuple[int, int]] = []
    for key, size in admissions:
        model = [entry for entry in model if entry[0] != key]
        dropped = ledger.admit(key, size)
        expected = []
        while sum(entry[1] for entry in model) + size > 100:
            expected.append(model.pop(0)[0])
        model.append((key, size))
        assert dropped == expected
        assert ledger.used_bytes == sum(entry[1] for entry in model) <= 100


def test_the_ledger_does_not_drop_what_is_still_wanted() -> None:
    ledger: Ledger[str] = Ledger(100)
    ledger.admit("a", 60)
    assert ledger.admit("b", 60, keep={"a"}) is None
    assert "a" in ledger and "b" not in ledger and len(ledger) == 1
    assert ledger.admit("c", 101) is None
    ledger.remove("a")
    assert ledger.used_bytes == 0
