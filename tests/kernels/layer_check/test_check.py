"""The check passes layers that keep their promises, and finds each of the planted errors."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import adamctl as adam
from adamctl.cli.main import application
from adamctl.errors import ConfigurationError, CustomError
from adamctl.kernels.backend import installed
from adamctl.kernels.custom.global_average_pool import GlobalAveragePool
from adamctl.kernels.custom.whiten import Whiten
from adamctl.kernels.layer_check.check import check_layer, findings
from adamctl.kernels.native import can_compile
from tests.custom_layers import Mix, NativeRelu, Neighbours, Relu, RowSums, Slope, Whitening, relu

can_compile_kernels = "numba" in installed() and can_compile()
ROOT = Path(__file__).resolve().parents[3]
IMAGE = (7, 6, 2)
GOOD = {
    "relu": (Relu(), IMAGE),
    "slope": (Slope(), IMAGE),
    "slope of vectors": (Slope(), (5,)),
    "row sums": (RowSums(3), IMAGE),
    "row sums apart": (RowSums(2, 2, "valid"), IMAGE),
    "mix": (Mix(6), (4, 3, 1)),
    "whitening": (Whitening(3), IMAGE),
    "whiten": (Whiten(3), IMAGE),
    "pool": (GlobalAveragePool(), (3, 4, 5)),
    "native": (NativeRelu(), IMAGE),
    "native window": (Neighbours(), IMAGE),
}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD.keys())
def test_layers_that_keep_their_promises_pass(case: tuple[adam.Layer, tuple[int, ...]]) -> None:
    check_layer(*case)


def test_the_layer_of_the_document_keeps_its_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (ROOT / "docs" / "layers_of_your_own.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "layers_of_the_document.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for start in (0.1, 1.5, -2.0):
        check_layer(importlib.import_module("layers_of_the_document").Slope(start), IMAGE)


class WrongHalo(Neighbours):
    """Reads the row before by turning the part around: right but for the edges of parts."""

    native_upward = native_downward = adam.Layer.native_upward

    def upward(self, part, inputs, parameters, state, out):
        rows = inputs[:, 1:-1, 1:-1]
        out[...] = np.roll(rows, 1, axis=1) + rows

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        if out is not None:
            out[...] = 0
            out[:, 1:-1, 1:-1] = np.roll(error, -1, axis=1) + error


class MissingTerm(Whitening):
    """Takes the deviation for a constant."""

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        _, _, root, values = self.whitened(part, inputs)
        gradients["gain"][...] = (error * values).sum((0, 1, 2))
        if out is not None:
            error *= parameters["gain"] / root
            out[...] = 0
            targets = [target for target, _ in self.windows(part, out)]
            targets[len(targets) // 2] += error


class UndeclaredNeighbour(Relu):
    """Subtracts the mean of the image, and says that it reads its own place alone."""

    def upward(self, part, inputs, parameters, state, out):
        out[...] = inputs - inputs.mean((1, 2), keepdims=True)

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        if out is not None:
            out[...] = error - error.mean((1, 2), keepdims=True)


class SharedBuffer(Relu):
    """Leaves a mask to downward in the object, which all threads share."""

    def upward(self, part, inputs, parameters, state, out):
        held["mask"] = inputs > 0
        np.maximum(inputs, 0, out=out)

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        if out is not None:
            out[...] = error * held["mask"]


held: dict[str, np.ndarray] = {}
scratch = np.zeros((9, *IMAGE))


class SharedScratch(Relu):
    """Computes in an array of its module: right in one thread."""

    def upward(self, part, inputs, parameters, state, out):
        rows = scratch[: len(inputs), : inputs.shape[1], :, : inputs.shape[3]]
        np.maximum(inputs, 0, out=rows)
        out[...] = rows


def in_a_closure():
    scratch = np.zeros((9, *IMAGE))

    def upward(self, part, inputs, parameters, state, out):
        rows = scratch[: len(inputs), : inputs.shape[1], :, : inputs.shape[3]]
        np.maximum(inputs, 0, out=rows)
        out[...] = rows

    return upward


class SharedInClosure(Relu):
    """As `SharedScratch`, with the array where only its method sees it."""

    upward = in_a_closure()


scratch_of = {"by name": [np.zeros((9, *IMAGE))]}


class SharedInContainer(Relu):
    """As `SharedScratch`, with the array in a list in a dictionary."""

    def upward(self, part, inputs, parameters, state, out):
        rows = scratch_of["by name"][0][: len(inputs), : inputs.shape[1], :, : inputs.shape[3]]
        np.maximum(inputs, 0, out=rows)
        out[...] = rows


class WrongShape(Relu):
    def upward(self, part, inputs, parameters, state, out):
        out[...] = inputs.reshape(len(inputs), -1)


class PartlyWritten(Relu):
    def upward(self, part, inputs, parameters, state, out):
        np.maximum(inputs[:, :-1], 0, out=out[:, :-1])


class Rebound(Relu):
    def upward(self, part, inputs, parameters, state, out):
        out = np.maximum(inputs, 0)  # noqa: F841


class WrongType(Relu):
    """Computes in half precision."""

    def upward(self, part, inputs, parameters, state, out):
        out[...] = np.maximum(inputs.astype(np.float16), 0)


class KeptState(Relu):
    """Adds to what it did in the batch before."""

    def upward(self, part, inputs, parameters, state, out):
        kept.append(float(inputs.sum()))
        out[...] = np.maximum(inputs, 0) + (len(kept) > 1) * 1e-3 * sum(kept[:-1])


kept: list[float] = []


class LastBatch(Relu):
    """Uses the mean of the batch before: a batch that comes twice in a row shows nothing."""

    def upward(self, part, inputs, parameters, state, out):
        own = float(inputs.mean())
        out[...] = np.maximum(inputs, 0) + 1e-3 * last.get("mean", own)
        last["mean"] = own


last: dict[str, float] = {}


class NotDeterministic(Relu):
    def upward(self, part, inputs, parameters, state, out):
        out[...] = np.maximum(inputs, 0) + 1e-5 * np.random.default_rng().standard_normal(out.shape)


class ParameterOrder(adam.Layer):
    """out = gain * inputs + offset, with the two gradients given to each other."""

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Same()

    def parameters(self, input):
        return {name: adam.Parameter((input[2],), init="ones", shared=True) for name in ("gain", "offset")}

    def upward(self, part, inputs, parameters, state, out):
        out[...] = inputs * parameters["gain"] + parameters["offset"]

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        gradients["offset"][...] = (error * inputs).sum((0, 1, 2))
        gradients["gain"][...] = error.sum((0, 1, 2))
        if out is not None:
            out[...] = error * parameters["gain"]


class ChangesInputs(Relu):
    def upward(self, part, inputs, parameters, state, out):
        inputs += 1
        np.maximum(inputs, 0, out=out)


class NeedsOut(Relu):
    def downward(self, part, error, inputs, parameters, gradients, state, out):
        np.multiply(error, inputs > 0, out=out)
        out *= 1


class MixesExamples(Relu):
    def upward(self, part, inputs, parameters, state, out):
        out[...] = inputs - inputs.mean(0)

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        if out is not None:
            out[...] = error - error.mean(0)


@adam.kernel("void(float32[::1], float32[::1])")
def leaky(inputs, out):
    for place in range(inputs.size):
        out[place] = inputs[place] if inputs[place] > 0 else inputs[place] * np.float32(0.1)


class NativeDiffers(NativeRelu):
    def native_upward(self, part, inputs, parameters, state, out):
        return [adam.call(leaky, inputs.reshape(-1), out.reshape(-1))]


class OneWayDiffers(NativeRelu):
    """Native upward alone: downward is numpy's."""

    native_downward = adam.Layer.native_downward

    def native_upward(self, part, inputs, parameters, state, out):
        return [adam.call(leaky, inputs.reshape(-1), out.reshape(-1))]


