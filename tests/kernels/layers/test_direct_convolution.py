"""The compiled convolution against the reference, over the sizes at which its panels and tiles change."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.backend import compiled
from adamctl.kernels.layers.conv2d import Conv2D
from tests.kernels.kernel_checks import BACKENDS, check_implementations, key_of, run

pytestmark = pytest.mark.skipif("numba" not in BACKENDS, reason="needs numba")
CHANNELS_AND_FILTERS = [(1, 8), (2, 9), (3, 17), (7, 24), (8, 33), (17, 40), (20, 65), (33, 3), (70, 10)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("channels", "filters"), CHANNELS_AND_FILTERS)
def test_panels_of_every_kind(channels, filters, wide, monkeypatch):
    """Vectors of 16 compute the same on machines that lack them, only slower."""
    monkeypatch.setattr(compiled("tiles"), "WIDE", wide)
    check_implementations(lambda backend: Conv2D((5, 9, channels), filters, 3, 1, "same", "relu", backend), 2)
    check_implementations(lambda backend: Conv2D((9, 8, channels), filters, (3, 2), 2, "valid", None, backend), 2)


@pytest.mark.parametrize("columns", range(1, 20))
def test_rows_of_every_length(columns):
    check_implementations(lambda backend: Conv2D((3, columns, 2), 5, 1, 1, "valid", "sigmoid", backend), 2)
    check_implementations(lambda backend: Conv2D((4, columns, 2), 5, 3, (2, 3), "same", "tanh", backend), 2)


def test_more_rows_than_a_block_holds():
    check_implementations(lambda backend: Conv2D((70, 33, 2), 5, 3, 1, "same", "relu", backend), 2)


@pytest.mark.parametrize("stride", [1, 2])
def test_every_step_computes_the_same(stride):
    operation = Conv2D((9, 11, 3), 10, 4, stride, "same", "relu", "numba")
    first = run(operation, 4, seed=3)
    for _ in range(2):
        outputs = operation.forward(first.inputs, first.weights, first.buffers, True, key_of(0))
        np.testing.assert_array_equal(outputs, first.outputs)
        gradients = [np.full_like(gradient, 5) for gradient in first.gradients]
        error = operation.backward(first.error.copy(), first.inputs, first.weights, gradients, first.buffers)
        np.testing.assert_array_equal(error, first.input_error)
        np.testing.assert_array_equal(gradients[0], first.gradients[0])
        np.testing.assert_array_equal(gradients[1], first.gradients[1])


def test_scratch_memory_does_not_grow_with_the_batch():
    operation = Conv2D((9, 11, 3), 10, 4, 1, "same", "relu", "numba")
    one, many = (sum(array.nbytes for array in operation.allocate(n).scratch.values()) for n in (1, 64))
    assert one == many


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_tiny_and_large_values_come_out_as_in_the_reference(scale):
    reference, direct = (Conv2D((5, 6, 2), 9, 3, 1, "same", "relu", backend) for backend in ("numpy", "numba"))
    given = run(reference, 2, seed=3)
    images, buffers = (given.inputs * np.float32(scale)).astype(np.float32), direct.allocate(2)
    weights = [given.weights[0], given.weights[1] * np.float32(scale)]
    expected = reference.forward(images, weights, given.buffers, True, key_of(0))
    found = direct.forward(images, weights, buffers, True, key_of(0))
    np.testing.assert_allclose(found / np.float32(scale), expected / np.float32(scale), atol=1e-4)


def test_not_in_float64():
    with pytest.raises(ValueError, match="expected float32"):
        Conv2D((5, 6, 2), 9, 3, backend="numba").allocate(1, True, np.float64)
