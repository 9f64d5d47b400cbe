"""Inverted dropout: identity outside training, unbiased while training, the mask comes from the seed."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_checks import check_gradients, run

from adamctl.kernels.dropout import Dropout


def test_outside_training_it_is_the_identity():
    given = run(Dropout((4, 5), 0.5), 3, seed=1, training=False)
    np.testing.assert_array_equal(given.outputs, given.inputs)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.9])
def test_inputs_are_zeroed_at_the_rate_and_the_rest_scaled(rate):
    operation = Dropout((200, 100), rate)
    inputs = np.ones((1, 200, 100), np.float32)
    outputs = operation.forward(inputs, [], operation.allocate(1), True, np.random.default_rng(2))
    assert set(np.unique(outputs)) <= {0, np.float32(1 / (1 - rate))}
    # 20,000 draws: five standard deviations are below 0.018.
    assert abs((outputs == 0).mean() - rate) < 0.018


@pytest.mark.parametrize("batch", [0, 1, 4])
def test_the_error_takes_the_way_the_input_took(batch):
    given = run(Dropout((6,), 0.5), batch, seed=3)
    np.testing.assert_allclose(given.input_error, given.error * (given.outputs != 0) * 2)


def test_backward_agrees_with_numerical_gradients():
    check_gradients(lambda backend: Dropout((3, 4), 0.4, backend))


def test_the_same_seed_draws_the_same_mask():
    first, second = run(Dropout((50,), 0.5), 2, seed=5), run(Dropout((50,), 0.5), 2, seed=5)
    np.testing.assert_array_equal(first.outputs, second.outputs)