class NativeOfAnotherType(NativeRelu):
    def native_upward(self, part, inputs, parameters, state, out):
        return [adam.call(relu, inputs, out.reshape(-1))]


NUMBER = r"-?\d[-+.\de]*"
BOTH = rf"expected {NUMBER}; found {NUMBER}$"
NUMERICALLY = rf"found {NUMBER}; numerically {NUMBER}$"
CHANGED = rf"{NUMBER} before and {NUMBER} after.*; declare it in state$"
PLANTED = {
    "wrong halo": (WrongHalo, rf"^partitions: out of 2 parts by rows differs .* at \[0, 0, 0, 0\]: {BOTH}"),
    "wrong halo, by what it reads": (WrongHalo, r"^connectivity: upward: output \[0, 0, 0\]: .*, but nan with NaN"),
    "missing term in the gradient": (
        MissingTerm, rf"^gradients: error at inputs at \[0, 0, 0, 0\]: {NUMERICALLY}",
    ),
    "undeclared neighbour": (
        UndeclaredNeighbour,
        rf"^connectivity: upward: output \[0, 0, 0\]: {NUMBER}, but nan with "
        r"NaN in all inputs outside of \[0:1, 0:1, 0:1\], which Same\(\) reads$",
    ),
    "undeclared neighbour, downward": (UndeclaredNeighbour, r"^connectivity: downward: the error .* found nan$"),
    "shared buffer": (
        SharedBuffer, rf"^between threads: error at inputs depends on what another .* at \[0, .*\]: {BOTH}",
    ),
    "shared scratch": (SharedScratch, rf"^what is written: tests.*\.scratch at \[0, .*\]: {CHANGED}"),
    "shared in a closure": (
        SharedInClosure, rf"^what is written: SharedInClosure.upward: scratch at \[0, .*\]: {CHANGED}",
    ),
    "shared in a container": (
        SharedInContainer, rf"^what is written: tests.*\.scratch_of\['by name'\]\[0\] at \[0, .*\]: {CHANGED}",
    ),
    "wrong shape": (
        WrongShape,
        r"^what is written: wrong_shape .*upward: ValueError: could not broadcast .* "
        r"shape \(3,84\) into shape \(3,7,6,2\) \(.*py:\d+\)$",
    ),
    "not all written": (PartlyWritten, r"^what is written: out at \[0, 6, 0, 0\]: found nan; .* was it written"),
    "nothing written": (Rebound, r"^what is written: out at \[0, 0, 0, 0\]: found nan"),
    "wrong type": (
        WrongType,
        rf"^gradients: error at inputs at \[0, .*\]: found {NUMBER}; numerically {NUMBER}; out has no more digits than "
        r"float32",
    ),
    "state kept between batches": (
        KeptState, rf"^between batches: out depends on the batch before at \[0, .*\]: {BOTH}",
    ),
    "the batch before is used": (LastBatch, rf"^between batches: out depends on the batch before at .*: {BOTH}"),
    "not deterministic": (
        NotDeterministic, rf"^the same batch twice: out differs from one run .* at \[0, .*\]: {BOTH}",
    ),
    "parameter order": (
        ParameterOrder, rf"^gradients: gradient of gain at \[0\]: {NUMERICALLY}",
    ),
    "changes its inputs": (ChangesInputs, rf"^what is written: inputs must not be changed at .*: {BOTH}"),
    "needs out": (NeedsOut, r"^what is written: needs_out .*downward: TypeError"),
    "mixes examples": (MixesExamples, r"^examples: out with other examples of the batch at .*found nan$"),
}  # fmt: skip
NATIVE = {
    "native that differs": (
        NativeDiffers,
        rf"^native calls: out by native calls \(whole\) differs .* at \[0, .*\]: {BOTH}",
    ),
    "native in one direction": (
        OneWayDiffers,
        rf"^native calls: out by native calls \(whole\) differs .* at \[0, .*\]: {BOTH}",
    ),
    "native of another type": (NativeOfAnotherType, r"^native calls: relu: expected .*; found float32 \[3, 7, 6, 2\]"),
}


