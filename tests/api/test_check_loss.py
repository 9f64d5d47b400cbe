"""`adam.check_loss` names what is wrong with a loss, where, and both values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError, CustomError
from adamctl.kernels.backend import installed
from adamctl.kernels.native import can_compile
from tests import losses_for_tests as losses

NUMBER = r"-?\d[-+.\de]*"


@pytest.mark.parametrize(
    "loss", [losses.Absolute, losses.Margin, losses.NumpyTargets, losses.Absolute(), "tests.losses_for_tests:Margin"]
)
def test_losses_that_keep_their_promises_pass(loss: type[adam.Loss]) -> None:
    for seed in range(3):
        adam.check_loss(loss, seed=seed)
    adam.check_loss(loss, units=2, batch=1)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (losses.Half, r"error: \[0, 0\]: expected the derivative .* by differences; found "),
        (losses.PartWritten, r"error: \[0, 0\]: expected a finite number in out; found nan"),
        (losses.Returned, r"error: expected results in out and nothing returned; found ndarray: write out"),
        (losses.OfTheBatch, r"evaluate: \[0\]: the loss of an example depends on the others"),
        (losses.OneNumber, r"evaluate: expected the loss of each example, shape \[6\]; found \[\]"),
        (losses.Writes, r"evaluate: \[0, 0\]: outputs are to be read only: before and after, .* and "),
        (losses.Remembers, r"evaluate: \[0\]: the same examples give other results: at first and again, .* and "),
        (losses.Means, r"measure: \[0\]: sums of two halves must add up to that of the whole, .*; found "),
        (losses.Endless, r"evaluate: \[2\]: expected a finite number; found inf"),
    ],
)
def test_each_fault_is_named(loss: type[adam.Loss], said: str) -> None:
    with pytest.raises(CustomError, match=f"^{loss.__name__}.{said}"):
        adam.check_loss(loss)


@pytest.mark.skipif("numba" not in installed() or not can_compile(), reason="native calls are compiled")
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (losses.NativeTwice, rf"native_error: out \[1, 2\]: expected {NUMBER}, as by numpy; found {NUMBER}$"),
        (losses.NativePartWritten, rf"native_error: losses \[3\]: expected {NUMBER}, as by numpy; found nan$"),
        (losses.NativeMisfit, r"native_error: absolute: expected \[.*\]; found float32 \[6, 4\], .*float32 \[6\]$"),
        (losses.NativeWrites, rf"native_error: \[0, 1\]: outputs are to be read only: .*, {NUMBER} and {NUMBER}$"),
    ],
)
def test_native_calls_are_compared_with_numpy(loss: type[adam.Loss], said: str) -> None:
    with pytest.raises(CustomError, match=f"^{loss.__name__}.{said}"):
        adam.check_loss(loss)
    for good in (losses.NativeAbsolute, losses.NativeMargin):
        adam.check_loss(good)
        adam.check_loss(good, batch=1)


def test_numbers_of_ones_own_are_taken_where_a_loss_needs_them() -> None:
    outputs = np.array([[0.5, 2.0], [3.0, -1.0]], np.float32)
    adam.check_loss(losses.Absolute, outputs=outputs, targets=outputs + 2)


@pytest.mark.parametrize("native", ["", "Native"])
def test_numbers_of_ones_own_may_have_the_default_types_of_numpy(native: str) -> None:
    outputs = np.random.default_rng(1).standard_normal((6, 4))
    adam.check_loss(f"tests.losses_for_tests:{native}Absolute", outputs=outputs, targets=outputs[::-1] + 2)
    adam.check_loss(f"tests.losses_for_tests:{native}Margin", outputs=outputs, targets=np.arange(6) % 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"outputs": np.full((2, 4), "few")}, r"outputs: expected real numbers; found <U3 \[2, 4\]"),
        ({"outputs": [[1, 2], [3]]}, r"outputs: expected real numbers in an array; found: .*inhomogeneous"),
        ({"targets": [[1, 2], [3]]}, r"targets: expected labels, whole numbers in an array; found: .*inhomogeneous"),
        ({"targets": np.ones(6)}, r"targets: expected labels, whole numbers; found float64 \[6\]"),
        ({"outputs": np.ones(4)}, r"outputs: expected numbers of each example, \[n, units\]; found shape \[4\]"),
        ({"outputs": np.ones((2, 4, 1))}, r"outputs: expected numbers of each example, .*; found shape \[2, 4, 1\]"),
        ({"outputs": np.ones((0, 4))}, r"outputs: expected numbers of each example, .*; found shape \[0, 4\]"),
        ({"outputs": 1.0}, r"outputs: expected numbers of each example, .*; found shape \[\]"),
        ({"targets": np.ones(5, int)}, r"targets: expected a label of each example, \[n\], n = 6; found shape \[5\]"),
        ({"targets": 1}, r"targets: expected a label of each example, \[n\], n = 6; found shape \[\]"),
    ],
)
def test_numbers_of_another_kind_are_the_users_configuration(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        adam.check_loss(losses.Margin, **given)


def test_targets_of_another_shape_are_the_users_configuration() -> None:
    with pytest.raises(
        ConfigurationError, match=r"targets: expected numbers of each, \[n, k\], n = 6; found shape \[6\]"
    ):
        adam.check_loss(losses.Absolute, targets=np.ones(6))


def test_only_numbers_that_a_loss_takes_are_given_to_it() -> None:
    """Where outputs are given, all of them above 0, no other sign is tried."""
    outputs = np.array([[0.5, 2.0], [3.0, 1.0], [0.7, 0.6]], np.float32)
    adam.check_loss(losses.Logarithms, outputs=outputs, targets=outputs[::-1] + 2)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (losses.Logarithms, r"evaluate: ValueError: expected outputs above 0 \(.*losses_for_tests\.py:\d+\)"),
        (losses.Fails, r"measure: expected always as many numbers; found 2 of 3 examples and 1 of 6"),
        (losses.Texts, r"evaluate: expected real numbers; found <U3"),
        (losses.OfNothing, r"measure: expected a list of numbers; found None"),
        (losses.OneSum, r"measure: expected a list of numbers; found 24.0"),
        (losses.NoValue, r"metric: expected a finite number; found None"),
        (losses.FinishesInPlace, r"finish: expected what users see of each of 6 examples; found None"),
        (losses.FinishesAll, r"finish: expected what users see of each of 6 examples; found shape \[1, 4\]"),
        (losses.RealTargets, r"target_numbers: expected a whole number of at least 1; found 4.0"),
        (losses.NoTargets, r"target_numbers: expected a whole number of at least 1; found 0"),
    ],
)
def test_methods_that_fail_or_return_something_else_are_named(loss: type[adam.Loss], said: str) -> None:
    with pytest.raises(CustomError, match=f"^{loss.__name__}.{said}"):
        adam.check_loss(loss)


def test_a_loss_that_cannot_be_made_is_the_users_configuration() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Needs: cannot be made: .*width.*; write all its methods, and no arg"
    ):
        adam.check_loss(losses.Needs)
