"""Calls of kernels and products as one native function."""

from __future__ import annotations

import ctypes
from typing import get_args

import numpy as np
import pytest

from adamctl.kernels import native, native_function
from adamctl.kernels.backend import compiled
from adamctl.kernels.blas import blas
from adamctl.kernels.native_function import compile_calls
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.step import plan
from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Network
from adamctl.kernels.step.steps import Accruing
from adamctl.model.custom.registry import described
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Layer,
    Local2D,
    LocalContrastNorm,
    Logistic,
    LossName,
    MaxPool2D,
    Model,
    Softmax,
)
from tests.custom_layers import NativeRelu, Neighbours
from tests.kernels.kernel_checks import BACKENDS

needs_blas = pytest.mark.skipif(blas() is None, reason="numpy's BLAS is not one that is known")
pytestmark = pytest.mark.skipif("numba" not in BACKENDS or not native.can_compile(), reason="no compiler here")

PLAIN = (Conv2D(5, 3, activation="relu"), MaxPool2D(2), Dense(7, "relu"), Dense(6, "relu"), Softmax(4))
ACTIVATIONS = (None, "relu", "tanh", "sigmoid")
FIRST, LAST = Conv2D(3, 2, activation="relu"), Softmax(4)
MODELS = {
    "plain": PLAIN,
    "one unit": (Conv2D(5, 3, activation="relu"), Dense(1, "relu"), Dense(6), LAST),
    "one image pixel": (Conv2D(1, (9, 8), activation="tanh"), Dense(3), LAST),
    "grouped": (FIRST, Conv2D(6, 3, padding="same", groups=3, activation="tanh"), LAST),
    "overlapping maximum": (FIRST, Dropout(0.1), MaxPool2D(3, 1), MaxPool2D(2), LAST),
    "roots of squares": (L2Pool2D(2), FIRST, L2Pool2D(2, 1), LAST),
    "contrast": (LocalContrastNorm(3), FIRST, LocalContrastNorm(5, "uniform", 0.1), LAST),
    "contrast of a column": (Conv2D(3, (1, 8)), LocalContrastNorm(3), LAST),
    "dropped": (Dropout(0.2), FIRST, Dropout(0.3), Dense(7, "relu"), Dropout(0.5), LAST),
    "squares of probabilities": (FIRST, LAST),
    "squares": (FIRST, Dense(4)),
    "regression": (FIRST, Dense(4)),
    "one-vs-all": (FIRST, Logistic(4)),
    "squares of one-vs-all": (FIRST, Logistic(4)),
    **{f"convolutions, {f}": (Conv2D(3, 3, activation=f), Conv2D(4, 2, 2, "same", f), LAST) for f in ACTIVATIONS},
    **{f"pooled, {f}": (FIRST, Conv2D(9, 3, activation=f), MaxPool2D(2), LAST) for f in ACTIVATIONS},
    **{f"dense, {f}": (Dense(7, f), Dense(19, f), LAST) for f in ACTIVATIONS},
    **{f"untied, {f}": (Local2D(3, 3, 2, "same", f), Local2D(2, 2, activation=f), LAST) for f in ACTIVATIONS},
    "own": (FIRST, described(Neighbours()), described(NativeRelu()), LAST),
    "untied, one map": (Local2D(1, 3), Local2D(1, (7, 6)), LAST),
}
LOSS_OF = {
    "squares": "squared_error", "squares of probabilities": "squared_error", "squares of one-vs-all": "squared_error",
    "one-vs-all": "logistic", "regression": "mean_squared_error",
}  # fmt: skip


