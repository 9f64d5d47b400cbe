"""The losses that algorithms are compared on: their gradients are those of the losses, and they are real data's."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.bench.sandblaster.problems import PROBLEMS, digits, perceptron, watched


def test_the_digits_are_the_training_part() -> None:
    images, targets = digits()
    assert images.shape == (1437, 64) and targets.shape == (1437, 10)
    assert images.min() == 0.0 and images.max() == 1.0
    assert (targets.sum(axis=1) == 1).all() and targets.sum(axis=0).min() > 130


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_gradient_is_the_slope_of_its_loss(name: str) -> None:
    objective, start = PROBLEMS[name]()
    chance = np.random.default_rng(3)
    x, direction = start + 0.1 * chance.standard_normal(start.size), chance.standard_normal(start.size)
    _, gradient = objective(x)
    ahead, behind = (objective(x + step * direction)[0] for step in (1e-6, -1e-6))
    assert (ahead - behind) / 2e-6 == pytest.approx(float(gradient @ direction), rel=1e-5)


def test_seeds_begin_elsewhere_and_losses_are_noted() -> None:
    objective, start = perceptron(0, hidden=4)
    assert not np.array_equal(start, perceptron(1, hidden=4)[1])
    losses: list[float] = []
    found = watched(objective, losses)(start)
    assert losses == [found[0]] == [objective(start)[0]]
