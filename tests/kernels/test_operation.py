"""What operations on images share: inputs that do not fit the buffers are refused before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.dropout import Dropout
from adamctl.kernels.layers.l2pool2d import L2Pool2D
from adamctl.kernels.layers.local2d import Local2D
from adamctl.kernels.layers.local_contrast_norm import LocalContrastNorm
from tests.kernels.kernel_checks import BACKENDS

SHAPE = (6, 5, 2)
BUILDERS = {
    "Local2D": lambda backend: Local2D(SHAPE, 3, 3, backend=backend),
    "L2Pool2D": lambda backend: L2Pool2D(SHAPE, 2, backend=backend),
    "LocalContrastNorm": lambda backend: LocalContrastNorm(SHAPE, 3, backend=backend),
    "Dropout": lambda backend: Dropout(SHAPE, 0.5, backend),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((3, *SHAPE), np.float32), "expected at most 2 inputs of float32; found 3 of float32"),
        (np.zeros((2, *SHAPE)), "expected at most 2 inputs of float32; found 2 of float64"),
        (
            np.zeros((2, 6, 5, 3), np.float32),
            r"expected inputs of shape \[n, 6, 5, 2\], contiguous; found \[2, 6, 5, 3",
        ),
        (np.zeros((2, 6, 5, 4), np.float32)[..., ::2], r"found \[2, 6, 5, 2\], not contiguous"),
    ],
    ids=["too many", "double", "another shape", "strided"],
)
def test_inputs_that_do_not_fit_are_refused(backend, name, inputs, words):
    operation = BUILDERS[name](backend)
    weights = [np.zeros(shape, np.float32) for shape in operation.parameters]
    with pytest.raises(ValueError, match=f"{name}: .*{words}"):
        operation.forward(inputs, weights, operation.allocate(2), True, np.random.default_rng(0))
