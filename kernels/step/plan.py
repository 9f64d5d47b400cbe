"""A training step planned for a batch size and a memory location of the weights: work shared by all steps is done once.

A step of a small network is about twenty calls of compiled kernels and products, which release the interpreter lock,
and Python code between them, which holds it and thus stops other threads. The plan keeps that part small: views,
arguments and the order of the calls are prepared before training (Adam 3.2.1), and a step only makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.layers.dropout import Dropout
from adamctl.kernels.layers.losses import Answers, Loss
from adamctl.kernels.native import Call, NativeSteps, Result, can_compile
from adamctl.kernels.native_function import compile_calls
from adamctl.kernels.operation import Array, Backward, Buffers, Forward, Key, Operation

Position: TypeAlias = int
"""The position of a layer among the network's operations."""

Piece: TypeAlias = Callable[[Array], object]
"""Part of a step, as a function of the images."""


class BoundLayer(NamedTuple):
    """A layer and the arrays that its steps work on.

    Attributes:
        weights, gradients: its own tensors; a gradient is None if not needed.
        key: the thread's memory for the key of the present step.
        takes_part: whether backward passes through it at all.
    """

    operation: Operation
    weights: Sequence[Array]
    gradients: Sequence[Array | None]
    buffers: Buffers
    key: Key
    takes_part: bool
    needs_input_error: bool
    is_dense: bool

    def forward(self, batch: int) -> Forward:
        return self.operation.bind_forward(batch, self.weights, self.buffers, self.key)

    def prediction(self) -> Forward:
        """Returns the layer's way forward outside training."""
        operation, weights, buffers, key = self.operation, self.weights, self.buffers, self.key
        return lambda inputs: operation.forward(inputs, weights, buffers, False, key)

    def backward(self, batch: int) -> Backward:
        return self.operation.bind_backward(batch, self.weights, self.gradients, self.buffers, self.needs_input_error)


class StepPlan(NamedTuple):
    """The calls of a step.

    Attributes:
        weights: the weights that the plan was made for, the flat vector or its views; the plan keeps them alive.
        skip_dense_gradients: whether weight gradients of dense layers are left out.
        forwards: one call per layer: inputs -> outputs.
        loss: outputs and labels -> (summed loss, correct); its derivative goes into `loss_error`.
        loss_error: error at the outputs, [n, units].
        backwards: (position, call) of the layers that take part, last first: the error at the layer's outputs and its
            inputs -> the error at its inputs.
    """

    weights: object
    skip_dense_gradients: bool
    forwards: tuple[Forward, ...]
    loss: Callable[[Array, Answers], tuple[float, int]]
    loss_error: Array
    backwards: tuple[tuple[Position, Backward], ...]

    @property
    def makes_after(self) -> bool:
        """Whether a step also makes the calls that belong after it."""
        return False

    def fits(self, weights: object, skip_dense_gradients: bool) -> bool:
        return self.weights is weights and self.skip_dense_gradients is skip_dense_gradients

    def run(self, images: Array, labels: Answers, inputs: list[Array]) -> tuple[float, int]:
        """Makes the calls; appends each layer's inputs, and the outputs, to the empty list `inputs`.

        Returns the summed loss and how many were classified correctly.
        """
        values = images
        inputs.append(values)
        for forward in self.forwards:
            values = forward(values)
            inputs.append(values)
        error = self.loss_error
        measured = self.loss(values, labels)
        for position, backward in self.backwards:
            error = backward(error, inputs[position])  # type: ignore[assignment]  # None only after the last
        return measured


