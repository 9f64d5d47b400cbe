"""Slices that cover a layer's outputs compute, together, what the layer does (Adam 3.2.5, DistBelief 3)."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.dense import Dense
from adamctl.kernels.layers.softmax import Softmax
from adamctl.kernels.slicing import OutputSlice
from tests.kernels.kernel_checks import check_slices

UNITS = [OutputSlice("units", 0, 3), OutputSlice("units", 3, 4), OutputSlice("units", 4, 7)]


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("activation", [None, "relu", "sigmoid"])
def test_units_of_a_dense_layer(activation, batch):
    check_slices(lambda backend: Dense((2, 3), 7, activation, backend), UNITS, batch)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_units_of_a_softmax_are_logits_that_are_normalised_together(batch):
    def normalised(logits):
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    check_slices(lambda backend: Softmax((6,), 7, True, backend), UNITS, batch, finish=normalised)


def test_slices_of_a_vector_are_units():
    with pytest.raises(ValueError, match="Dense: expected a slice of units; found one of rows"):
        Dense((2, 3), 7).slice(OutputSlice("rows", 0, 1))
