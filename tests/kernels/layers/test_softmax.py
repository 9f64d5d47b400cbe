"""The softmax layer: sums to one, true derivative, no overflow."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.softmax import Softmax
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, key_of, run


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_are_normalised_exponentials(backend):
    given = run(Softmax((6,), 7, True, backend), 4, seed=1)
    logits = given.inputs.astype(np.float64) @ given.weights[0].T + given.weights[1]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(given.outputs, expected, rtol=1e-5)


def test_backward_from_the_outputs_agrees_with_numerical_gradients():
    check_gradients(lambda backend: Softmax((6,), 7, error_at_logits=False, backend=backend))


@pytest.mark.parametrize("error_at_logits", [True, False])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_implementations_agree(error_at_logits, batch):
    check_implementations(lambda backend: Softmax((3, 5), 9, error_at_logits, backend), batch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_logits_do_not_overflow(backend):
    operation = Softmax((1,), 3, True, backend)
    weights = [np.array([[1000.0], [-1000.0], [999.0]], np.float32), np.zeros(3, np.float32)]
    outputs = operation.forward(np.ones((1, 1), np.float32), weights, operation.allocate(1), True, key_of(0))
    np.testing.assert_allclose(outputs, [[1 / (1 + np.exp(-1)), 0, 1 / (1 + np.exp(1))]], rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_nan_out(backend):
    assert np.isnan(run(Softmax((4,), 3, True, backend), 1, seed=4, poison=True).outputs).all()
