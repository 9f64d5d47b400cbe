"""L2 pooling: the definition, its gradient and that at zero, agreement of implementations, slices, refusals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from adamctl.kernels.layers.l2pool2d import L2Pool2D
from adamctl.kernels.slicing import OutputSlice
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, check_slices, key_of, run

CASES = {
    "touching": ((4, 6, 3), 2, None),
    "left over": ((5, 7, 2), (2, 3), None),
    "overlapping": ((7, 6, 2), 3, 2),
    "dense": ((5, 4, 17), (3, 2), 1),
    "apart": ((7, 7, 1), 2, 3),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_the_root_of_the_sum_of_squares(case, backend):
    operation = L2Pool2D(*case, backend)
    given, (height, width), (sy, sx) = run(operation, 2, seed=1), operation.size, operation.stride
    for n, y, x, c in np.ndindex(given.outputs.shape):
        window = given.inputs[n, y * sy : y * sy + height, x * sx : x * sx + width, c]
        assert given.outputs[n, y, x, c] == pytest.approx(np.linalg.norm(window), rel=1e-5)


@cases
def test_backward_agrees_with_numerical_gradients(case):
    check_gradients(lambda backend: L2Pool2D(*case, backend))


@cases
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_implementations_agree(case, batch):
    check_implementations(lambda backend: L2Pool2D(*case, backend), batch)


@cases
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("axis", ["rows", "maps"])
def test_slices_make_the_whole(case, batch, axis):
    size = L2Pool2D(*case).output_shape[0 if axis == "rows" else 2]
    cuts = [0, (size + 1) // 2, size] if size > 1 else [0, size]
    parts = [OutputSlice(axis, start, stop) for start, stop in pairwise(cuts)]
    check_slices(lambda backend: L2Pool2D(*case, backend), parts, batch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_of_zeros_takes_no_error(backend):
    operation = L2Pool2D((2, 4, 1), 2, None, backend)
    inputs = np.zeros((1, 2, 4, 1), np.float32)
    inputs[0, :, 2:] = 3
    buffers = operation.allocate(1)
    outputs = operation.forward(inputs, [], buffers, True, key_of(0))
    error = operation.backward(np.ones_like(outputs), inputs, [], [], buffers)
    np.testing.assert_array_equal(outputs[0, 0, :, 0], [0, 6])
    np.testing.assert_array_equal(error[0, 0, :, 0], [0, 0, 0.5, 0.5])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_large_and_tiny_numbers_pass(backend, scale):
    operation = L2Pool2D((2, 2, 1), 2, None, backend)
    buffers = operation.allocate(1)
    inputs = np.full((1, 2, 2, 1), scale, np.float32)
    outputs = operation.forward(inputs, [], buffers, True, key_of(0))
    assert outputs[0, 0, 0, 0] == pytest.approx(2 * scale, rel=1e-5)
    error = operation.backward(np.ones_like(outputs), inputs, [], [], buffers)
    np.testing.assert_allclose(error, 0.5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_makes_its_windows_nan_and_no_other(backend):
    operation = L2Pool2D((2, 4, 2), 2, None, backend)
    inputs = np.ones((1, 2, 4, 2), np.float32)
    inputs[0, 1, 1, 0] = np.nan
    buffers = operation.allocate(1)
    outputs = operation.forward(inputs, [], buffers, True, key_of(0))
    assert np.argwhere(np.isnan(outputs)).tolist() == [[0, 0, 0, 0]]
    error = operation.backward(np.ones_like(outputs), inputs, [], [], buffers)
    assert np.isnan(error[0, :, :2, 0]).all() and np.isnan(error).sum() == 4


def test_images_of_another_shape_are_refused():
    operation = L2Pool2D((4, 4, 1), 2)
    with pytest.raises(ValueError, match=r"L2Pool2D: expected inputs of shape \[n, 4, 4, 1\]"):
        operation.forward(np.zeros((2, 4, 1), np.float32), [], operation.allocate(2), True, key_of(0))


def test_a_slice_of_units_is_refused():
    with pytest.raises(ValueError, match="L2Pool2D: expected a slice of maps or rows; found one of units"):
        L2Pool2D((4, 4, 1), 2).slice(OutputSlice("units", 0, 1))
