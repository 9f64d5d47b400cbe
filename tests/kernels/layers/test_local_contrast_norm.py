"""Local contrast normalisation: the definition, gradients, agreement of implementations, slices, refusals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from adamctl.kernels.layers.local_contrast_norm import LocalContrastNorm, smoothing
from adamctl.kernels.slicing import OutputSlice
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, check_slices, key_of, run

CASES = {
    "gaussian": ((6, 5, 3), 3, "gaussian"),
    "uniform": ((5, 7, 2), (5, 3), "uniform"),
    "one map": ((7, 7, 1), 3, "uniform"),
    "window beyond the image": ((3, 4, 2), 9, "gaussian"),
    "one pixel": ((4, 3, 5), 1, "gaussian"),
    "never below the least": ((6, 5, 3), 3, "gaussian", 1e-6),
    "partly below the least": ((6, 5, 3), 3, "gaussian", 0.9),
    "always below the least": ((6, 5, 3), 3, "gaussian", 50.0),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def window_weights(case, y, x):
    """Weights [height, width] of the window around (y, x), straight from the definition."""
    (height, width, _), size, kind = case[:3]
    tall, wide = (size, size) if isinstance(size, int) else size
    weights = np.zeros((height, width))
    for row, column in np.ndindex(height, width):
        dy, dx = row - y, column - x
        if abs(dy) <= tall // 2 and abs(dx) <= wide // 2:
            bell = np.exp(-0.5 * ((dy / (tall / 4)) ** 2 + (dx / (wide / 4)) ** 2))
            weights[row, column] = bell if kind == "gaussian" else 1
    return weights / weights.sum()


@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_follows_the_equations(case, backend):
    operation = LocalContrastNorm(*case, backend=backend)
    given = run(operation, 2, seed=1)
    height, width, maps = case[0]
    for image, outputs in zip(given.inputs.astype(np.float64), given.outputs, strict=True):
        centred, expected = np.zeros_like(image), np.zeros_like(image)
        for y, x in np.ndindex(height, width):
            centred[y, x] = image[y, x] - (window_weights(case, y, x)[..., None] * image).sum() / maps
        for y, x in np.ndindex(height, width):
            deviation = np.sqrt((window_weights(case, y, x)[..., None] * centred**2).sum() / maps)
            expected[y, x] = centred[y, x] / max(deviation, operation.deviation_min)
        np.testing.assert_allclose(outputs, expected, atol=2e-5)


@cases
@pytest.mark.parametrize("batch", [1, 2])
def test_backward_agrees_with_numerical_gradients(case, batch):
    check_gradients(lambda backend: LocalContrastNorm(*case, backend=backend), batch)


@cases
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_implementations_agree(case, batch):
    check_implementations(lambda backend: LocalContrastNorm(*case, backend=backend), batch)


@cases
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("axis", ["rows", "maps"])
def test_slices_make_the_whole(case, batch, axis):
    size = case[0][0 if axis == "rows" else 2]
    parts = [OutputSlice(axis, *ends) for ends in pairwise(sorted({0, size // 3, size - 1, size}))]
    check_slices(lambda backend: LocalContrastNorm(*case, backend=backend), parts, batch)


def test_rows_read_two_half_windows_on_either_side_and_maps_read_all():
    operation = LocalContrastNorm((20, 8, 4), 5)
    assert operation.slice(OutputSlice("rows", 8, 10)).inputs == (slice(4, 14), slice(None), slice(None))
    assert operation.slice(OutputSlice("maps", 1, 2)).inputs == (slice(None),) * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_large_and_tiny_numbers_pass(backend, scale):
    operation = LocalContrastNorm((6, 6, 2), 3, "gaussian", 1e-15, backend)
    given = run(operation, 2, seed=2)
    buffers = operation.allocate(2)
    outputs = operation.forward((given.inputs * scale).astype(np.float32), [], buffers, True, key_of(0))
    np.testing.assert_allclose(outputs, given.outputs, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_constant_image_gives_nothing_at_its_border_either(backend):
    operation = LocalContrastNorm((6, 6, 2), 5, backend=backend)
    inputs = np.full((1, 6, 6, 2), 7, np.float32)
    buffers = operation.allocate(1)
    outputs = operation.forward(inputs, [], buffers, True, key_of(0))
    np.testing.assert_allclose(outputs, 0, atol=1e-3)
    error = operation.backward(np.ones_like(outputs), inputs, [], [], buffers)
    np.testing.assert_allclose(error.sum(), 0, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_make_their_image_nan_and_no_other(backend, value):
    operation = LocalContrastNorm((6, 5, 3), 3, backend=backend)
    inputs = np.random.default_rng(3).standard_normal((3, 6, 5, 3)).astype(np.float32)
    inputs[1, 2, 2, 0] = value
    buffers = operation.allocate(3)
    with np.errstate(over="ignore", invalid="ignore"):
        outputs = operation.forward(inputs, [], buffers, True, key_of(0))
        error = operation.backward(np.ones_like(outputs), inputs, [], [], buffers)
    for array in (outputs, error):
        assert np.isnan(array[1]).all() and np.isfinite(array[[0, 2]]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_beyond_squares_are_never_taken_for_an_answer(backend):
    operation = LocalContrastNorm((6, 5, 3), 3, backend=backend)
    inputs = np.random.default_rng(3).standard_normal((1, 6, 5, 3)).astype(np.float32)
    inputs[0, 2, 2, 0] = 1e30
    with np.errstate(over="ignore", invalid="ignore"):
        outputs = operation.forward(inputs, [], operation.allocate(1), True, key_of(0))
    assert (np.isnan(outputs) | (outputs == 0)).all() and np.isnan(outputs).any()


@pytest.mark.parametrize("weights", ["gaussian", "uniform"])
def test_smoothing_weighs_the_pixels_inside_alike_on_both_sides(weights):
    matrix = smoothing(9, 5, weights)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    np.testing.assert_allclose(matrix, matrix[::-1, ::-1])
    assert (np.count_nonzero(matrix, axis=1) == [3, 4, 5, 5, 5, 5, 5, 4, 3]).all()


def test_images_of_another_shape_are_refused():
    operation = LocalContrastNorm((4, 4, 1), 3)
    with pytest.raises(ValueError, match=r"LocalContrastNorm: expected inputs of shape \[n, 4, 4, 1\]"):
        operation.forward(np.zeros((2, 4, 4, 2), np.float32), [], operation.allocate(2), True, key_of(0))


def test_a_slice_is_cut_from_a_whole_layer():
    sliced = LocalContrastNorm((8, 4, 1), 3).slice(OutputSlice("rows", 0, 4)).operation
    with pytest.raises(ValueError, match="expected a whole layer to cut"):
        sliced.slice(OutputSlice("rows", 0, 2))