def matrix(rows: int, columns: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def stack(count: int, rows: int, columns: int, seed: int = 1) -> np.ndarray:
    return matrix(count * rows, columns, seed).reshape(count, rows, columns)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


SIZES = [
    (2, 2, 2),
    (5, 7, 3),
    (32, 400, 320),
    (1, 7, 5),
    (7, 1, 5),
    (7, 5, 1),
    (1, 1, 5),
    (1, 5, 1),
    (5, 1, 1),
    (1, 1, 1),
]
BOTH_WAYS = [(False, False), (False, True), (True, False), (True, True)]


def multiplied(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    calls = native.product(a, b, out)
    assert calls is not None
    assert compile_calls(calls)(0, 1) == 0
    return out


@needs_blas
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("transposed", BOTH_WAYS)
def test_products_are_numpys_to_the_bit(sizes: tuple[int, int, int], transposed: tuple[bool, bool]) -> None:
    m, n, k = sizes
    a = matrix(k, m).T if transposed[0] else matrix(m, k)
    b = matrix(n, k, 2).T if transposed[1] else matrix(k, n, 2)
    np.testing.assert_array_equal(multiplied(a, b, np.full((m, n), np.nan, np.float32)), a @ b)


@needs_blas
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("transposed", BOTH_WAYS)
@pytest.mark.parametrize("count", [1, 4])
def test_stacks_are_products_one_after_the_other(
    sizes: tuple[int, int, int], transposed: tuple[bool, bool], count: int
) -> None:
    """Also where results of one product lie between those of others, or one matrix serves all."""
    m, n, k = sizes
    a = stack(count, k, m).transpose(0, 2, 1) if transposed[0] else stack(count, m, k)
    b = stack(count, n, k, 2).transpose(0, 2, 1) if transposed[1] else stack(count, k, n, 2)
    between = np.full((m, count, n), np.nan, np.float32).transpose(1, 0, 2)
    expected = np.matmul(a, b, out=np.zeros_like(between))
    np.testing.assert_array_equal(multiplied(a, b, between), expected)
    for one, other in ((a[0], b), (a, b[0])):
        expected = np.matmul(one, other, out=np.zeros((count, m, n), np.float32))
        np.testing.assert_array_equal(multiplied(one, other, np.full_like(expected, np.nan)), expected)


@needs_blas
def test_a_loop_makes_its_calls_turn_by_turn() -> None:
    """Each turn reads a matrix of its own, writes over the result of the turn before, and knows its number."""
    a, b, between = stack(5, 2, 3), stack(5, 3, 4, 2), np.zeros((1, 2, 4), np.float32)
    images, geometry = np.full((2, 5, 1, 4), 9, np.float32), (1, 1, 1, 1, 1, 0, 0)
    fold = native.NativeCall(compiled("local").fold_places, (between, images, native.TURN, *geometry))
    failing = native.NativeCheck(native.Word(0))
    calls = native.joined(native.loop(5, native.product(a, b, between[0]), [fold]), [failing])
    assert calls is not None
    steps, table = compile_calls(calls), np.array([0, -1])
    for row in (0, 1):
        images[...] = 9
        assert steps(address(table[row:]), 1) == (native.REFUSED if row else 0)
        np.testing.assert_array_equal(images[:, :, 0], (a @ b).transpose(1, 0, 2))
    assert native.loop(5, None, [fold]) is None


def test_products_of_what_lies_apart_or_of_a_matrix_with_itself_are_left_to_numpy() -> None:
    a, out = matrix(4, 4), np.zeros((4, 4), np.float32)
    assert native.product(a, a.T, out) is None
    assert native.product(matrix(4, 8)[:, ::2], matrix(4, 4), out) is None
    assert native.product(a, matrix(4, 4, 2), out.T) is None
    assert native.joined([], None) is None


def test_results_come_back_and_images_may_lie_anywhere() -> None:
    kernels = compiled("losses")
    labels, error, result = np.array([1, 0, 2]), np.zeros((3, 4), np.float32), np.zeros(2, np.int64)
    stand_in = np.zeros((3, 4), np.float32)
    step = compile_calls(
        [native.NativeCall(kernels.squared_error_error, (stand_in, labels, error), result)], {0: stand_in}
    )
    for seed in range(3):
        outputs, expected = matrix(3, 4, seed), np.zeros((3, 4), np.float32)
        loss, correct = kernels.squared_error_error(outputs, labels, expected)
        table = np.array([address(outputs)])
        assert step(address(table), 1) == 0
        assert (result.view(np.float64)[0], result[1]) == (loss, correct)
        np.testing.assert_array_equal(error, expected)


def test_an_argument_that_does_not_fit_is_named_before_anything_is_compiled() -> None:
    add_bias = compiled("elementwise").add_bias
    with pytest.raises(TypeError, match=r"add_bias: expected .* found float64 \[2, 3\]"):
        compile_calls([native.NativeCall(add_bias, (np.zeros((2, 3)), np.zeros(3, np.float32), 0))])
    with pytest.raises(TypeError, match="add_bias"):
        compile_calls([native.NativeCall(add_bias, (matrix(2, 6)[:, ::2], np.zeros(3, np.float32), 0))])
    with pytest.raises(TypeError, match=r"product: expected .* found \[\[2, 3\], \[4, 2\], \[2, 2\]\]"):
        compile_calls([native.NativeProduct(matrix(2, 3), matrix(4, 2), matrix(2, 2))])
    many, one, out = stack(2, 2, 3), matrix(3, 2), stack(2, 2, 2)
    with pytest.raises(TypeError, match="product: expected stacks of one length; found"):
        compile_calls([native.NativeProduct(many, stack(3, 3, 2), out)])
    with pytest.raises(TypeError, match="product: expected a stack for the results of 2 matrices; found one"):
        compile_calls([native.NativeProduct(many, one, out[0])])
    with pytest.raises(TypeError, match="loop: expected stacks of 3 matrices; found 2"):
        compile_calls([native.NativeLoop(3, [native.NativeProduct(many, one, out)])])
    kernels, image = compiled("contrast"), np.zeros((1, 2, 2, 3), np.float32)
    rest = (np.zeros((1, 2, 2), np.float32), np.ones((1, 2, 2), np.float32), image.copy(), 0, 0, 0)
    with pytest.raises(TypeError, match=r"divide: expected .* 0\.5"):
        compile_calls([native.NativeCall(kernels.divide, (image, *rest, 0.5))])


def test_a_kernel_that_fails_ends_the_calls_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    add_bias = compiled("elementwise").add_bias
    outputs, bias = np.zeros((2, 3), np.float32), np.ones(3, np.float32)
    failing = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 7)
    found = native_function._overload(native.NativeCall(add_bias, (outputs, bias, 0)))
    broken = type("Compiled", (), {"library": type("Library", (), {})(), "fndesc": found.fndesc})()
    broken.library.get_pointer_to_function = lambda name: ctypes.cast(failing, ctypes.c_void_p).value
    real, order = native_function._overload, iter([found, broken, found])
    monkeypatch.setattr(native_function, "_overload", lambda call: next(order))
    step = compile_calls([native.NativeCall(add_bias, (outputs, bias, 0))] * 3)
    monkeypatch.setattr(native_function, "_overload", real)
    assert step(0, 1) == 7
    np.testing.assert_array_equal(outputs, 1)


def model_of(name: str) -> Model:
    return Model((9, 8, 2), MODELS[name], LOSS_OF.get(name, "cross_entropy"))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [8, 1])
