"""Scaling and the statistics of a data set."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.roles.data.scaling import Scaling, mean_and_deviation, scaling_for
from tests.roles.data.data_examples import pattern, source_of

RANDOM = np.random.default_rng(3).integers(0, 256, (5000, 3, 3)).astype(np.uint8)


def test_mean_and_deviation_are_those_of_all_pixels() -> None:
    mean, deviation = mean_and_deviation(source_of(RANDOM), np.arange(5000))
    assert mean == pytest.approx(RANDOM.mean(), rel=1e-6)
    assert deviation == pytest.approx(RANDOM.std(), rel=1e-6)


def test_standard_examples_have_mean_0_and_deviation_1() -> None:
    scaling = scaling_for("standard", source_of(RANDOM), np.arange(5000))
    values = RANDOM.astype(np.float32)
    scaling.apply(values)
    assert abs(values.mean()) < 1e-4 and abs(values.std() - 1) < 1e-4


def test_statistics_are_of_the_same_examples_however_much_memory_there_is() -> None:
    found = []
    for resident in (False, True):
        source = source_of(RANDOM)
        source.keeps_examples, source.resident = True, resident
        found.append(scaling_for("standard", source, np.arange(5000)))
    assert found[0] == found[1] != scaling_for("standard", source_of(RANDOM), np.arange(5000))


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


@pytest.mark.parametrize(
    "scaling", [Scaling(), Scaling(1 / 255, 0.0), Scaling(1 / 78.6, -0.4242), Scaling(1.0, 3.0), Scaling(1 / 3, 1 / 7)]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_values_scaled_into_another_array_are_bit_for_bit_those_scaled_in_place(scaling: Scaling, dtype: type) -> None:
    raw = np.arange(256).astype(dtype).reshape(4, 64)
    expected = raw.astype(np.float32)
    scaling.apply(expected)
    out = np.full(raw.shape, np.nan, np.float32)
    scaling.write(raw, out)
    assert out.tobytes() == expected.tobytes()