TEN = (
    "wrong halo", "missing term in the gradient", "undeclared neighbour", "shared buffer", "wrong shape", "wrong type",
    "state kept between batches", "not deterministic", "parameter order", "native that differs",
)  # fmt: skip


@pytest.mark.parametrize("name", TEN)
def test_each_of_the_ten_errors_is_said_with_the_layer_the_index_and_both_values(name: str) -> None:
    """The bar: wrong halo, a missing term, and eight more, by `adam.check_layer` and by the command."""
    layer, pattern = {**PLANTED, **NATIVE}[name]
    if name == "native that differs" and not can_compile_kernels:
        pytest.skip("native calls are compiled")
    path = f"{layer.__module__}:{layer.__qualname__}"
    kept.clear()
    with pytest.raises(CustomError) as raised:
        adam.check_layer(layer(), input_shape=IMAGE)
    kept.clear()
    command = CliRunner().invoke(application, ["layer", "check", path, "--input", "7,6,2"])
    assert command.exit_code == 4
    for told in (str(raised.value), command.stdout):
        assert told.startswith(path) and re.search(pattern, told, re.MULTILINE), told


def expect(layer: Callable[[], adam.Layer], pattern: str) -> None:
    kept.clear()
    last.clear()
    found = [str(one) for one in findings(layer(), IMAGE)]
    assert any(re.search(pattern, text) for text in found), found


@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_error_is_found_with_its_place_and_both_values(case: tuple[type[adam.Layer], str]) -> None:
    expect(*case)


@pytest.mark.skipif(not can_compile_kernels, reason="native calls are compiled")
@pytest.mark.parametrize("case", NATIVE.values(), ids=NATIVE.keys())
def test_a_planted_error_in_native_calls_is_found(case: tuple[type[adam.Layer], str]) -> None:
    expect(*case)


def test_an_error_is_raised_with_all_that_was_found() -> None:
    with pytest.raises(CustomError, match=r"(?s)ParameterOrder breaks a promise:\ngradients: .*\ngradients: "):
        check_layer(ParameterOrder(), IMAGE)


def test_shapes_that_do_not_fit_are_said_first() -> None:
    with pytest.raises(ConfigurationError, match=r"^too_large \(tests.*TooLarge\): .*7 x 6 windows; found outputs"):

        class TooLarge(Neighbours):
            def output_shape(self, input):
                return (input[0] + 1, *input[1:])

        check_layer(TooLarge(), IMAGE)