@pytest.mark.parametrize("skip", [False, True])
def test_a_native_step_is_the_python_step_to_the_bit(
    name: str, batch: int, skip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(model_of(name), batch, "numba")
    weights = np.random.default_rng(1).standard_normal(network.flat_size).astype(np.float32) * np.float32(0.3)
    views, (ours, theirs) = network.views(weights), [network.context() for _ in range(2)]
    network.prepare(ours, views, skip)
    assert isinstance(ours.plans[batch], plan.NativePlan)
    monkeypatch.setattr("adamctl.kernels.step.network.native_plan", lambda *_: None)
    for seed in range(3):
        generator = np.random.default_rng(seed)
        images = generator.standard_normal((batch, 9, 8, 2)).astype(np.float32)
        labels = generator.integers(0, 4, batch).astype(np.int32 if seed else np.int64)
        if name == "regression":
            labels = generator.standard_normal((batch, 4)).astype(np.float32)  # type: ignore[assignment]
        found, expected = (network.step(one, views, images, labels, skip, seed) for one in (ours, theirs))
        assert found == expected
        np.testing.assert_array_equal(ours.gradient, theirs.gradient)
        assert np.any(ours.gradient)
        for tensor in network.tensors:
            factors = [context.factors(tensor.layer) for context in (ours, theirs)]
            if factors[0] is not None and factors[1] is not None:
                np.testing.assert_array_equal(factors[0].errors, factors[1].errors)
                np.testing.assert_array_equal(factors[0].activations, factors[1].activations)


def test_every_kind_of_layer_and_every_loss_is_among_them() -> None:
    assert {type(layer) for layers in MODELS.values() for layer in layers} == set(get_args(Layer))
    assert set(LOSS_OF.values()) | {"cross_entropy"} == set(get_args(LossName))


@needs_blas
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [8, 1])
def test_a_step_of_any_built_in_layers_is_one_function(name: str, batch: int) -> None:
    network = Network(model_of(name), batch, "numba")
    context, weights = network.context(), np.zeros(network.flat_size, np.float32)
    network.prepare(context, weights)
    planned = context.plans[batch]
    assert isinstance(planned, plan.NativePlan)
    assert planned.is_whole
    accruing = Accruing(Accrual("numba"), [np.zeros_like(weights)], np.zeros(1, np.int64), weights)
    assert network.native_steps(context, weights, accruing) is not None


