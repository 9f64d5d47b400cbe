"""The common shape of every layer operation: buffers are allocated once, a step allocates nothing (Adam 3.2.1).

An operation is built once per layer and shared by all threads; it holds no state of a step. Each thread
allocates its own `Buffers` (the layer's part of a training context) and passes them to every call. Weights
may be changed by other threads during any call: the operation reads them in place and never copies or locks
them (Adam 3.2.2). Nothing here depends on whether neighbouring layers are local: `forward` takes the layer's
whole input and `backward` the error of its whole output, wherever they came from (Adam 3.2.5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array
from adamctl.kernels.native import Call
from adamctl.kernels.slicing import OutputSlice, Region

__all__ = [
    "Array",
    "Backward",
    "Buffers",
    "Factors",
    "Forward",
    "Key",
    "Operation",
    "SlicedOperation",
    "empty_buffers",
    "image_shape",
]

Key: TypeAlias = NDArray[np.uint32]
"""The two words of a step's key (`adamctl.kernels.numeric.mix.step_key`), low one first; read anew in every step."""

Forward: TypeAlias = Callable[[Array], Array]
"""A layer's training `forward` with everything but the inputs bound."""

Backward: TypeAlias = Callable[[Array, Array], Array | None]
"""A layer's `backward` with everything but the output error and the inputs bound."""


@dataclass
class Buffers:
    """One thread's pre-allocated arrays for one layer; axis 0 is the batch, sized for the largest batch.

    Attributes:
        output: written by `forward`, [batch, *output_shape].
        input_error: written by `backward`: the loss gradient with respect to the input, [batch, *input_shape]; shape
            (0,) when not needed (first layer).
        scratch: name -> other arrays that the operation keeps from forward to backward or within a call.
    """

    output: Array
    input_error: Array
    scratch: dict[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True)
class Factors:
    """The factors that Adam 3.2.6 sends instead of a dense layer's gradient: gradient = errors.T @ activations.

    Attributes:
        errors: [batch, outputs], already divided by the batch (views into the thread's buffers).
        activations: [batch, inputs].
    """

    errors: Array
    activations: Array


@dataclass(frozen=True)
class SlicedOperation:
    """The operation that computes a slice.

    Attributes:
        operation: takes the region `inputs` as its whole input and computes the slice as its whole output.
        inputs: region of the layer's input that it reads.
        outputs: region of the layer's output that it computes.
        parameters: per parameter, the part of the layer's array that belongs to the operation.
    """

    operation: Operation
    inputs: Region
    outputs: Region
    parameters: tuple[Region, ...]


class Operation(ABC):
    """One layer's computation. `parameters` are the shapes of its weights in the order of the parameter layout."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        output_shape: tuple[int, ...],
        parameters: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.input_shape = input_shape
        self.output_shape = output_shape
        self.parameters = tuple(parameters)

    @abstractmethod
    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        """Returns one thread's buffers for batches of up to `batch_max` examples.

        `dtype` float64 serves checks of the numpy implementation; compiled ones take float32 only.
        """

    @abstractmethod
    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        """Computes the outputs of inputs [n, *input_shape], n <= batch_max, into `buffers.output[:n]` and returns that.

        `training` enables training behaviour, in which `key` decides what is left to chance.
        """

    @abstractmethod
    def backward(
        self,
        output_error: Array,
        inputs: Array,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool = True,
    ) -> Array | None:
        """Back-propagates one step (Adam 2.2).

        Args:
            output_error: loss gradient with respect to the outputs, [n, *output_shape], already divided by the
                batch; may be overwritten.
            inputs: the inputs of `forward`, unchanged.
            weights: as in `forward`, possibly changed by other threads since.
            gradients: one array per parameter; overwritten with this step's gradient (not added to). None where not
                needed, as for the weight of a dense layer that is sent as factors.
            buffers: as in `forward` of the same examples.
            needs_input_error: False for the first layer.

        Returns:
            the loss gradient with respect to the inputs, `buffers.input_error[:n]`, or None if not needed.
        """

    def bind_forward(self, batch: int, weights: Sequence[Array], buffers: Buffers, key: Key) -> Forward:
        """Returns `forward` for training batches of exactly `batch` examples, as a function of only the inputs.

        Layers of small networks create their views here and check nothing later: their inputs come from another layer.
        A subclass that overrides `forward` overrides this, too, or leaves both to this class.
        """
        return lambda inputs: self.forward(inputs, weights, buffers, True, key)

    def bind_backward(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool,
    ) -> Backward:
        """Returns `backward` as a function of only the output error and the inputs; as `bind_forward`."""
        return lambda error, inputs: self.backward(error, inputs, weights, gradients, buffers, needs_input_error)

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        """Returns `bind_forward`'s work on these inputs as calls of compiled kernels and products.

        The calls take `key` as it is: many steps of one native call each have their own in its place.

        None, the default: it needs more than such calls, and Python does it.
        """
        return None

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
        """Returns `bind_backward`'s work on this output error and these inputs; as `native_forward`."""
        return None

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Returns the operation that computes a part of the outputs, with the parts of this one that it uses.

        Raises:
            ValueError: this layer cannot be cut along that axis, or the range is not inside its outputs.
        """
        raise ValueError(f"{type(self).__name__}: cannot cut its outputs into {part.axis}")

    def factors(self, buffers: Buffers, inputs: Array) -> Factors | None:
        """Returns views of the last `backward`'s factors, or None if the layer's gradient is not such a product."""
        return None

    def _check(self, what: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
        """Raises ValueError naming the operation unless `array` is C-contiguous [n, *shape]."""
        if array.shape[1:] != shape or not array.flags.c_contiguous:
            raise ValueError(
                f"{type(self).__name__}: expected {what} of shape [n, {', '.join(map(str, shape))}], contiguous; "
                f"found {list(array.shape)}{'' if array.flags.c_contiguous else ', not contiguous'}"
            )

    def _check_inputs(self, inputs: NDArray[np.generic], buffers: Buffers) -> None:
        """As `_check`; also raises ValueError unless the batch fits the buffers and has their type."""
        self._check("inputs", inputs, self.input_shape)
        if len(inputs) > len(buffers.output) or inputs.dtype != buffers.output.dtype:
            raise ValueError(
                f"{type(self).__name__}: expected at most {len(buffers.output)} inputs of {buffers.output.dtype}; "
                f"found {len(inputs)} of {inputs.dtype}"
            )


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns the shape as (height, width, channels)."""
    height, width, channels = shape
    return height, width, channels


def empty_buffers(operation: Operation, batch_max: int, needs_input_error: bool, dtype: type[np.floating]) -> Buffers:
    """Returns zeroed output and input error for an operation, no scratch."""
    output = np.zeros((batch_max, *operation.output_shape), dtype)
    error = np.zeros((batch_max, *operation.input_shape) if needs_input_error else (0,), dtype)
    return Buffers(output, error)
