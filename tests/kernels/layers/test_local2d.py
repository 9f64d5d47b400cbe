"""Locally connected layers: the definition, gradients, agreement of implementations, slices, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers import local2d
from adamctl.kernels.layers.conv2d import Conv2D
from adamctl.kernels.layers.local2d import Local2D
from adamctl.kernels.slicing import OutputSlice
from tests.kernels.kernel_checks import (
    BACKENDS,
    check_gradients,
    check_implementations,
    check_slices,
    compare_runs,
    key_of,
    run,
)

CASES = {
    "valid": ((5, 6, 2), 3, (3, 2), 1, "valid", "relu"),
    "strided": ((7, 6, 1), 2, 3, (2, 1), "valid", "tanh"),
    "same": ((5, 4, 3), 2, 3, 1, "same", "sigmoid"),
    "same and strided": ((6, 5, 2), 1, (3, 4), 2, "same", None),
    "stride beyond the window": ((7, 8, 1), 2, 2, 3, "valid", None),
    "one place": ((3, 3, 2), 4, 3, 1, "valid", None),
    "one column": ((6, 1, 1), 2, (2, 1), 1, "valid", None),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_place_has_weights_of_its_own(backend):
    operation = Local2D((4, 5, 2), 3, 2, (2, 1), "valid", None, backend)
    given = run(operation, 2, seed=1)
    weight, bias = given.weights
    assert operation.parameters == ((2, 4, 3, 2, 2, 2), (2, 4, 3))
    for n, y, x, m in np.ndindex(2, 2, 4, 3):
        window = given.inputs[n, 2 * y : 2 * y + 2, x : x + 2]
        assert given.outputs[n, y, x, m] == pytest.approx((window * weight[y, x, m]).sum() + bias[y, x, m], abs=1e-5)


@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_with_equal_weights_everywhere_it_is_a_convolution(case, backend):
    local, convolution = Local2D(*case, backend), Conv2D(*case, "numpy")
    rows, columns, _ = local.output_shape
    given = run(convolution, 3, seed=2)
    weights = [np.tile(weight, (rows, columns, *[1] * weight.ndim)) for weight in given.weights]
    buffers = local.allocate(3)
    outputs = local.forward(given.inputs, weights, buffers, True, key_of(0))
    gradients = [np.empty_like(weight) for weight in weights]
    error = local.backward(given.error.copy(), given.inputs, weights, gradients, buffers)
    np.testing.assert_allclose(outputs, given.outputs, atol=1e-5)
    np.testing.assert_allclose(error, given.input_error, atol=2e-5)
    for ours, theirs in zip(gradients, given.gradients, strict=True):
        np.testing.assert_allclose(ours.sum(axis=(0, 1)), theirs, atol=1e-4)


@cases
@pytest.mark.parametrize("batch", [1, 2])
def test_backward_agrees_with_numerical_gradients(case, batch):
    check_gradients(lambda backend: Local2D(*case, backend), batch)


@cases
@pytest.mark.parametrize("batch", [0, 1, 2, 5])
def test_implementations_agree(case, batch):
    check_implementations(lambda backend: Local2D(*case, backend), batch)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 150, 10_000])
def test_it_does_not_matter_how_many_rows_are_unfolded_at_once(monkeypatch, backend, size):
    expected = run(Local2D(*CASES["same"], backend), 3, seed=3)
    monkeypatch.setattr(local2d, "WINDOWS_SIZE_MAX", size)
    compare_runs(expected, run(Local2D(*CASES["same"], backend), 3, seed=3), tolerance=1e-6)


@cases
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_rows_with_their_halo_make_the_whole(case, batch):
    rows = Local2D(*case).output_shape[0]
    parts = [OutputSlice("rows", start, min(start + 2, rows)) for start in range(0, rows, 2)]
    check_slices(lambda backend: Local2D(*case, backend), parts, batch)


@cases
def test_maps_make_the_whole(case):
    maps = Local2D(*case).filters
    parts = [OutputSlice("maps", number, number + 1) for number in range(maps)]
    check_slices(lambda backend: Local2D(*case, backend), parts)


def test_rows_read_a_halo_and_share_no_weight():
    sliced = Local2D((10, 6, 1), 2, 3).slice(OutputSlice("rows", 2, 5))
    assert sliced.inputs[0] == slice(2, 7)
    assert [region[0] for region in sliced.parameters] == [slice(2, 5), slice(2, 5)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1e-15, 1e12])
def test_large_and_tiny_numbers_pass(backend, scale):
    operation = Local2D((4, 4, 1), 2, 3, backend=backend)
    weights = [np.ones(operation.parameters[0], np.float32), np.zeros(operation.parameters[1], np.float32)]
    inputs = np.full((2, 4, 4, 1), scale, np.float32)
    outputs = operation.forward(inputs, weights, operation.allocate(2), True, key_of(0))
    np.testing.assert_allclose(outputs, 9 * scale, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_reaches_the_places_that_read_it_and_no_other(backend):
    operation = Local2D((5, 5, 1), 1, 3, backend=backend)
    weights = [np.ones(shape, np.float32) for shape in operation.parameters]
    inputs = np.zeros((2, 5, 5, 1), np.float32)
    inputs[0, 0, 0] = np.nan
    outputs = operation.forward(inputs, weights, operation.allocate(2), True, key_of(0))
    assert np.isnan(outputs[0, 0, 0, 0]) and np.isnan(outputs).sum() == 1


def test_images_of_another_shape_are_refused():
    operation = Local2D((5, 5, 1), 1, 3)
    with pytest.raises(ValueError, match=r"Local2D: expected inputs of shape \[n, 5, 5, 1\], contiguous; found \[2, 5"):
        operation.forward(np.zeros((2, 5, 6, 1), np.float32), [], operation.allocate(2), True, key_of(0))


@pytest.mark.parametrize("shape", [(3, 3, 1, 3, 3, 2), (4, 3, 1, 3, 3, 1), (3, 3, 1, 9, 1, 1)])
def test_a_weight_of_another_shape_is_refused(shape):
    operation = Local2D((5, 5, 1), 1, 3)
    weights, inputs = [np.zeros(shape, np.float32), np.zeros((3, 3, 1), np.float32)], np.zeros((2, 5, 5, 1), np.float32)
    with pytest.raises(ValueError, match=r"Local2D: expected weight of shape \[3, 3, 1, 3, 3, 1\], contiguous; found"):
        operation.forward(inputs, weights, operation.allocate(2), True, key_of(0))


def test_a_kernel_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"Local2D: expected a kernel that fits 5x4; found \[3, 5\]"):
        Local2D((5, 4, 1), 1, (3, 5))