def test_a_view_that_begins_within_a_stand_in_is_refused() -> None:
    """Its place would stay where the stand-in is, and not follow the step's array."""
    images, bias = matrix(4, 6), np.ones(6, np.float32)
    add_bias = compiled("elementwise").add_bias
    compile_calls([native.NativeCall(add_bias, (images, bias, 0))], {0: images})
    compile_calls([native.NativeCall(add_bias, (images[:2], bias, 0))], {0: images})
    with pytest.raises(TypeError, match=r"a view of \[3, 6\] that begins later in an array whose place is another"):
        compile_calls([native.NativeCall(add_bias, (images[1:], bias, 0))], {0: images})


@pytest.mark.parametrize("part", ["native_forward", "native_backward"])
def test_what_a_layer_cannot_do_natively_python_does_between_native_functions(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, expected = Network(model_of("plain"), 8, "numba"), Network(model_of("plain"), 8, "numba")
    monkeypatch.setattr(network.layers[1].operation, part, lambda *_: None)
    weights = np.random.default_rng(1).standard_normal(network.flat_size).astype(np.float32) * np.float32(0.3)
    contexts, images = [one.context() for one in (network, expected)], matrix(8, 9 * 8 * 2).reshape(8, 9, 8, 2)
    for one, context in zip((network, expected), contexts, strict=True):
        one.step(context, weights, images, np.arange(8) % 4)
    np.testing.assert_array_equal(contexts[0].gradient, contexts[1].gradient)
    planned = contexts[0].plans[8]
    assert isinstance(planned, plan.NativePlan) and not planned.is_whole


@pytest.mark.parametrize("labels", [np.full(8, 4), np.full(8, -1, np.int32), np.zeros(7, np.int64), np.zeros(8)])
def test_bad_labels_are_refused_as_ever(labels: np.ndarray) -> None:
    network = Network(Model((9, 8, 2), PLAIN), 8, "numba")
    context, weights = network.context(), np.zeros(network.flat_size, np.float32)
    with pytest.raises(ValueError, match="labels: expected"):
        network.step(context, weights, np.zeros((8, 9, 8, 2), np.float32), labels)


def test_ragged_batches_go_the_other_way() -> None:
    network = Network(Model((9, 8, 2), PLAIN), 8, "numba")
    context, weights = network.context(), np.zeros(network.flat_size, np.float32)
    network.step(context, weights, np.zeros((5, 9, 8, 2), np.float32), np.zeros(5, np.int64))
    assert isinstance(context.plans[5], plan.StepPlan)


def test_every_row_of_a_table_is_gone_through_with_its_own_arrays_numbers_and_results() -> None:
    kernels, rows = compiled("losses"), 3
    stand_in, labels, error = np.zeros((3, 4), np.float32), np.array([1, 0, 2]), np.zeros((3, 4), np.float32)
    moved, ones = np.zeros(5, np.float32), np.ones(5, np.float32)
    calls = [
        native.NativeCall(kernels.squared_error_error, (stand_in, labels, error), native.Word(1)),
        native.NativeCall(compiled("accrual").subtract_scaled, (moved, ones, native.Word(3))),
    ]
    steps = compile_calls(calls, {0: stand_in}, 4)
    table, outputs = np.zeros((rows, 4), np.int64), [matrix(3, 4, seed) for seed in range(rows)]
    for row, array in zip(table, outputs, strict=True):
        row[0] = address(array)
        row[3:].view(np.float32)[0] = 0.5
    assert steps(address(table), rows - 1) == 0
    np.testing.assert_array_equal(moved, -1)
    for row, array in zip(table[: rows - 1], outputs, strict=False):
        loss, correct = kernels.squared_error_error(array, labels, error)
        assert (row[1:2].view(np.float64)[0], row[2]) == (loss, correct)
    assert not table[rows - 1, 1:3].any(), "the last was not asked for"


def test_a_word_below_zero_ends_the_calls_where_it_is_looked_at() -> None:
    add_bias, outputs = compiled("elementwise").add_bias, np.zeros((2, 3), np.float32)
    call = native.NativeCall(add_bias, (outputs, np.ones(3, np.float32), 0))
    steps = compile_calls([call, native.NativeCheck(native.Word(0)), call], words=1)
    table = np.array([5, 0, -1, 5])
    assert steps(address(table), 2) == 0
    np.testing.assert_array_equal(outputs, 4)
    assert steps(address(table), 4) == native.REFUSED
    np.testing.assert_array_equal(outputs, 9)


def test_words_of_a_row_are_an_argument_where_they_lie() -> None:
    kernels, dropped = compiled("elementwise"), np.zeros((2, 2), np.float32)
    bias = np.zeros(2, np.float32)
    steps = compile_calls([native.NativeCall(kernels.add_bias, (dropped, bias, 0))], words=2, in_row={1: bias})
    table = np.zeros((3, 2), np.int64)
    table.view(np.float32)[:, 2:] = [(1, 2), (10, 20), (100, 200)]
    assert steps(address(table), 3) == 0
    np.testing.assert_array_equal(dropped, [[111, 222]] * 2)
    np.testing.assert_array_equal(bias, 0)


@pytest.mark.parametrize("local", [True, False])
def test_accruing_is_a_call_that_takes_the_rate_and_says_that_something_is_there(local: bool) -> None:
    accrual, gradient = Accrual("numba"), matrix(1, 1003)[0]
    arrays = [(matrix(1, 1003, 2)[0], matrix(1, 1003, 3)[0]) for _ in range(2)]
    (accrued, weights), filled = arrays[0], np.zeros(1, np.int64)
    calls = accrual.native(accrued, weights if local else None, gradient, filled, native.Word(0))
    steps, row = compile_calls(calls or []), np.zeros(1, np.int64)
    for number, rate in enumerate((0.1, 1e-3, 0.5)):
        row.view(np.float32)[0] = rate
        assert steps(address(row), 1) == 0
        assert filled[0] == 1
        if local:
            accrual.accrue_and_apply(*arrays[1], gradient, rate, number == 0)
        else:
            accrual.accrue(arrays[1][0], gradient, number == 0)
    for found, expected in zip(*arrays, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("skip", [False, True])
def test_clipping_at_the_end_of_a_native_step_is_clipping_after_it(skip: bool) -> None:
    network = Network(Model((9, 8, 2), PLAIN), 8, "numba")
    weights = np.random.default_rng(1).standard_normal(network.flat_size).astype(np.float32)
    contexts = [network.context() for _ in range(2)]
    clips = [LayerNormClip(network, context, 0.05) for context in contexts]
    network.prepare(contexts[0], weights, skip, clips[0].native(skip))
    for size in (8, 5, 8, *range(1, 8), *range(1, 8), 8):  # enough sizes that plans are made anew
        images, labels = matrix(size, 9 * 8 * 2, size).reshape(size, 9, 8, 2), np.arange(size) % 4
        for context, clip in zip(contexts, clips, strict=True):
            result = network.step(context, weights, images, labels, skip)
            assert result.after == (context is contexts[0] and size == 8 and not skip)
            clip.settle() if result.after else clip.apply(skip)
        assert clips[0].clipped == clips[1].clipped > 0
        np.testing.assert_array_equal(contexts[0].gradient, contexts[1].gradient)
        for tensor in network.tensors:
            factors = [context.factors(tensor.layer) for context in contexts]
            if factors[0] is not None and factors[1] is not None:
                np.testing.assert_array_equal(factors[0].errors, factors[1].errors)
