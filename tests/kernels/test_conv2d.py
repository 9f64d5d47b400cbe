"""The convolution against a plain loop, numerical gradients and its other implementations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from kernel_checks import BACKENDS, check_gradients, check_implementations, run

from adamctl.kernels.conv2d import Conv2D
from adamctl.model.shapes import same_padding

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
        operation.forward(np.zeros((2, 5, 6, 1), np.float32), [], buffers, False, np.random.default_rng(0))
