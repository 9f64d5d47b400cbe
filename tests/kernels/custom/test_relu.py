"""A rectifier by itself: it keeps its promises, natively too."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.custom.relu import Relu
from adamctl.kernels.layer_check.check import check_layer
from adamctl.kernels.layers.custom import Custom
from adamctl.model.custom.resolved import resolved
from tests.kernels.kernel_checks import BACKENDS, key_of


def test_it_keeps_its_promises() -> None:
    check_layer(Relu(), (5, 4, 3))
    check_layer(Relu(), (7,))


def test_nan_stays_nan_in_every_implementation() -> None:
    inputs = np.array([[np.nan, -1, 0, 2]], np.float32)
    for backend in BACKENDS:
        operation = Custom(resolved(Relu(), (4,)), "relu1", backend)
        outputs = operation.forward(inputs, [], operation.allocate(1), False, key_of(1))
        np.testing.assert_array_equal(outputs, [[np.nan, 0, 0, 2]])
