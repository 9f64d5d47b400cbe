"""Sums without error: against fractions, in any order, with what is not finite."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.kernels.numeric.exact_sums import LANES, LOWEST_BIT, Totals, combined, exact_sum, expansion, row_sums
from adamctl.model.commands import Parts

singles = st.floats(width=32, allow_nan=False, allow_infinity=False)
terms = st.lists(st.tuples(singles, singles), max_size=40)


def products(pairs: list[tuple[float, float]]) -> np.ndarray:
    return np.array([a * b for a, b in pairs])


@given(terms)
@settings(max_examples=100, deadline=None)
def test_a_sum_of_products_of_float32_is_exact(pairs: list[tuple[float, float]]) -> None:
    found = exact_sum(products(pairs))
    assert Fraction(found, 1 << LOWEST_BIT) == sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction())


@given(terms)
@settings(max_examples=100, deadline=None)
def test_an_expansion_has_the_exact_sum_and_begins_with_the_nearest_number(pairs: list[tuple[float, float]]) -> None:
    numbers = expansion(exact_sum(products(pairs)))
    exact = sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction())
    assert sum(map(Fraction, numbers)) == exact
    assert numbers[0] == float(exact) == math.fsum(numbers)


@given(terms, st.randoms(use_true_random=False), st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_threads_and_servers_in_any_order_find_the_same(
    pairs: list[tuple[float, float]], random: object, cut: int
) -> None:
    straight = Totals(["dot"])
    straight.add(0, products(pairs))
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    here, there, server = Totals(["dot"]), Totals(["dot"]), Totals(["dot"])
    here.add(0, products(shuffled[:cut]))
    there.add(0, products(shuffled[cut : cut + 5]))
    server.add(0, products(shuffled[cut + 5 :]))
    there.merge(here)
    together = combined("dot", [*server.parts(), *there.parts()])
    assert together == combined("dot", straight.parts())
    there.merge(server)
    assert there.parts() == straight.parts()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3, 13])
def test_sums_of_many_threads_are_exact_whatever_does_not_fit_beside_them(threads: int, wide: bool) -> None:
    """`wide`: terms so far apart that two float64 do not hold their sum."""
    random, server, exact = np.random.default_rng(threads), Totals(["dot", "dot"]), [Fraction(), Fraction()]
    for _ in range(threads):
        one = Totals(["dot", "dot"])
        scale = 2.0 ** random.integers(-140, 140, one.pairs.shape) if wide else 1.0
        one.pairs[:] = random.standard_normal(one.pairs.shape) * scale
        if not wide:
            one.pairs[:, 1] = random.standard_normal((2, LANES)).astype(np.float32) * 2.0**-54
        exact = [total + sum(map(Fraction, own.ravel().tolist())) for total, own in zip(exact, one.pairs, strict=True)]
        server.merge(one)
    found = server.parts()
    assert [sum(map(Fraction, part.numbers)) for part in found] == exact
    assert [part.numbers[0] for part in found] == [float(total) for total in exact]
    assert max(len(part.numbers) for part in found) > 2 or not wide


@pytest.mark.parametrize("size", [1, 7, 8, 9, 75, 1000])
def test_a_row_is_summed_in_eight_lanes_which_are_then_added_in_pairs(size: int) -> None:
    row = np.random.default_rng(size).standard_normal(size)
    lanes = [0.0] * 8
    for place, value in enumerate(row.tolist()):
        lanes[place % 8] += value
    expected = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
    assert row_sums(np.array([row, 2 * row])).tolist() == [expected, 2 * expected]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1.0, math.inf, 2.0], math.inf),
        ([-math.inf, 1e70], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.inf, math.nan, -math.inf], math.nan),
    ],
)
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_what_is_not_finite_stays_whoever_found_it(numbers: list[float], expected: float, servers: int) -> None:
    parts = []
    for server in range(servers):
        totals = Totals(["sum"])
        totals.add(0, np.array(numbers[server::servers]))
        parts += totals.parts()
    assert combined("sum", parts) == pytest.approx(expected, nan_ok=True)


def test_nothing_has_the_sum_zero_and_the_largest_zero() -> None:
    totals = Totals(["dot", "max_abs", "count_nonzero"])
    assert totals.parts() == [Parts((0.0,))] * 3
    assert combined("max_abs", []) == combined("dot", []) == 0.0


def test_a_maximum_finds_nan_of_any_server() -> None:
    assert combined("max_abs", [Parts((3.0,)), Parts((5.0,)), Parts((1.0,))]) == 5.0
    assert math.isnan(combined("max_abs", [Parts((3.0,)), Parts((math.nan,)), Parts((math.inf,))]))


def test_merging_takes_the_largest_and_adds_counts() -> None:
    one, other = Totals(["max_abs", "count_nonzero"]), Totals(["max_abs", "count_nonzero"])
    one.largest[0], other.largest[0] = np.float32(2.5).view(np.uint32), np.float32(1.5).view(np.uint32)
    one.counts[1], other.counts[1] = 3, 4
    one.merge(other)
    assert one.parts() == [Parts((2.5,)), Parts((7.0,))]
