"""Max-pooling against a plain loop, numerical gradients and its other implementations."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_checks import BACKENDS, check_gradients, check_implementations, run

from adamctl.kernels.maxpool2d import MaxPool2D

SIZES = [(2, None), (3, 2), ((2, 3), (1, 2)), (2, 3), (1, 1), ((5, 4), 1)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("size", "stride"), SIZES)
def test_forward_is_the_largest_of_each_window(backend, size, stride):
    operation = MaxPool2D((7, 8, 3), size, stride, backend)
    given = run(operation, 2, seed=1)
    for n, y, x, c in np.ndindex(given.outputs.shape):
        top, left = y * operation.stride[0], x * operation.stride[1]
        window = given.inputs[n, top : top + operation.size[0], left : left + operation.size[1], c]
        assert given.outputs[n, y, x, c] == window.max()


@pytest.mark.parametrize(("size", "stride"), SIZES)
def test_backward_agrees_with_numerical_gradients(size, stride):
    check_gradients(lambda backend: MaxPool2D((7, 8, 2), size, stride, backend))


@pytest.mark.parametrize("batch", [0, 1, 4])
@pytest.mark.parametrize(("size", "stride"), SIZES)
def test_implementations_agree(batch, size, stride):
    check_implementations(lambda backend: MaxPool2D((7, 8, 3), size, stride, backend), batch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_pixels_the_first_gets_the_error(backend):
    operation = MaxPool2D((2, 2, 1), 2, None, backend)
    buffers = operation.allocate(1)
    inputs = np.ones((1, 2, 2, 1), np.float32)
    operation.forward(inputs, [], buffers, True, np.random.default_rng(0))
    error = operation.backward(np.full((1, 1, 1, 1), 3, np.float32), inputs, [], [], buffers)
    assert error.ravel().tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", range(4))
def test_a_nan_is_the_largest_wherever_it_stands(backend, place):
    operation = MaxPool2D((2, 2, 1), 2, None, backend)
    inputs = np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1)
    inputs.flat[place] = np.nan
    assert np.isnan(operation.forward(inputs, [], operation.allocate(1), True, np.random.default_rng(0))).all()
