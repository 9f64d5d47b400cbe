"""The last layer of a classifier: a dense layer whose outputs are normalised (Adam 2.1).

z = A W^T + b, p_i = exp(z_i - max z) / sum_j exp(z_j - max z). The true derivative is
d loss / d z_i = p_i (e_i - sum_j e_j p_j) for an error e at the outputs. Together with the cross entropy it
becomes (p - onehot) / n, which `losses.CrossEntropy` writes directly: then `error_at_logits` is set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.layers.dense import Dense
from adamctl.kernels.native import Call, NativeCall, joined, product
from adamctl.kernels.operation import Array, Backward, Buffers, Forward, Key, Operation, SlicedOperation
from adamctl.kernels.slicing import OutputSlice


class Softmax(Dense):
    """Inputs [n, *input_shape], outputs [n, units]: probabilities that sum to 1."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        units: int,
        error_at_logits: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__(input_shape, units, None, backend)
        self.error_at_logits = error_at_logits
        self._compiled = compiled_if(self.activation.backend, "losses")

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = super().allocate(batch_max, needs_input_error, dtype)
        buffers.scratch["row"] = np.zeros((batch_max, 1), dtype)
        return buffers

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        outputs = self.product(inputs, weights, buffers)
        if self._compiled is not None:
            self._compiled.bias_softmax(outputs, weights[1])
        else:
            outputs += weights[1]
            softmax(outputs, buffers.scratch["row"][: len(outputs)])  # type: ignore[arg-type]
        return outputs

    def bind_forward(self, batch: int, weights: Sequence[Array], buffers: Buffers, key: Key) -> Forward:
        if self._compiled is None:
            return Operation.bind_forward(self, batch, weights, buffers, key)
        product, outputs, bias = self._bind_product(batch, weights, buffers), buffers.output[:batch], weights[1]
        normalise = self._compiled.bias_softmax

        def forward(inputs: Array) -> Array:
            product(inputs)
            normalise(outputs, bias)
            return outputs

        return forward

    def bind_backward(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool,
    ) -> Backward:
        bind = Dense.bind_backward if self.error_at_logits else Operation.bind_backward
        return bind(self, batch, weights, gradients, buffers, needs_input_error)

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        outputs = buffers.output[:batch]
        return joined(
            product(inputs.reshape(batch, self.features), weights[0].T, outputs),
            [NativeCall(self._compiled.bias_softmax, (outputs, weights[1]))],
        )

    def native_backward(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        output_error: Array,
        inputs: Array,
        needs_input_error: bool,
    ) -> list[Call] | None:
        after = super().native_backward(batch, weights, gradients, buffers, output_error, inputs, needs_input_error)
        if self.error_at_logits or self._compiled is None:
            return after
        return joined([NativeCall(self._compiled.softmax_error, (buffers.output[:batch], output_error))], after)

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts by units: a plain dense layer that computes their logits.

        A probability needs the logits of all units, so the caller that holds all of them, side by side, finishes
        with `softmax`; each slice takes its part of the error at the logits (`softmax_error` if the loss does not
        give it).
        """
        return super().slice(part)

    def backward(
        self,
        output_error: Array,
        inputs: Array,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool = True,
    ) -> Array | None:
        """As a dense layer's, after the step through the normalisation unless `error_at_logits` is set."""
        if not self.error_at_logits:
            self._check("output error", output_error, self.output_shape)
            normalised = softmax_error if self._compiled is None else self._compiled.softmax_error
            normalised(buffers.output[: len(output_error)], output_error)
        return super().backward(output_error, inputs, weights, gradients, buffers, needs_input_error)


def softmax(values: Array, row: Array) -> None:
    """Normalises each row of [n, units] in place; `row` [n, 1] is scratch. The largest value is subtracted first."""
    np.max(values, axis=1, keepdims=True, out=row)
    values -= row
    np.exp(values, out=values)
    np.sum(values, axis=1, keepdims=True, out=row)
    values /= row


def softmax_error(probabilities: Array, error: Array) -> None:
    """Turns the error at the probabilities into the error at the logits, in place; both [n, units]."""
    error -= np.einsum("ij,ij->i", error, probabilities)[:, None]
    error *= probabilities
