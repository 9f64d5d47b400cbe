"""A fully connected layer (Adam 2.1): outputs = f(inputs W^T + b).

Weight [units, inputs], bias [units]. An image before it is flattened row by row. Its weight gradient is the product
E^T A of the errors [n, units] and the activations [n, inputs]; Adam 3.2.6 sends these factors instead of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from adamctl.kernels.layers.activations import BiasActivation
from adamctl.kernels.native import Call, joined, product
from adamctl.kernels.operation import (
    Array,
    Backward,
    Buffers,
    Factors,
    Forward,
    Key,
    Operation,
    SlicedOperation,
    empty_buffers,
)
from adamctl.kernels.slicing import OutputSlice, check_slice
from adamctl.model.description import Activation


class Dense(Operation):
    """Inputs [n, *input_shape], outputs [n, units]."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        units: int,
        activation: Activation | None = None,
        backend: str | None = None,
    ) -> None:
        self.features = prod(input_shape)
        super().__init__(input_shape, (units,), [(units, self.features), (units,)])
        self.activation = BiasActivation(activation, backend)

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        return empty_buffers(self, batch_max, needs_input_error, dtype)

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        outputs = self.product(inputs, weights, buffers)
        self.activation.forward(outputs, weights[1])
        return outputs

    def product(self, inputs: Array, weights: Sequence[Array], buffers: Buffers) -> Array:
        """Writes inputs W^T, without bias and activation, into the output buffer; returns it."""
        self._check("inputs", inputs, self.input_shape)
        rows = inputs.shape[0]
        outputs = buffers.output[:rows]
        np.matmul(inputs.reshape(rows, self.features), weights[0].T, out=outputs)
        return outputs

    def backward(
        self,
        output_error: Array,
        inputs: Array,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool = True,
    ) -> Array | None:
        """d = f'(outputs) * output_error (in place); gradients d^T A and sum(d); input error d W."""
        self._check("output error", output_error, self.output_shape)
        rows = inputs.shape[0]
        self.activation.backward(buffers.output[:rows], output_error, gradients[1])
        buffers.scratch["errors"] = output_error
        if gradients[0] is not None:
            np.matmul(output_error.T, inputs.reshape(rows, self.features), out=gradients[0])
        if not needs_input_error:
            return None
        error = buffers.input_error[:rows]
        np.matmul(output_error, weights[0], out=error.reshape(rows, self.features))
        return error

    def bind_forward(self, batch: int, weights: Sequence[Array], buffers: Buffers, key: Key) -> Forward:
        product, outputs = self._bind_product(batch, weights, buffers), buffers.output[:batch]
        activate = self.activation.bind_forward(outputs, weights[1])

        def forward(inputs: Array) -> Array:
            product(inputs)
            activate()
            return outputs

        return forward

    def _bind_product(self, batch: int, weights: Sequence[Array], buffers: Buffers) -> Callable[[Array], object]:
        matmul, outputs, transposed = np.matmul, buffers.output[:batch], weights[0].T
        shape = (batch, self.features)
        if len(self.input_shape) == 1:
            return lambda inputs: matmul(inputs, transposed, outputs)
        return lambda inputs: matmul(inputs.reshape(shape), transposed, outputs)

    def bind_backward(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool,
    ) -> Backward:
        matmul, scratch, weight, gradient, shape = (
            np.matmul, buffers.scratch, weights[0], gradients[0], (batch, self.features),
        )  # fmt: skip
        before_activation = self.activation.bind_backward(buffers.output[:batch], gradients[1])
        input_error = buffers.input_error[:batch] if needs_input_error else None
        flat_error = input_error.reshape(shape) if input_error is not None else None

        def backward(output_error: Array, inputs: Array) -> Array | None:
            before_activation(output_error)
            scratch["errors"] = output_error
            if gradient is not None:
                matmul(output_error.T, inputs.reshape(shape), gradient)
            if flat_error is not None:
                matmul(output_error, weight, flat_error)
            return input_error

        return backward

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        outputs = buffers.output[:batch]
        return joined(
            product(inputs.reshape(batch, self.features), weights[0].T, outputs),
            self.activation.native_forward(outputs, weights[1]),
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
        shape = (batch, self.features)
        calls = self.activation.native_backward(buffers.output[:batch], output_error, gradients[1])
        if gradients[0] is not None:
            calls = joined(calls, product(output_error.T, inputs.reshape(shape), gradients[0]))
        if needs_input_error:
            calls = joined(calls, product(output_error, weights[0], buffers.input_error[:batch].reshape(shape)))
        return calls

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts by units, into dense layers that read all inputs and hold their units' rows of weight and bias."""
        check_slice(part, self.output_shape, ("units",), type(self).__name__)
        units, inputs = slice(part.start, part.stop), (slice(None),) * len(self.input_shape)
        activation = self.activation.activation
        operation = Dense(self.input_shape, part.stop - part.start, activation, self.activation.backend)
        return SlicedOperation(operation, inputs, (units,), ((units, slice(None)), (units,)))

    def factors(self, buffers: Buffers, inputs: Array) -> Factors:
        errors: Array = buffers.scratch["errors"]  # type: ignore[assignment]
        return Factors(errors, inputs.reshape(inputs.shape[0], self.features))
