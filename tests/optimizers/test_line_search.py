"""The line search makes the steps of MINPACK-2's `dcsrch`, one by one, and knows what rounding and infinities are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from adamctl.optimizers.line_search import ROUNDING, SUFFICIENT_DECREASE, LineSearch, Trial

Function: TypeAlias = Callable[[float], tuple[float, float]]


def search(function: Function, first_step: float, **settings: Any) -> tuple[list[float], LineSearch]:
    """Returns the steps that were tried, and the search at its end."""
    one = LineSearch(*function(0.0), first_step, **settings)
    steps = []
    while not one.ended:
        steps.append(one.step)
        one.tried(*function(one.step))
    return steps, one


def steps_of_scipy(
    function: Function, first_step: float, c1: float, c2: float, step_max: float
) -> tuple[list[float], bool]:
    dcsrch = pytest.importorskip("scipy.optimize._dcsrch").DCSRCH(None, None, c1, c2, 1e-14, 0.0, step_max)
    step, _, _, task = dcsrch._iterate(first_step, *function(0.0), b"START")
    steps = []
    while task[:2] == b"FG" and len(steps) < 20:
        steps.append(float(step))
        step, _, _, task = dcsrch._iterate(step, *function(step), task)
    return steps, task[:4] == b"CONV"


def wavy(seed: int) -> Function:
    """A bowl of random depth with waves on it, going down at 0."""
    chance = random.Random(seed)
    bottom, power = 10 ** chance.uniform(-3, 3), chance.choice([2, 4])
    waves = [(chance.uniform(0, 0.5), chance.uniform(0, 30), chance.uniform(0, 6.3)) for _ in range(3)]

    def function(step: float) -> tuple[float, float]:
        z = step / bottom - 1
        value, slope = abs(z) ** power, power * abs(z) ** (power - 1) * math.copysign(1, z)
        for height, frequency, phase in waves:
            value += height * math.sin(frequency * z + phase)
            slope += height * frequency * math.cos(frequency * z + phase)
        return value, slope / bottom

    return function


def more_thuente(number: int) -> Function:
    """The first three test functions of More and Thuente's section 5."""

    def function(a: float) -> tuple[float, float]:
        if number == 1:
            return -a / (a * a + 2), (a * a - 2) / (a * a + 2) ** 2
        if number == 2:
            z = a + 0.004
            return z**5 - 2 * z**4, 5 * z**4 - 8 * z**3
        curve = 2 * 0.99 / (39 * math.pi) * math.sin(39 * math.pi / 2 * a)
        slope = 0.99 * math.cos(39 * math.pi / 2 * a)
        if a <= 0.99:
            return 1 - a + curve, -1 + slope
        if a >= 1.01:
            return a - 1 + curve, 1 + slope
        return (a - 1) ** 2 / 0.02 + 0.005 + curve, (a - 1) / 0.01 + slope

    return function


def expect_the_steps_of_scipy(function: Function, first_step: float, c1: float, c2: float, step_max: float) -> int:
    expected, converged = steps_of_scipy(function, first_step, c1, c2, step_max)
    settings = {"sufficient_decrease": c1, "curvature": c2, "approximate": False, "step_max": step_max}
    steps, found = search(function, first_step, **settings)
    assert steps == pytest.approx(expected, rel=1e-12)
    assert found.succeeded == converged
    return len(steps)


def test_steps_are_those_of_dcsrch_on_random_functions() -> None:
    lengths = []
    for seed in range(3000):
        function, chance = wavy(seed), random.Random(seed)
        if function(0.0)[1] < 0:
            first_step, step_max = 10 ** chance.uniform(-3, 3), chance.choice([1e10, 2e3])
            c1, c2 = chance.choice([(1e-4, 0.9), (1e-4, 0.1), (1e-4, 1e-3), (0.3, 0.1), (0.1, 1e-3)])
            lengths.append(expect_the_steps_of_scipy(function, first_step, c1, c2, step_max))
    assert len(lengths) > 1000
    assert sum(length > 4 for length in lengths) > 500


