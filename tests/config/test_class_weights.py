"""What classes weigh: as told, by name or in order, with a mean of 1 over the training examples."""

from __future__ import annotations

from typing import Any

import pytest

from adamctl.config.class_weights import class_weights, of_classes
from adamctl.errors import ConfigurationError

NAMES = ("cat", "dog", "owl")


def test_none_is_none() -> None:
    assert class_weights("none", NAMES, (1, 2, 3), 3) is None


def test_balanced_classes_add_up_to_the_same() -> None:
    weights = class_weights("balanced", NAMES, (60, 30, 10), 3)
    assert weights == pytest.approx([100 / 180, 100 / 90, 100 / 30])  # n / (classes n_c), as scikit-learn's
    assert class_weights("balanced", NAMES, (60, 0, 40), 3) == pytest.approx([100 / 120, 0, 100 / 80])


@pytest.mark.parametrize("given", [(1.0, 2.0, 4.0), (10.0, 20.0, 40.0), {"owl": 4, "dog": 2.0}])
def test_numbers_are_scaled_to_a_mean_of_one(given: Any) -> None:
    assert class_weights(given, NAMES, (60, 30, 10), 3) == pytest.approx([0.625, 1.25, 2.5])


def test_outputs_without_a_class_weigh_one() -> None:
    assert class_weights((1.0, 1.0, 1.0), NAMES, (5, 5, 5), 5) == [1, 1, 1, 1, 1]


def test_a_class_that_is_not_named_gets_the_default() -> None:
    assert of_classes({"dog": 3.0}, NAMES, "key", 0.5) == [0.5, 3, 0.5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cats": 2.0}, 'train.class_weights: there is no class "cats"; expected one of cat, dog, owl. Did you'),
        ((1.0, 2.0), "train.class_weights: found 2 numbers; expected one for each of 3 classes"),
        ((0.0, 0.0, 1.0), "expected a number above 0 for a class that has training examples; found none among 0, 0, 1"),
        ((1e308, 1e308, 1.0), "expected a number above 0"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        class_weights(given, NAMES, (60, 30, 0), 3)
    assert said in str(refused.value)


def test_targets_have_no_classes_to_weigh() -> None:
    assert class_weights("none", (), (), 3) is None
    with pytest.raises(ConfigurationError, match="have targets, numbers in place of classes: leave it out"):
        class_weights("balanced", (), (), 3)


def test_many_names_are_cut_short() -> None:
    with pytest.raises(ConfigurationError, match=r"expected one of 0, 1,.*, 19 and 980 more\.$"):
        of_classes({"x": 1.0}, [str(number) for number in range(1000)], "key", 1.0)
