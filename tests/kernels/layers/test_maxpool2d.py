"""Max-pooling against a plain loop, numerical gradients and its other implementations."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.maxpool2d import MaxPool2D
from adamctl.kernels.slicing import OutputSlice
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, check_slices, key_of, run

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
    operation.forward(inputs, [], buffers, True, key_of(0))
    error = operation.backward(np.full((1, 1, 1, 1), 3, np.float32), inputs, [], [], buffers)
    assert error.ravel().tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", range(4))
def test_a_nan_is_the_largest_wherever_it_stands(backend, place):
    operation = MaxPool2D((2, 2, 1), 2, None, backend)
    inputs = np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1)
    inputs.flat[place] = np.nan
    assert np.isnan(operation.forward(inputs, [], operation.allocate(1), True, key_of(0))).all()


@pytest.mark.parametrize(("size", "stride"), [(2, None), (3, 2), ((2, 3), (1, 2)), ((4, 2), 1)])
def test_rows_are_cut_with_the_halo_they_need(size, stride):
    def build(backend):
        return MaxPool2D((9, 8, 3), size, stride, backend)

    rows = build("numpy").output_shape[0]
    check_slices(build, [OutputSlice("rows", 0, 1), OutputSlice("rows", 1, 3), OutputSlice("rows", 3, rows)])


def test_maps_are_cut():
    parts = [OutputSlice("maps", 0, 2), OutputSlice("maps", 2, 5)]
    check_slices(lambda backend: MaxPool2D((7, 8, 5), 3, 2, backend), parts)


def test_units_are_refused():
    with pytest.raises(ValueError, match="MaxPool2D: expected a slice of maps or rows; found one of units"):
        MaxPool2D((7, 8, 5), 3).slice(OutputSlice("units", 0, 1))


def test_a_window_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"MaxPool2D: expected a window that fits 2x8; found \[3, 3\]"):
        MaxPool2D((2, 8, 5), 3)