@pytest.mark.parametrize("first_step", [1e-3, 1e-1, 10.0, 1e3])
@pytest.mark.parametrize(("number", "c1", "c2"), [(1, 1e-3, 1e-1), (2, 1e-1, 1e-1), (3, 1e-1, 1e-1)])
def test_steps_are_those_of_dcsrch_on_the_functions_of_the_paper(
    number: int, c1: float, c2: float, first_step: float
) -> None:
    expect_the_steps_of_scipy(more_thuente(number), first_step, c1, c2, 4e3)


def test_what_is_accepted_fulfils_the_wolfe_conditions() -> None:
    for seed in range(300):
        function = wavy(seed)
        value, slope = function(0.0)
        if slope >= 0:
            continue
        _, found = search(function, 1.0, approximate=False)
        if found.succeeded:
            there = function(found.step)
            assert there[0] <= value + SUFFICIENT_DECREASE * found.step * slope, seed
            assert abs(there[1]) <= 0.9 * abs(slope), seed


def test_a_loss_that_rounding_has_levelled_is_accepted_by_its_slope() -> None:
    """Near a minimum a float32 loss shows no decrease, but the slope, which is computed from gradients, tells."""

    def levelled(step: float) -> tuple[float, float]:
        return 1.0 + 1e-8 * (step > 0), 1e-9 * (step - 1)

    assert not search(levelled, 0.5, approximate=False, curvature=0.1)[1].succeeded
    steps, found = search(levelled, 1.0, curvature=0.1)
    assert found.succeeded
    assert steps == [1.0]


def test_where_losses_differ_by_more_than_rounding_slopes_are_not_enough() -> None:
    def hardly_falling(step: float) -> tuple[float, float]:
        return 1.0 - 2 * ROUNDING * step, 0.0 if step else -1.0

    assert len(search(hardly_falling, 1.0)[0]) > 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("of_slope", [False, True])
def test_what_is_not_finite_counts_as_infinite_and_a_tenth_is_tried(bad: float, of_slope: bool) -> None:
    def walled(step: float) -> tuple[float, float]:
        value, slope = (step - 0.03) ** 2, 2 * (step - 0.03)
        if step > 0.05:
            return (value, bad) if of_slope else (bad, slope)
        return value, slope

    steps, found = search(walled, 1.0, curvature=0.1)
    assert steps[:3] == pytest.approx([1.0, 0.1, 0.01], rel=1e-15)
    assert found.succeeded
    assert found.step == pytest.approx(0.03, rel=0.1)


def test_a_search_never_goes_back_to_where_the_loss_was_infinite() -> None:
    for seed in range(200):
        wall = 10 ** random.Random(seed).uniform(-6, 0)

        def walled(step: float, wall: float = wall) -> tuple[float, float]:
            return (-step, -1.0) if step < wall else (math.nan, 0.0)

        steps, found = search(walled, 1.0)
        infinite = [step for step in steps if step >= wall]
        assert infinite == sorted(infinite, reverse=True)
        assert len(set(steps)) == len(steps)
        assert found.best is not None
        assert found.best.step < wall


def test_the_best_decrease_is_kept_when_the_search_fails() -> None:
    def falling(step: float) -> tuple[float, float]:
        return -step, -1.0

    steps, found = search(falling, 1.0, evaluations_max=5)
    assert (len(steps), found.succeeded) == (5, False)
    assert found.best == Trial(steps[-1], -steps[-1], -1.0)
    rising = search(lambda step: (step, -1.0), 1.0)[1]
    assert (rising.succeeded, rising.best) == (False, None)


def test_a_search_ends_after_20_evaluations_whatever_it_is_told() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        one = LineSearch(0.0, -1.0, 1.0)
        while not one.ended:
            assert math.isfinite(one.step)
            assert one.step >= 0
            scale = 10.0 ** chance.choice([0, 0, -300, 300, 308])
            one.tried(*(chance.choice([chance.gauss(0, 1) * scale, math.nan, 0.0, 1.0, -1.0]) for _ in range(2)))
        assert one.evaluations <= 20
