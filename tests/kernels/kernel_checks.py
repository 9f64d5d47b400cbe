"""What every operation is checked for: numerical gradients, agreement of implementations and of slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from adamctl.kernels.backend import installed
from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.numeric.mix import set_key, step_key
from adamctl.kernels.operation import Array, Buffers, Operation
from adamctl.kernels.slicing import OutputSlice, region_shape
from adamctl.kernels.step.network import Network, StepResult

BACKENDS = installed()
BATCH_MAX = 5
Build = Callable[[str], Operation]


def key_of(number: int) -> np.ndarray:
    """The key of a step."""
    key = np.zeros(2, np.uint32)
    set_key(key, step_key(number, 0, 0))
    return key


@dataclass
class Run:
    """One forward and backward of an operation, and what it was given."""

    inputs: np.ndarray
    weights: list[np.ndarray]
    error: np.ndarray
    outputs: np.ndarray
    gradients: list[np.ndarray]
    input_error: np.ndarray
    buffers: Buffers


def run(operation: Operation, batch: int, seed: int, dtype=np.float32, poison: bool = False, training=True) -> Run:
    """Runs forward and backward on random numbers; `poison` puts one NaN into the inputs."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((batch, *operation.input_shape)).astype(dtype)
    if poison:
        inputs.flat[inputs.size // 2] = np.nan
    weights = [generator.standard_normal(shape).astype(dtype) * 0.5 for shape in operation.parameters]
    error = generator.standard_normal((batch, *operation.output_shape)).astype(dtype)
    buffers = operation.allocate(BATCH_MAX, True, dtype)
    outputs = operation.forward(inputs, weights, buffers, training, key_of(seed)).copy()
    gradients = [np.full(shape, 7, dtype) for shape in operation.parameters]
    input_error = operation.backward(error.copy(), inputs, weights, gradients, buffers, True)
    return Run(inputs, weights, error, outputs, gradients, input_error.copy(), buffers)


def check_gradients(build: Build, batch: int = 2, seed: int = 3, tolerance: float = 1e-6) -> None:
    """Compares backward with central differences of the numpy reference in float64: relative error < tolerance.

    The loss is sum(outputs * error); the key is the same, so dropout makes the same mask.
    """
    operation = build("numpy")
    given = run(operation, batch, seed, np.float64)
    buffers = operation.allocate(BATCH_MAX, True, np.float64)

    def loss() -> float:
        outputs = operation.forward(given.inputs, given.weights, buffers, True, key_of(seed))
        return float((outputs * given.error).sum())

    for array, analytic in zip([given.inputs, *given.weights], [given.input_error, *given.gradients], strict=True):
        numerical = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            kept, step = array[place], 1e-6
            array[place] = kept + step
            above = loss()
            array[place] = kept - step
            numerical[place] = (above - loss()) / (2 * step)
            array[place] = kept
        scale = max(np.abs(numerical).max(), 1.0)
        np.testing.assert_allclose(analytic, numerical, atol=tolerance * scale * 10, rtol=0)


def check_step_gradient(
    network: Network, flat: Array, images: Array, answers: Answers, every: int, tolerance: float
) -> StepResult:
    """Makes a step, and compares one in `every` elements of its gradient with central differences of `evaluate`."""
    context = network.context()
    made = network.step(context, flat, images, answers)
    for place in range(0, network.flat_size, every):
        values = []
        for step in (1e-2, -1e-2):
            moved = flat.copy()
            moved[place] += np.float32(step)
            values.append(network.evaluate(context, moved, images, answers)[0] / len(images))
        assert context.gradient[place] == pytest.approx((values[0] - values[1]) / 2e-2, abs=tolerance)
    return made


def check_implementations(build: Build, batch: int, tolerance: float = 2e-5) -> None:
    """Runs every installed implementation on the same numbers: differences < tolerance of the largest value."""
    reference = run(build("numpy"), batch, seed=4)
    for backend in BACKENDS[1:]:
        other = run(build(backend), batch, seed=4)
        compare_runs(reference, other, tolerance)


def compare_runs(reference: Run, other: Run, tolerance: float = 2e-5) -> None:
    pairs = [(reference.outputs, other.outputs), (reference.input_error, other.input_error)]
    pairs += zip(reference.gradients, other.gradients, strict=True)
    for expected, found in pairs:
        scale = max(np.abs(expected).max(initial=0), 1.0)
        np.testing.assert_allclose(found, expected, atol=tolerance * scale, rtol=0)


def check_slices(
    build: Build,
    parts: Sequence[OutputSlice],
    batch: int = 3,
    tolerance: float = 2e-5,
    finish: Callable[[np.ndarray], np.ndarray] | None = None,
) -> None:
    """Checks that slices which cover an operation's outputs compute, together, what the operation does.

    Outputs side by side, every one made once; input errors added over the regions; gradients added over the parts of
    the parameters (a sum where parts share one). Every installed implementation is held to the whole operation of the
    same implementation. `finish` turns the outputs side by side into the whole's, where the layer needs all of them.
    """
    for backend in BACKENDS:
        whole = build(backend)
        given = run(whole, batch, seed=6)
        outputs, input_error = np.zeros_like(given.outputs), np.zeros_like(given.input_error)
        made = np.zeros(whole.output_shape, int)
        gradients = [np.zeros_like(gradient) for gradient in given.gradients]
        for part in parts:
            sliced = whole.slice(part)
            piece, every = sliced.operation, (slice(None),)
            assert piece.input_shape == region_shape(whole.input_shape, sliced.inputs)
            assert piece.output_shape == region_shape(whole.output_shape, sliced.outputs)
            shapes = zip(whole.parameters, sliced.parameters, strict=True)
            assert piece.parameters == tuple(region_shape(shape, region) for shape, region in shapes)
            inputs = np.ascontiguousarray(given.inputs[every + sliced.inputs])
            regions = zip(given.weights, sliced.parameters, strict=True)
            weights = [np.ascontiguousarray(weight[region]) for weight, region in regions]
            error = given.error[every + sliced.outputs].copy()
            own = [np.full(shape, 7, np.float32) for shape in piece.parameters]
            buffers = piece.allocate(BATCH_MAX)
            made[sliced.outputs] += 1
            outputs[every + sliced.outputs] = piece.forward(inputs, weights, buffers, True, key_of(6))
            input_error[every + sliced.inputs] += piece.backward(error, inputs, weights, own, buffers)
            for total, region, gradient in zip(gradients, sliced.parameters, own, strict=True):
                total[region] += gradient
        assert (made == 1).all(), "the parts must cover the outputs, none of them twice"
        together = Run(
            given.inputs, given.weights, given.error, finish(outputs) if finish else outputs, gradients, input_error,
            given.buffers,
        )  # fmt: skip
        compare_runs(given, together, tolerance)