class NativePlan:
    """As `StepPlan`, but native functions make all calls that layers can express as kernels and products.

    Between these functions Python holds the interpreter lock; a network of only such calls is one function (see
    `adamctl.kernels.native`), as all built-in layers are.

    Attributes:
        is_whole: whether a step is one native function.
    """

    def __init__(
        self,
        weights: object,
        skip_dense_gradients: bool,
        pieces: Sequence[list[Call] | Piece],
        values: Sequence[Array],
        step: StepOutputs,
        makes_after: bool = False,
    ) -> None:
        """Args:
        pieces: the parts of a step, in order: calls, or a function of the images.
        values: the images' stand-in, which the calls name, the inputs of each later layer, and the outputs.
        step: where the loss, its error, and the errors of dense layers go.
        """
        self.weights, self.skip_dense_gradients, self.makes_after = weights, skip_dense_gradients, makes_after
        self._values, self._step = tuple(values[1:]), step
        self._losses = step.result.view(np.float64)
        self.is_whole = all(isinstance(piece, list) for piece in pieces)
        self._pieces = _compiled(pieces, values[0])

    def fits(self, weights: object, skip_dense_gradients: bool) -> bool:
        return self.weights is weights and self.skip_dense_gradients is skip_dense_gradients

    def run(self, images: Array, labels: Answers, inputs: list[Array]) -> tuple[float, int]:
        """As `StepPlan.run`."""
        inputs.append(images)
        inputs += self._values
        step = self._step
        if labels.shape != step.labels.shape or labels.dtype.char not in step.loss.answer_types:
            step.loss.backward(self._values[-1], labels, step.error)  # raises with the reason
        step.labels[...] = labels
        for scratch, error in step.kept_errors:
            scratch["errors"] = error
        for piece in self._pieces:
            piece(images)
        correct = int(step.result[1])
        if correct < 0:
            step.loss.backward(self._values[-1], labels, step.error)
        return float(self._losses[0]), correct


class NativeForward:
    """Predictions of whole batches, of native functions as far as layers can express their way forward as such.

    Attributes:
        weights: what it was made for, the flat vector of parameters or its views; it keeps them alive.
        is_whole: whether it is one native function, which holds no interpreter lock.
    """

    def __init__(self, weights: object, pieces: Sequence[list[Call] | Piece], images: Array, outputs: Array) -> None:
        """`images`: their stand-in, which the calls name; `outputs`: those of the last layer."""
        self.weights, self._outputs = weights, outputs
        self.is_whole = all(isinstance(piece, list) for piece in pieces)
        self._pieces = _compiled(pieces, images)

    def run(self, images: Array) -> Array:
        """Returns the outputs, which the next use of the same buffers changes."""
        for piece in self._pieces:
            piece(images)
        return self._outputs


class StepOutputs(NamedTuple):
    """What a step writes besides the layers' buffers.

    Attributes:
        labels: the step's labels, [n], or targets [n, k].
        result: two words: float64 sum of losses, number of correct examples.
        error: error at the outputs, [n, units].
        kept_errors: scratch of dense layers, and the errors that they keep there as factors.
    """

    loss: Loss
    labels: Answers
    result: NDArray[np.int64]
    error: Array
    kept_errors: list[tuple[dict[str, NDArray[np.generic]], Array]]


def step_plan(
    weights: object, skip_dense_gradients: bool, layers: Sequence[BoundLayer], loss: Loss, error: Array
) -> StepPlan:
    """Returns the plan for batches of `len(error)` examples; `error` [n, units] takes the loss's derivative."""
    batch = len(error)
    backwards = [(position, layer.backward(batch)) for position, layer in enumerate(layers) if layer.takes_part]
    return StepPlan(
        weights,
        skip_dense_gradients,
        tuple(layer.forward(batch) for layer in layers),
        loss.bind_backward(batch, error),
        error,
        tuple(reversed(backwards)),
    )


def native_plan(
    weights: object,
    skip_dense_gradients: bool,
    layers: Sequence[BoundLayer],
    loss: Loss,
    error: Array,
    images_shape: tuple[int, ...],
    after: Sequence[Call] = (),
) -> NativePlan | None:
    """As `step_plan`, with calls `after` the step; None if nothing can be native."""
    if not can_compile() or not len(error):
        return None
    values = [np.zeros(images_shape, np.float32)]
    step = StepOutputs(loss, loss.answers_of(len(error), error.shape[1], np.int64), np.zeros(2, np.int64), error, [])
    pieces = step_pieces(layers, values, step, step.result)
    if not any(isinstance(piece, list) for piece in pieces):
        return None
    if after:
        pieces.append(list(after))
    return NativePlan(weights, skip_dense_gradients, pieces, values, step, bool(after))


