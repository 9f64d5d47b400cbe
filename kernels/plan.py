"""One training step laid out for a batch size and a place of the weights: what every step shares is decided once.

A step of a small network is some twenty calls of compiled kernels and products, which release the interpreter lock,
and the Python between them, which holds it and so keeps other threads from going on. The plan keeps that part small:
views, arguments and the order of the calls are ready before training (Adam 3.2.1), and a step only makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from adamctl.kernels.losses import Labels
from adamctl.kernels.operation import Array, Backward, Forward

Position: TypeAlias = int
"""Of a layer among the network's operations."""


class StepPlan(NamedTuple):
    """The calls of a step.

    Attributes:
        weights: what the plan was made for, the flat vector or its views; the plan keeps it alive.
        skip_dense_gradients: whether weight gradients of dense layers are left out.
        forwards: one call per layer: inputs to outputs.
        loss: outputs and labels to (summed loss, correct); its derivative goes into `loss_error`.
        loss_error: error at the outputs, [n, units].
        backwards: (position, call) of the layers that take part, last first: the error at the layer's outputs and its
            inputs to the error at its inputs.
    """

    weights: object
    skip_dense_gradients: bool
    forwards: tuple[Forward, ...]
    loss: Callable[[Array, Labels], tuple[float, int]]
    loss_error: Array
    backwards: tuple[tuple[Position, Backward], ...]

    def fits(self, weights: object, skip_dense_gradients: bool) -> bool:
        return self.weights is weights and self.skip_dense_gradients is skip_dense_gradients

    def run(self, images: Array, labels: Labels, inputs: list[Array]) -> tuple[float, int]:
        """Makes the calls; `inputs`, empty, takes what goes into each layer, and the outputs.

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
