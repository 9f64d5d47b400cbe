"""Bias and activation of a layer in one operation, forward in place and backward from the outputs alone.

relu(x) = max(x, 0); tanh(x); sigmoid(x) = 1 / (1 + exp(-x)). Their derivatives need only the output a: [a >
0], 1 - a^2 and a (1 - a), so the inputs are not kept (Adam 3.2.1 reuses their memory).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from adamctl.kernels.array import Array
from adamctl.kernels.backend import Backend, choose, compiled_if
from adamctl.kernels.native import Call, NativeCall
from adamctl.model.description import Activation

CODES = {None: 0, "relu": 1, "tanh": 2, "sigmoid": 3}


class BiasActivation:
    """outputs = f(outputs + bias), and its backward; arrays are [rows, units], C-contiguous, bias [units].

    NaN stays NaN in both directions. A relu passes no error where its output is 0.
    """

    def __init__(self, activation: Activation | None, backend: str | None = None) -> None:
        self.activation = activation
        self.backend: Backend = choose(backend)
        self._code = CODES[activation]
        self._compiled = compiled_if(self.backend, "elementwise")

    def forward(self, outputs: Array, bias: Array) -> None:
        """Adds the bias to each row and applies the activation, in place."""
        if self._compiled is not None:
            self._compiled.add_bias(outputs, bias, self._code)
        elif self.backend == "numexpr":
            _forward_numexpr(self.activation, outputs, bias)
        else:
            outputs += bias
            activate(self.activation, outputs)

    def bind_forward(self, outputs: Array, bias: Array) -> Callable[[], None]:
        """Returns `forward` bound to these arrays."""
        if self._compiled is not None:
            return partial(self._compiled.add_bias, outputs, bias, self._code)
        return partial(self.forward, outputs, bias)

    def bind_backward(self, outputs: Array, bias_gradient: Array | None) -> Callable[[Array], None]:
        """Returns `backward` as a function of the error."""
        if self._compiled is not None and bias_gradient is not None:
            compiled, code = self._compiled.activation_error_and_sum, self._code
            return lambda error: compiled(outputs, error, code, bias_gradient)
        return lambda error: self.backward(outputs, error, bias_gradient)

    def native_forward(self, outputs: Array, bias: Array) -> list[Call] | None:
        """Returns `forward` of these arrays as a native call."""
        if self._compiled is None:
            return None
        return [NativeCall(self._compiled.add_bias, (outputs, bias, self._code))]

    def native_backward(self, outputs: Array, error: Array, bias_gradient: Array | None) -> list[Call] | None:
        """Returns `backward` of these arrays as a native call."""
        if self._compiled is None or bias_gradient is None:
            return None
        return [NativeCall(self._compiled.activation_error_and_sum, (outputs, error, self._code, bias_gradient))]

    def backward(self, outputs: Array, error: Array, bias_gradient: Array | None) -> None:
        """Turns the error at the outputs into that before the activation, in place; sums it into the bias gradient."""
        if self._compiled is not None:
            if bias_gradient is None:
                self._compiled.activation_error(outputs, error, self._code)
            else:
                self._compiled.activation_error_and_sum(outputs, error, self._code, bias_gradient)
            return
        if self.backend == "numexpr":
            _backward_numexpr(self.activation, outputs, error)
        else:
            scale_error(self.activation, outputs, error)
        if bias_gradient is not None:
            np.sum(error, axis=0, out=bias_gradient)


def activate(activation: Activation | None, outputs: Array) -> None:
    """Applies an activation in place: the numpy reference."""
    if activation == "relu":
        np.maximum(outputs, 0, out=outputs)
    elif activation == "tanh":
        np.tanh(outputs, out=outputs)
    elif activation == "sigmoid":
        # (1 + tanh(x / 2)) / 2 is the same function and cannot overflow.
        outputs *= 0.5
        np.tanh(outputs, out=outputs)
        outputs += 1
        outputs *= 0.5


def scale_error(activation: Activation | None, outputs: Array, error: Array) -> None:
    """Multiplies the error by the activation's derivative, in place: the numpy reference."""
    if activation == "relu":
        error[outputs <= 0] = 0
    elif activation == "tanh":
        error *= 1 - outputs * outputs
    elif activation == "sigmoid":
        error *= outputs * (1 - outputs)


_FORWARD = {
    None: "outputs + bias",
    "relu": "where(outputs + bias < zero, zero, outputs + bias)",
    "tanh": "tanh(outputs + bias)",
    "sigmoid": "half * (one + tanh(half * (outputs + bias)))",
}
_BACKWARD = {
    "relu": "where(outputs <= zero, zero, error)",
    "tanh": "error * (one - outputs * outputs)",
    "sigmoid": "error * outputs * (one - outputs)",
}
_CONSTANTS = {"zero": np.float32(0), "half": np.float32(0.5), "one": np.float32(1)}


def _forward_numexpr(activation: Activation | None, outputs: Array, bias: Array) -> None:
    import numexpr

    if outputs.size:
        arguments = {"outputs": outputs, "bias": bias, **_CONSTANTS}
        numexpr.evaluate(_FORWARD[activation], local_dict=arguments, global_dict={}, out=outputs)


def _backward_numexpr(activation: Activation | None, outputs: Array, error: Array) -> None:
    import numexpr

    if activation is not None and error.size:
        arguments = {"outputs": outputs, "error": error, **_CONSTANTS}
        numexpr.evaluate(_BACKWARD[activation], local_dict=arguments, global_dict={}, out=error)
