"""Steps of a round: every sum once, vectors shared where possible, differences computed when they have changed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adamctl.kernels.backend import compiled, installed
from adamctl.kernels.numeric import exact_sums, round_steps
from adamctl.kernels.numeric.round_steps import DIFFERENCE, GRID, NOTHING, PAIRS, SET, lay_out, together
from adamctl.model.commands import Apply, Reduce, Set


def sums_of(step: tuple[int, ...]) -> list[tuple[frozenset[int], int]]:
    """Pairs of slots, and the reductions that get their products."""
    if step[0] == GRID:
        pairs = [(left, right) for left in step[1:5] for right in step[5:7]]
        numbers = step[7:15]
    else:
        assert step[0] == PAIRS
        pairs = list(zip(step[1:9:2], step[2:9:2], strict=True))
        numbers = step[9:13]
    return [(frozenset(pair), number) for pair, number in zip(pairs, numbers, strict=True) if number != NOTHING]


@example([(0, 0), (0, 1), (1, 1)])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_every_sum_is_found_once(pairs: list[tuple[int, int]]) -> None:
    steps = together([(a, b, number) for number, (a, b) in enumerate(pairs)])
    found = Counter(one for step in steps for one in sums_of(step))
    assert found == Counter((frozenset(pair), number) for number, pair in enumerate(pairs))


def test_products_of_a_history_with_two_vectors_read_it_once() -> None:
    history = range(20)
    dots = [(one, right, 2 * one + place) for one in history for place, right in enumerate((20, 21))]
    steps = together(dots)
    assert [step[0] for step in steps] == [GRID] * 5
    assert sorted(slot for step in steps for slot in step[1:5]) == list(history)


def test_few_sums_are_made_four_at_a_time() -> None:
    assert [step[0] for step in together([(0, 0, 0), (1, 1, 1), (2, 3, 2), (4, 5, 3), (6, 7, 4)])] == [PAIRS] * 2


def kinds(steps: round_steps.RoundSteps) -> list[int]:
    return steps.steps[:, 0].tolist()


def test_a_difference_is_computed_once_until_one_of_its_vectors_is_written() -> None:
    dot = Reduce("dot", (("a", "b"), ("a", "b")))
    once = lay_out([dot, Reduce("max_abs", (("a", "b"),)), Set("c"), dot], ["a", "b", "c"])
    assert kinds(once).count(DIFFERENCE) == 1
    again = lay_out([dot, Set("b"), dot], ["a", "b", "c"])
    assert kinds(again) == [DIFFERENCE, PAIRS, SET, DIFFERENCE, PAIRS]
    assert again.blocks == 1, "the second takes the block of the first"
    applied = lay_out([Apply("c", "sqrt", (("a", "b"),)), Set("a"), Apply("c", "abs", (("a", "b"),))], ["a", "b", "c"])
    assert kinds(applied).count(DIFFERENCE) == 2


def test_sums_wait_for_each_other_but_not_beyond_a_write_of_what_they_read() -> None:
    dots = [Reduce("dot", (("a",), ("b",))), Set("c", ((1.0, "a"),)), Reduce("dot", (("a",), ("a",)))]
    assert kinds(lay_out(dots, ["a", "b", "c"])) == [SET, PAIRS]
    assert kinds(lay_out([dots[0], Set("a"), dots[2]], ["a", "b", "c"])) == [PAIRS, SET, PAIRS]


@pytest.mark.skipif("numba" not in installed(), reason="needs numba")
def test_the_interpreter_knows_the_steps_by_the_same_numbers() -> None:
    rounds = compiled("rounds")
    assert (SET, DIFFERENCE, GRID, PAIRS, round_steps.MAX_ABS, round_steps.COUNT) == (
        rounds.SET, rounds.DIFFERENCE, rounds.GRID_STEP, rounds.PAIRS_STEP, rounds.MAX_ABS, rounds.COUNT
    )  # fmt: skip
    for place, operation in enumerate(round_steps.APPLIED):
        assert getattr(rounds, operation.upper()) == round_steps.APPLY + place
    assert (exact_sums.LANES, exact_sums.LOWEST_BIT) == (rounds.LANES, rounds.LOWEST_BIT)
    assert exact_sums.ADDITIONS_MAX == rounds.ADDITIONS_MAX
    assert len(rounds.GRID) == round_steps.GRID_LEFT * round_steps.GRID_RIGHT
    assert len(rounds.PAIRS) == round_steps.PAIRS_MAX
