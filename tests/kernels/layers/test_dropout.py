"""Inverted dropout: identity outside training, unbiased while training, the mask comes from the seed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from adamctl.kernels.layers.dropout import Dropout
from adamctl.kernels.slicing import OutputSlice
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, check_slices, key_of, run


def test_outside_training_it_is_the_identity():
    given = run(Dropout((4, 5), 0.5), 3, seed=1, training=False)
    np.testing.assert_array_equal(given.outputs, given.inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.9])
def test_inputs_are_zeroed_at_the_rate_and_the_rest_scaled(rate, backend):
    operation = Dropout((200, 100), rate, backend)
    inputs = np.ones((1, 200, 100), np.float32)
    outputs = operation.forward(inputs, [], operation.allocate(1), True, key_of(2))
    assert set(np.unique(outputs)) <= {0, np.float32(1 / (1 - rate))}
    # 20,000 draws: five standard deviations are below 0.018.
    assert abs((outputs == 0).mean() - rate) < 0.018


@pytest.mark.parametrize("batch", [0, 1, 4])
def test_the_error_takes_the_way_the_input_took(batch):
    given = run(Dropout((6,), 0.5), batch, seed=3)
    np.testing.assert_allclose(given.input_error, given.error * (given.outputs != 0) * 2)


def test_backward_agrees_with_numerical_gradients():
    check_gradients(lambda backend: Dropout((3, 4), 0.4, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mask_of_an_example_depends_on_its_place_and_not_on_the_batch_or_what_was_before(backend):
    inputs, key = np.ones((5, 50), np.float32), key_of(5)
    operation, other = Dropout((50,), 0.5, backend), Dropout((50,), 0.5, "numpy")
    expected = other.forward(inputs, [], other.allocate(5), True, key).copy()
    buffers = operation.allocate(5)
    for size, number in ((5, 5), (3, 9), (2, 5), (4, 9), (5, 5)):
        found = operation.forward(inputs[:size], [], buffers, True, key_of(number))
        assert np.array_equal(found, expected[:size]) == (number == 5)


@pytest.mark.parametrize("batch", [0, 1, 5])
@pytest.mark.parametrize("shape", [(17,), (3, 5, 2)])
def test_implementations_draw_the_same_mask(shape, batch):
    check_implementations(lambda backend: Dropout(shape, 0.4, backend), batch, tolerance=1e-7)


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(("shape", "axes"), [((11,), ["units"]), ((7, 5, 4), ["rows", "maps"])])
def test_slices_make_the_masks_of_the_whole_without_their_neighbours(shape, axes, batch):
    for axis in axes:
        size = shape[-1] if axis == "maps" else shape[0]
        parts = [OutputSlice(axis, *ends) for ends in pairwise([0, 1, size // 2, size])]
        check_slices(lambda backend: Dropout(shape, 0.5, backend), parts, batch, tolerance=1e-7)


def test_a_slice_of_a_slice_keeps_its_place_in_the_layer():
    whole = Dropout((20,), 0.5)
    half = whole.slice(OutputSlice("units", 10, 20)).operation
    np.testing.assert_array_equal(half.slice(OutputSlice("units", 5, 7)).operation.positions, [15, 16])


@pytest.mark.parametrize(("shape", "axis"), [((6,), "rows"), ((4, 4, 2), "units")])
def test_a_vector_is_cut_by_units_and_an_image_is_not(shape, axis):
    with pytest.raises(ValueError, match="Dropout: expected a slice of"):
        Dropout(shape, 0.5).slice(OutputSlice(axis, 0, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_examples_units_layers_and_steps_have_nothing_to_do_with_each_other(backend):
    """Correlations of 4,000 fair draws: five standard deviations are 0.08."""
    operation = Dropout((4000,), 0.5, backend)
    other = Dropout((4000,), 0.5, backend, layer=1)
    buffers, key = operation.allocate(3), key_of(7)
    inputs = np.ones((3, 4000), np.float32)
    steps = [operation.forward(inputs, [], buffers, True, one).copy() for one in (key, key_of(8), key[::-1].copy())]
    steps.append(other.forward(inputs, [], other.allocate(3), True, key).copy())
    masks = np.concatenate([*steps, np.roll(steps[0], 1, axis=1), np.roll(steps[0], 64, axis=1)])
    correlation = np.corrcoef(masks) - np.eye(len(masks))
    assert np.abs(correlation).max() < 0.08


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_nan_even_where_it_is_dropped(backend):
    outputs = Dropout((50,), 0.5, backend)
    given = outputs.forward(np.full((1, 50), np.nan, np.float32), [], outputs.allocate(1), True, key_of(0))
    assert np.isnan(given).all()
