"""Runs of a layer of the user's own on given numbers, in arrays that held nothing before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.layers.custom import PLACED, Custom
from adamctl.kernels.native import Call, address_of
from adamctl.kernels.native_function import compile_calls
from adamctl.kernels.operation import Buffers
from adamctl.model.custom.resolved import Resolved

Floats: TypeAlias = NDArray[np.floating[Any]]
Region: TypeAlias = tuple[slice, ...]
KEY = np.zeros(2, np.uint32)


@dataclass(frozen=True)
class Given:
    """Numbers for a run: inputs and errors [n, ...], and one array for each parameter."""

    inputs: Floats
    parameters: tuple[Floats, ...]
    error: Floats

    def of(self, inputs: Region, outputs: Region, parameters: Sequence[Region]) -> Given:
        """Returns the numbers of a part."""
        held = tuple(
            np.ascontiguousarray(array[region]) for array, region in zip(self.parameters, parameters, strict=True)
        )
        read, made = self.inputs[(slice(None), *inputs)], self.error[(slice(None), *outputs)]
        return Given(np.ascontiguousarray(read), held, np.ascontiguousarray(made))

    def as_type(self, dtype: type[np.floating]) -> Given:
        """Returns copies of another type."""
        held = tuple(array.astype(dtype) for array in self.parameters)
        return Given(self.inputs.astype(dtype), held, self.error.astype(dtype))


@dataclass(frozen=True)
class Made:
    """What a run has made: outputs, the error at the inputs if it was wanted, and gradients."""

    outputs: Floats
    input_error: Floats | None
    gradients: tuple[Floats, ...]

    def arrays(self, names: Sequence[str]) -> list[tuple[str, Floats]]:
        """Returns (what it is, array), of all that was made."""
        error = [] if self.input_error is None else [("error at inputs", self.input_error)]
        gradients = [(f"gradient of {name}", array) for name, array in zip(names, self.gradients, strict=True)]
        return [("out", self.outputs), *error, *gradients]


class Thread:
    """The buffers of one thread: an operation, and what its runs write, in one type of numbers."""

    def __init__(self, operation: Custom, batch_max: int, dtype: type[np.floating], wants_error: bool = True) -> None:
        self.operation, self.wants_error = operation, wants_error
        self.buffers: Buffers = operation.allocate(batch_max, wants_error, dtype)
        self.gradients = [np.zeros(shape, dtype) for shape in operation.parameters]

    def upward(self, given: Given, by: str = "numpy") -> Floats:
        """Computes and returns a copy of the outputs; `by` native calls where the layer has them, or numpy."""
        self._forget((self.buffers.output,))
        self._forget(array for name, array in self.buffers.scratch.items() if name != PLACED)
        calls = self._calls_upward(given) if by == "native" else None
        if calls is None:
            self.operation.forward(given.inputs, given.parameters, self.buffers, True, KEY)
        else:
            _make(calls)
        return self.buffers.output[: len(given.inputs)].copy()

    def downward(self, given: Given, by: str = "numpy") -> tuple[Floats | None, tuple[Floats, ...]]:
        """Computes and returns copies of the error at the inputs and of the gradients."""
        self._forget((self.buffers.input_error, *self.gradients))
        self._forget(array for name, array in self.buffers.scratch.items() if name == "placed error")
        error = given.error.copy()
        calls = self._calls_downward(given, error) if by == "native" else None
        if calls is None:
            arrays = (given.parameters, self.gradients, self.buffers)
            self.operation.backward(error, given.inputs, *arrays, self.wants_error)
        else:
            _make(calls)
        found = self.buffers.input_error[: len(error)].copy() if self.wants_error else None
        return found, tuple(gradient.copy() for gradient in self.gradients)

    def run(self, given: Given, by: str = "numpy") -> Made:
        """Computes both ways."""
        outputs = self.upward(given, by)
        return Made(outputs, *self.downward(given, by))

    def has_native(self, given: Given) -> bool:
        """Whether a direction is native."""
        return self._calls_upward(given) is not None or self._calls_downward(given, given.error) is not None

    def _calls_upward(self, given: Given) -> list[Call] | None:
        return self.operation.native_forward(len(given.inputs), given.parameters, self.buffers, given.inputs, KEY)

    def _calls_downward(self, given: Given, error: Floats) -> list[Call] | None:
        arrays = (given.parameters, self.gradients, self.buffers)
        return self.operation.native_backward(len(error), *arrays, error, given.inputs, self.wants_error)

    def _forget(self, arrays: Any) -> None:
        """Has arrays hold NaN, so that what is not written shows."""
        for array in arrays:
            array[...] = np.nan


def _make(calls: Any) -> None:
    row = np.zeros(1, np.int64)
    if calls and (status := compile_calls(calls)(address_of(row), 1)):
        raise RuntimeError(f"a compiled kernel failed with status {status}")


def numbers_for(own: Resolved, batch: int, seed: int) -> Given:
    """Returns inputs and errors drawn from N(0, 1), and parameters near their initial values, as float64."""
    generator = np.random.default_rng(seed)
    parameters = []
    for _, one in own.parameters:
        centre = {"ones": 1.0}.get(one.init, 0.0) if isinstance(one.init, str) else float(one.init)
        drawn = 0.1 if not isinstance(one.init, str) or one.init in ("ones", "zeros") else 0.5
        parameters.append(centre + drawn * generator.standard_normal(one.shape))
    return Given(
        generator.standard_normal((batch, *own.input)),
        tuple(parameters),
        generator.standard_normal((batch, *own.output)),
    )


def whole_of(own: Resolved, name: str, backend: str = "numpy") -> Custom:
    """Returns the operation of a whole layer."""
    return Custom(own, name, backend)
