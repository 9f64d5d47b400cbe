"""The fused convolution and pooling against the two operations it replaces."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.backend import compiled
from adamctl.kernels.layers.conv2d import Conv2D
from adamctl.kernels.layers.convpool import ConvPool
from adamctl.kernels.layers.maxpool2d import MaxPool2D
from adamctl.kernels.needed import does_pooling
from adamctl.kernels.slicing import OutputSlice
from adamctl.model import description
from tests.kernels.kernel_checks import BACKENDS, Run, check_slices, compare_runs, key_of, run

pytestmark = pytest.mark.skipif("numba" not in BACKENDS, reason="needs numba")

CASES = [
    # image, filters, kernel, stride, padding, pool size, pool stride
    ((12, 14, 1), 10, 5, 1, "valid", 2, None),
    ((12, 12, 10), 20, 5, 1, "valid", 2, None),
    ((11, 13, 3), 7, 3, 2, "same", 3, 2),
    ((9, 9, 2), 33, (2, 3), (1, 2), "valid", (2, 3), 1),
    ((8, 17, 4), 25, 3, 1, "same", 2, 3),
    ((10, 6, 5), 40, 1, 1, "valid", 1, 1),
    ((9, 31, 1), 16, 3, 1, "valid", 2, None),
    ((6, 6, 17), 1, 3, 3, "same", 2, None),
]


def build(backend, case, activation):
    image, filters, kernel, stride, padding, size, pool_stride = case
    convolution = Conv2D(image, filters, kernel, stride, padding, activation, backend)
    return convolution, MaxPool2D(convolution.output_shape, size, pool_stride, backend)


def run_both(case, activation, batch) -> Run:
    """The numpy reference: one operation after the other, on the numbers `run` draws for the fused one."""
    convolution, pooling = build("numpy", case, activation)
    generator = np.random.default_rng(4)
    inputs = generator.standard_normal((batch, *convolution.input_shape)).astype(np.float32)
    weights = [generator.standard_normal(s).astype(np.float32) * 0.5 for s in convolution.parameters]
    error = generator.standard_normal((batch, *pooling.output_shape)).astype(np.float32)
    first, second = convolution.allocate(5), pooling.allocate(5)
    middle = convolution.forward(inputs, weights, first, True, key_of(0))
    outputs = pooling.forward(middle, [], second, True, key_of(0)).copy()
    gradients = [np.zeros(shape, np.float32) for shape in convolution.parameters]
    error_between = pooling.backward(error.copy(), middle, [], [], second)
    input_error = convolution.backward(error_between, inputs, weights, gradients, first)
    return Run(inputs, weights, error, outputs, gradients, input_error, first)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_panels_of_every_kind(case, wide, monkeypatch):
    """Vectors of 16 compute the same on machines that lack them, only slower."""
    monkeypatch.setattr(compiled("tiles"), "WIDE", wide)
    compare_runs(run_both(case, "relu", 2), run(ConvPool(*build("numba", case, "relu")), 2, seed=4))


@pytest.mark.parametrize("kernel", range(1, 12))
def test_kernels_of_any_height(kernel):
    case = ((13, 9, 9), 5, (kernel, 3), 1, "same", 3, 2)
    compare_runs(run_both(case, "relu", 2), run(ConvPool(*build("numba", case, "relu")), 2, seed=4))


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_convolution_then_pooling(case, activation, batch):
    compare_runs(run_both(case, activation, batch), run(ConvPool(*build("numba", case, activation)), batch, seed=4))


def test_repeated_steps_do_not_leak_into_each_other():
    operation = ConvPool(*build("numba", CASES[2], "relu"))
    first = run(operation, 3, seed=4)
    for _ in range(2):
        error = operation.backward(first.error.copy(), first.inputs, first.weights, first.gradients, first.buffers)
    np.testing.assert_array_equal(error, first.input_error)


def test_the_largest_batch_can_follow_a_smaller_one():
    operation = ConvPool(*build("numba", CASES[0], "relu"))
    buffers = operation.allocate(5)
    given = run(operation, 5, seed=6)
    for batch in (2, 5):
        outputs = operation.forward(given.inputs[:batch], given.weights, buffers, True, key_of(0))
        np.testing.assert_array_equal(outputs, given.outputs[:batch])


def test_nan_in_nan_out():
    given = run(ConvPool(*build("numba", CASES[0], "relu")), 1, seed=2, poison=True)
    assert np.isnan(given.outputs).any()


def test_not_in_float64():
    with pytest.raises(ValueError, match="expected float32"):
        ConvPool(*build("numba", CASES[0], "relu")).allocate(1, True, np.float64)


def check_fused_slices(case, parts):
    check_slices(lambda backend: ConvPool(*build("numba", case, "relu")), parts)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[4]])
def test_rows_are_cut_with_the_halo_they_need(case):
    rows = ConvPool(*build("numba", case, "relu")).output_shape[0]
    check_fused_slices(case, [OutputSlice("rows", 0, 1), OutputSlice("rows", 1, rows)])


@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[6]])
def test_maps_are_cut(case):
    check_fused_slices(case, [OutputSlice("maps", 0, 3), OutputSlice("maps", 3, case[1])])


def test_units_are_refused():
    with pytest.raises(ValueError, match="ConvPool: expected a slice of maps or rows; found one of units"):
        ConvPool(*build("numba", CASES[0], "relu")).slice(OutputSlice("units", 0, 1))


@pytest.mark.parametrize(("groups", "pool_stride", "suits"), [(1, 2, True), (1, 1, False), (2, 2, False)])
def test_fusing_pays_where_not_every_pixel_can_win(groups, pool_stride, suits):
    convolution = description.Conv2D(6, 3, 1, "same", "relu", groups=groups)
    assert does_pooling(convolution, description.MaxPool2D(3, pool_stride)) is suits


def test_what_does_not_fit_is_refused():
    operation = ConvPool(*build("numba", CASES[0], "relu"))
    images = np.zeros((2, *operation.input_shape), np.float32)
    weights = [np.zeros(shape, np.float32) for shape in operation.parameters]
    with pytest.raises(ValueError, match="expected at most 1 examples; found 2"):
        operation.forward(images, weights, operation.allocate(1), True, key_of(0))
    with pytest.raises(ValueError, match="expected parameters of shapes"):
        operation.forward(images, [weights[0][:, 1:], weights[1]], operation.allocate(2), True, key_of(0))
