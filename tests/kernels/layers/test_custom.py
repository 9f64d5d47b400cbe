"""Layers of the user's own: what their code gets, that parts make the whole, and what happens when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import CustomError
from adamctl.kernels.layers.custom import PLACED, Custom
from adamctl.kernels.slicing import OutputSlice
from adamctl.kernels.step.network import Network
from adamctl.model.custom.resolved import resolved
from tests.custom_layers import Mix, Relu, RowsOfAll, RowSums, Slope
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_slices, key_of, run

CASES = {
    "pointwise": (Relu(), (6, 5, 2)),
    "pointwise with parameters": (Slope(), (6, 5, 2)),
    "pointwise on vectors": (Slope(), (7,)),
    "same": (RowSums(3), (6, 5, 2)),
    "same, even, apart": (RowSums(4, 3), (8, 7, 1)),
    "same, windows beyond the image": (RowSums(9), (3, 4, 2)),
    "valid": (RowSums(3, 1, "valid"), (6, 5, 2)),
    "valid, rows that nobody reads": (RowSums(2, 3, "valid"), (7, 6, 2)),
    "full": (Mix(6), (3, 2, 2)),
    "full on vectors": (Mix(6), (5,)),
    "full to an image": (RowsOfAll(5), (4, 3, 2)),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def build(case: tuple[adam.Layer, tuple[int, ...]]):
    own = resolved(*case)
    return lambda backend: Custom(own, f"{own.name}1", backend)


@cases
def test_gradients_are_the_users(case) -> None:
    check_gradients(build(case))


@cases
@pytest.mark.parametrize("shares", [(1,), (1, 3), (0.3, 0.5, 0.9)])
def test_parts_make_the_whole(case, shares: Sequence[float]) -> None:
    own = resolved(*case)
    for axis in own.axes:
        extent = own.output[-1 if axis == "maps" else 0]
        bounds = sorted(
            {0, extent, *(round(share * extent) if share < 1 else min(int(share), extent) for share in shares)}
        )
        check_slices(build(case), [OutputSlice(axis, *one) for one in pairwise(bounds)])


class Reads(adam.Layer):
    """Keeps what it was given."""

    size: int = 3
    given: tuple[int, ...] = ()

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Window(self.size, padding="same")

    def upward(self, part, inputs, parameters, state, out):
        seen.append((part, inputs.copy()))
        out[...] = 0


seen: list[tuple[adam.Part, np.ndarray]] = []


def test_a_window_finds_zeros_around_the_image_and_is_told_how_many_pixels_are_inside() -> None:
    seen.clear()
    whole = Custom(resolved(Reads(), (4, 3, 1)), "reads1", "numpy")
    part = whole.slice(OutputSlice("rows", 2, 4)).operation
    images = np.arange(1, 13, dtype=np.float32).reshape(1, 4, 3, 1)
    for operation, given in ((whole, images), (part, images[:, 1:])):
        operation.forward(np.ascontiguousarray(given), [], operation.allocate(1), False, key_of(1))
    (first, image), (second, rows) = seen
    np.testing.assert_array_equal(image[0, ..., 0], np.pad(images[0, ..., 0], 1))
    np.testing.assert_array_equal(first.inside, np.pad(np.ones((4, 3)), 1))
    np.testing.assert_array_equal(first.counts, [[4, 6, 4], [6, 9, 6], [6, 9, 6], [4, 6, 4]])
    np.testing.assert_array_equal(rows[0, ..., 0], np.pad(images[0, 1:, :, 0], ((0, 1), (1, 1))))
    np.testing.assert_array_equal(second.inside[:, 1], [1, 1, 1, 0])
    np.testing.assert_array_equal(second.counts, [[6, 9, 6], [4, 6, 4]])
    assert second.makes == ((2, 4), (0, 3), (0, 1)) and second.reads == ((1, 4), (0, 3), (0, 1))
    assert second.input == (4, 3, 1) and second.output_shape == (2, 3, 1)


def test_nothing_is_copied_where_the_inputs_are_all_that_is_read() -> None:
    for case in ("pointwise", "valid", "full"):
        operation = build(CASES[case])("numpy")
        assert PLACED not in operation.allocate(2).scratch
    assert PLACED in build(CASES["same"])("numpy").allocate(2).scratch


def test_pixels_that_no_window_reads_have_no_error() -> None:
    """Whatever the array held before, which layers share."""
    operation = build(CASES["valid, rows that nobody reads"])("numpy")
    given, buffers = run(operation, 2, 1), operation.allocate(2)
    buffers.input_error[...] = np.nan
    operation.forward(given.inputs, given.weights, buffers, True, key_of(1))
    operation.backward(given.error.copy(), given.inputs, given.weights, given.gradients, buffers)
    np.testing.assert_array_equal(buffers.input_error, given.input_error)
    assert not buffers.input_error[:, 5:].any()


def test_state_of_one_thread_is_not_anothers() -> None:
    operation = build(CASES["same"])("numpy")
    one, other = operation.allocate(2), operation.allocate(2)
    assert not np.shares_memory(one.scratch["state sums"], other.scratch["state sums"])
    assert run(operation, 2, 1).outputs.tobytes() == run(operation, 2, 1).outputs.tobytes()


class Fails(Relu):
    """Fails in one direction, or returns what it should write."""

    how: str

    def upward(self, part, inputs, parameters, state, out):
        if self.how == "upward":
            raise ValueError("no such number")
        if self.how == "returns":
            return inputs * 2
        np.maximum(inputs, 0, out=out)
        return None

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        out[...] = error[:, :1, :1, :1, None]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "upward",
            r"fails1 \(tests.*:Fails\), the part of outputs .1:3.*, upward: ValueError: no such number .*custom.py:\d+",
        ),
        ("downward", r"fails1 .*, downward: .*Error: .*test_custom.py:\d+\)"),
        ("returns", r"fails1 .*, upward: expected results in out and nothing returned; found ndarray"),
    ],
)
def test_a_failure_names_layer_part_direction_and_line(how: str, message: str) -> None:
    whole = Custom(resolved(Fails(how), (4, 3, 1)), "fails1", "numpy")
    with pytest.raises(CustomError, match=message):
        run(whole.slice(OutputSlice("rows", 1, 3)).operation, 2, 1)


def test_a_part_is_not_cut_again() -> None:
    part = build(CASES["pointwise"])("numpy").slice(OutputSlice("rows", 1, 4)).operation
    with pytest.raises(ValueError, match="expected a whole layer"):
        part.slice(OutputSlice("rows", 0, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_network_with_such_layers_trains(backend: str) -> None:
    layers = [RowSums(3), Slope(), adam.Conv2D(3, 3, activation="relu"), Mix(6), Relu(), adam.Softmax(3)]
    network = Network(adam.Sequential(layers, (6, 5, 1)), 8, backend)
    generator = np.random.default_rng(4)
    flat = generator.standard_normal(network.flat_size).astype(np.float32) * np.float32(0.2)
    images = generator.standard_normal((8, 6, 5, 1)).astype(np.float32)
    labels = generator.integers(0, 3, 8)
    context = network.context()
    losses = []
    for _ in range(40):
        losses.append(network.step(context, flat, images, labels).loss)
        flat -= np.float32(0.1) * context.gradient
    assert losses[-1] < 0.85 * losses[0]
    assert not network.is_native(flat), "these layers have no native calls"
    assert context.factors(3) is None, "the gradient of a layer of the user's own is no product of factors"
    few = network.step(context, flat, images[:3].copy(), labels[:3])
    assert np.isfinite(few.loss)