def native_forward(
    weights: object, layers: Sequence[BoundLayer], images_shape: tuple[int, ...]
) -> NativeForward | None:
    """Returns how whole batches of this shape are predicted; None if nothing can be native."""
    if not can_compile() or not images_shape[0]:
        return None
    batch, pieces, values = images_shape[0], list[list[Call] | Piece](), [np.zeros(images_shape, np.float32)]
    for layer in layers:
        if isinstance(layer.operation, Dropout):  # outside training it passes on what it gets
            continue
        calls = layer.operation.native_forward(batch, layer.weights, layer.buffers, values[-1], layer.key)
        pieces.append(calls if calls is not None else _forward_piece(layer.prediction(), values))
        values.append(layer.buffers.output[:batch])
    if not any(isinstance(piece, list) for piece in pieces):
        return None
    return NativeForward(weights, pieces, values[0], values[-1])


def step_pieces(
    layers: Sequence[BoundLayer], values: list[Array], step: StepOutputs, result: Result
) -> list[list[Call] | Piece]:
    """Returns the parts of a step, in order: calls where it can be native, else functions of the images.

    Args:
        values: the images' stand-in; takes the inputs of each later layer, and the outputs.
        result: two words that take the loss and the number of correct examples.
    """
    batch, error, pieces = len(step.error), step.error, list[list[Call] | Piece]()
    for layer in layers:
        calls = layer.operation.native_forward(batch, layer.weights, layer.buffers, values[-1], layer.key)
        pieces.append(calls if calls is not None else _forward_piece(layer.forward(batch), values))
        values.append(layer.buffers.output[:batch])
    calls = step.loss.native_backward(values[-1], step.labels, error, result)
    pieces.append(calls if calls is not None else _loss_piece(step, values[-1]))
    for position in reversed(range(len(layers))):
        layer = layers[position]
        if not layer.takes_part:
            continue
        calls = layer.operation.native_backward(
            batch, layer.weights, layer.gradients, layer.buffers, error, values[position], layer.needs_input_error
        )
        pieces.append(calls if calls is not None else _backward_piece(layer.backward(batch), error, values, position))
        if layer.is_dense:
            step.kept_errors.append((layer.buffers.scratch, error))
        error = layer.buffers.input_error[:batch]
    return pieces


def _compiled(pieces: Sequence[list[Call] | Piece], images: Array) -> list[Piece]:
    """Returns pieces as functions of the images; calls that follow each other are one native function."""
    made: list[Piece] = []
    for native, group in groupby(pieces, key=lambda piece: isinstance(piece, list)):
        if native:
            calls = [call for piece in group if isinstance(piece, list) for call in piece]
            made.append(_native_piece(compile_calls(calls, {0: images})))
        else:
            made += [piece for piece in group if not isinstance(piece, list)]
    return made


def _forward_piece(forward: Forward, values: Sequence[Array]) -> Piece:
    if len(values) == 1:
        return forward
    inputs = values[-1]
    return lambda images: forward(inputs)


def _loss_piece(step: StepOutputs, outputs: Array) -> Piece:
    def piece(images: Array) -> None:
        loss_sum, step.result[1] = step.loss.backward(outputs, step.labels, step.error)
        step.result.view(np.float64)[0] = loss_sum

    return piece


def _backward_piece(backward: Backward, error: Array, values: Sequence[Array], position: Position) -> Piece:
    if not position:
        return lambda images: backward(error, images)
    inputs = values[position]
    return lambda images: backward(error, inputs)


def _native_piece(steps: NativeSteps) -> Piece:
    row = np.zeros(1, np.int64)
    place = row.__array_interface__["data"][0]

    def piece(images: Array) -> None:
        row[0] = images.__array_interface__["data"][0]
        status = steps(place, 1)
        if status:
            raise RuntimeError(f"a compiled kernel failed with status {status}")

    return piece
