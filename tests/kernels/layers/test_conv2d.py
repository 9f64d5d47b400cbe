"""The convolution against a plain loop, numerical gradients and its other implementations."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from adamctl.kernels.layers.conv2d import Conv2D
from adamctl.kernels.slicing import OutputSlice
from adamctl.model.shapes import same_padding
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, check_slices, key_of, run

SHAPES = [
    (image, kernel, stride, padding)
    for image, kernel, stride, padding in product(
        [(7, 6, 1), (5, 9, 3)], [(3, 3), (2, 4), (1, 1)], [1, (2, 3), 3], ["valid", "same"]
    )
]


def plain_convolution(images, weight, bias, stride, padding):
    batch, height, width, _ = images.shape
    filters, kh, kw, _ = weight.shape
    if padding == "same":
        pads = same_padding(height, kh, stride[0]), same_padding(width, kw, stride[1])
        images = np.pad(images, ((0, 0), *pads, (0, 0)))
    rows, columns = (images.shape[1] - kh) // stride[0] + 1, (images.shape[2] - kw) // stride[1] + 1
    outputs = np.zeros((batch, rows, columns, filters))
    for n, y, x, m in np.ndindex(outputs.shape):
        top, left = y * stride[0], x * stride[1]
        outputs[n, y, x, m] = (images[n, top : top + kh, left : left + kw] * weight[m]).sum() + bias[m]
    return outputs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("image", "kernel", "stride", "padding"), SHAPES)
def test_forward_is_the_sum_over_each_window(backend, image, kernel, stride, padding):
    operation = Conv2D(image, 5, kernel, stride, padding, None, backend)
    given = run(operation, 2, seed=1)
    expected = plain_convolution(given.inputs, *given.weights, operation.stride, padding)
    assert expected.shape[1:] == operation.output_shape
    np.testing.assert_allclose(given.outputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
@pytest.mark.parametrize(("stride", "padding"), [(1, "valid"), (2, "same"), ((3, 1), "same"), (3, "valid")])
def test_backward_agrees_with_numerical_gradients(activation, stride, padding):
    check_gradients(lambda backend: Conv2D((6, 7, 2), 3, (3, 2), stride, padding, activation, backend))


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(("image", "kernel", "stride", "padding"), SHAPES)
def test_implementations_agree(batch, image, kernel, stride, padding):
    check_implementations(lambda backend: Conv2D(image, 5, kernel, stride, padding, "relu", backend), batch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_nan_out(backend):
    operation = Conv2D((5, 5, 1), 2, 3, 1, "valid", "relu", backend)
    given = run(operation, 1, seed=2, poison=True)
    assert np.isnan(given.outputs).any()


def test_a_wrong_shape_is_refused_by_name():
    operation = Conv2D((5, 5, 1), 2, 3)
    buffers = operation.allocate(4)
    with pytest.raises(ValueError, match=r"Conv2D: expected inputs of shape \[n, 5, 5, 1\].*found \[2, 5, 6, 1\]"):
        operation.forward(np.zeros((2, 5, 6, 1), np.float32), [], buffers, False, key_of(0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding", ["same", ((1, 2), (0, 1))])
def test_a_group_is_a_convolution_of_its_own(backend, padding):
    whole = Conv2D((6, 7, 6), 9, 3, 2, padding, "relu", backend, groups=3)
    assert whole.parameters == ((9, 3, 3, 2), (9,))
    given = run(whole, 2, seed=1)
    for group in range(3):
        maps, channels = slice(group * 3, group * 3 + 3), slice(group * 2, group * 2 + 2)
        part = Conv2D((6, 7, 2), 3, 3, 2, padding, "relu", backend)
        weights = [given.weights[0][maps], given.weights[1][maps]]
        images, buffers = np.ascontiguousarray(given.inputs[..., channels]), part.allocate(2)
        outputs = part.forward(images, weights, buffers, True, key_of(0))
        np.testing.assert_allclose(given.outputs[..., maps], outputs, atol=1e-5)
        gradients = [np.zeros(shape, np.float32) for shape in part.parameters]
        error = part.backward(given.error[..., maps].copy(), images, weights, gradients, buffers)
        np.testing.assert_allclose(given.input_error[..., channels], error, atol=1e-4)
        np.testing.assert_allclose(given.gradients[0][maps], gradients[0], atol=1e-4)


@pytest.mark.parametrize(("groups", "padding"), [(2, "same"), (4, ((2, 0), (1, 1))), (1, ((0, 1), (1, 0)))])
def test_groups_and_zeros_by_number_agree_with_numerical_gradients(groups, padding):
    check_gradients(lambda backend: Conv2D((6, 5, 4), 4, 3, (1, 2), padding, "tanh", backend, groups))


@pytest.mark.parametrize("groups", [0, 2, 4])
def test_groups_divide_channels_and_filters(groups):
    with pytest.raises(ValueError, match=f"expected groups that divide 6 channels and 9 filters; found {groups}"):
        Conv2D((6, 7, 6), 9, 3, groups=groups)


def test_zeros_are_fewer_than_the_kernels_extent():
    with pytest.raises(ValueError, match=r"expected 0 to 2 zeros beside a kernel of 3; found \(0, 3\)"):
        Conv2D((6, 7, 1), 2, 3, padding=((0, 3), (0, 0)))


def test_a_kernel_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"expected a kernel that fits 2x7; found \[3, 3\]"):
        Conv2D((2, 7, 1), 2, 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_gradients_or_input_error_the_rest_is_the_same(backend):
    operation = Conv2D((9, 8, 3), 5, 3, 2, "same", "relu", backend)
    given = run(operation, 3, seed=5)
    buffers = operation.allocate(3, needs_input_error=False)
    operation.forward(given.inputs, given.weights, buffers, True, key_of(0))
    gradients = [np.zeros_like(gradient) for gradient in given.gradients]
    assert operation.backward(given.error.copy(), given.inputs, given.weights, gradients, buffers, False) is None
    np.testing.assert_allclose(gradients[0], given.gradients[0], atol=1e-4)
    np.testing.assert_allclose(gradients[1], given.gradients[1], atol=1e-4)
    error = operation.backward(given.error.copy(), given.inputs, given.weights, [None, None], given.buffers)
    np.testing.assert_array_equal(error, given.input_error)


CUT = [
    # stride, padding, groups
    (1, "valid", 1),
    (2, "same", 1),
    ((3, 1), "same", 2),
    (1, ((2, 1), (0, 2)), 2),
]


@pytest.mark.parametrize("places", [[0, 1, 4], [0, 2, 3, 4]])
@pytest.mark.parametrize(("stride", "padding", "groups"), CUT)
def test_rows_are_cut_with_the_halo_they_need(stride, padding, groups, places):
    height = 4 * (stride if isinstance(stride, int) else stride[0])

    def build(backend):
        return Conv2D((height, 7, 4), 6, 3, stride, padding, "relu", backend, groups)

    ends = [*places[:-1], build("numpy").output_shape[0]]
    if ends[-2] >= ends[-1]:
        ends = [0, ends[-1]]
    check_slices(build, [OutputSlice("rows", *pair) for pair in pairwise(ends)])


@pytest.mark.parametrize(("stride", "padding", "groups"), CUT)
def test_maps_are_cut_with_their_groups(stride, padding, groups):
    parts = [OutputSlice("maps", *pair) for pair in ([(0, 1), (1, 3), (3, 6)])]
    check_slices(lambda backend: Conv2D((7, 6, 4), 6, 3, stride, padding, "tanh", backend, groups), parts)


def test_a_part_of_two_groups_is_refused():
    with pytest.raises(ValueError, match="expected maps of whole groups of 3, or of one; found 2 to 6"):
        Conv2D((7, 6, 4), 6, 3, groups=2).slice(OutputSlice("maps", 2, 6))


def test_units_are_refused():
    with pytest.raises(ValueError, match="Conv2D: expected a slice of maps or rows; found one of units"):
        Conv2D((7, 6, 4), 6, 3).slice(OutputSlice("units", 0, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_of_other_shapes_are_refused(backend):
    operation = Conv2D((5, 5, 2), 4, 3, backend=backend)
    weights = [np.zeros((4, 3, 3, 1), np.float32), np.zeros(4, np.float32)]
    with pytest.raises(
        ValueError, match=r"expected parameters of shapes \[\(4, 3, 3, 2\), \(4,\)\]; found \[\(4, 3, 3, 1"
    ):
        operation.forward(np.zeros((1, 5, 5, 2), np.float32), weights, operation.allocate(1), True, key_of(0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_examples_than_there_is_room_for_are_refused(backend):
    operation = Conv2D((5, 5, 2), 4, 3, backend=backend)
    weights = [np.zeros(shape, np.float32) for shape in operation.parameters]
    with pytest.raises(ValueError, match="expected at most 2 examples; found 3"):
        operation.forward(np.zeros((3, 5, 5, 2), np.float32), weights, operation.allocate(2), True, key_of(0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_images_that_are_not_contiguous_are_refused(backend):
    operation = Conv2D((5, 5, 2), 4, 3, backend=backend)
    images = np.zeros((1, 5, 5, 4), np.float32)[..., ::2]
    with pytest.raises(ValueError, match="not contiguous"):
        operation.forward(images, [], operation.allocate(1), True, key_of(0))
