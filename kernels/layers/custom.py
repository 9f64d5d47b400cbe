"""Computes a layer of the user's own: the adapter from `adamctl.model.custom.interface.Layer` to an operation.

It hands the user's code arrays in the form that the interface promises and takes its results from them. A layer that
reads a `Window` finds zeros around the image and a halo as if they were pixels: they are copied into an array that is
allocated once; the error at zeros is dropped, the error at a halo is added up by whoever has those pixels. Where
nothing has to be put around the inputs, and for `Same` and `Full`, the user's code gets the operation's own arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from adamctl.errors import CustomError
from adamctl.kernels.backend import Backend, choose
from adamctl.kernels.custom_kernel import checked_calls, make_from_python
from adamctl.kernels.native import Call, joined
from adamctl.kernels.operation import Array, Buffers, Key, Operation, SlicedOperation, empty_buffers
from adamctl.kernels.partition.regions import BlockMove, Box, Clear, Held, extents, intersection
from adamctl.kernels.slicing import OutputSlice, Region, check_slice
from adamctl.model.custom.asking import ask
from adamctl.model.custom.parts import part_of, placed_region, state_of
from adamctl.model.custom.resolved import Piece, Resolved

STATE = "state "
PLACED, PLACED_ERROR = "placed", "placed error"


class Custom(Operation):
    """Inputs and outputs as the layer's class says."""

    def __init__(self, own: Resolved, name: str, backend: str | None = None, piece: Piece | None = None) -> None:
        """Args:
        name: of the layer in its network, for messages.
        piece: the part of the layer that is computed; None: all of it.
        """
        whole = Piece(
            _whole(own.input), _whole(own.output), tuple(_whole(parameter.shape) for _, parameter in own.parameters)
        )
        self.own, self.name, self.piece, self.is_whole = own, name, piece or whole, piece is None
        super().__init__(
            extents(self.piece.inputs), extents(self.piece.outputs), [extents(held) for held in self.piece.parameters]
        )
        self.backend: Backend = choose(backend)
        self._names = tuple(parameter for parameter, _ in own.parameters)
        self._placed = placed_region(own, self.piece)
        self.part = part_of(own, self.piece)
        self._state = state_of(own, self.part)

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        for key, shape in self._state.items():
            buffers.scratch[STATE + key] = np.zeros((batch_max, *shape), dtype)
        if self._placed is not None:
            buffers.scratch[PLACED] = np.zeros((batch_max, *extents(self._placed)), dtype)
            if needs_input_error:
                buffers.scratch[PLACED_ERROR] = np.zeros((batch_max, *extents(self._placed)), dtype)
        return buffers

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        """Calls `upward`."""
        self._check_inputs(inputs, buffers)
        batch = len(inputs)
        out = buffers.output[:batch]
        for move in self._moves(inputs, buffers):
            move.make()
        placed, parameters, state = self._inputs(inputs, buffers), self._named(weights), self._states(buffers, batch)
        arguments = (self.part, placed, parameters, state, out)
        if not self._made(self.own.layer.native_upward, arguments, out):
            self._call(self.own.layer.upward, *arguments)
        return out

    def backward(
        self,
        output_error: Array,
        inputs: Array,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool = True,
    ) -> Array | None:
        """Calls `downward`."""
        self._check("output error", output_error, self.output_shape)
        batch = len(inputs)
        arguments = (
            self.part, output_error, self._inputs(inputs, buffers), self._named(weights), self._named(gradients),
            self._states(buffers, batch), self._out(buffers, batch, needs_input_error),
        )  # fmt: skip
        if not self._made(self.own.layer.native_downward, arguments, output_error):
            self._call(self.own.layer.downward, *arguments)
        if not needs_input_error:
            return None
        for move in self._moves_back(buffers, batch):
            move.make()
        return buffers.input_error[:batch]

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self.backend != "numba":
            return None
        calls = self._asked(
            self.own.layer.native_upward, self.part, self._inputs(inputs, buffers), self._named(weights),
            self._states(buffers, batch), buffers.output[:batch],
        )  # fmt: skip
        moved = joined(*(move.native(self.backend) for move in self._moves(inputs, buffers)))
        return joined(moved, self._checked(self.own.layer.native_upward, calls))

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
        if self.backend != "numba":
            return None
        calls = self._asked(
            self.own.layer.native_downward, self.part, output_error, self._inputs(inputs, buffers),
            self._named(weights), self._named(gradients), self._states(buffers, batch),
            self._out(buffers, batch, needs_input_error),
        )  # fmt: skip
        back = self._moves_back(buffers, batch) if needs_input_error else []
        moved = joined(*(move.native(self.backend) for move in back))
        return joined(self._checked(self.own.layer.native_downward, calls), moved)

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts along the axes that follow from what a node reads; window rows bring their halo."""
        check_slice(part, self.output_shape, self.own.axes, self.name)
        if not self.is_whole:
            raise ValueError(f"{self.name}: expected a whole layer to cut; found a slice of one")
        piece = self.own.piece(part.axis, part.start, part.stop)
        operation = Custom(self.own, self.name, self.backend, piece)
        held = tuple(_slices(region) for region in piece.parameters)
        return SlicedOperation(operation, _slices(piece.inputs), _slices(piece.outputs), held)

    @cached_property
    def _common(self) -> Box:
        """The pixels that are both among the inputs and read by a window."""
        common = intersection(self._placed or self.piece.inputs, self.piece.inputs)
        assert common is not None
        return common

    def _inputs(self, inputs: Array, buffers: Buffers) -> Array:
        return inputs if self._placed is None else _first(buffers, PLACED, len(inputs))

    def _out(self, buffers: Buffers, batch: int, needs_input_error: bool) -> Array | None:
        if not needs_input_error:
            return None
        return buffers.input_error[:batch] if self._placed is None else _first(buffers, PLACED_ERROR, batch)

    def _moves(self, inputs: Array, buffers: Buffers) -> list[BlockMove]:
        """Returns what puts the inputs where windows read them; what is around them stays zero."""
        if self._placed is None:
            return []
        target = Held(_first(buffers, PLACED, len(inputs)), self._placed)
        return [BlockMove(target, Held(inputs, self.piece.inputs), self._common)]

    def _moves_back(self, buffers: Buffers, batch: int) -> list[BlockMove | Clear]:
        """Returns what takes the error at the inputs from there; pixels that no window reads have none."""
        if self._placed is None:
            return []
        target = Held(buffers.input_error[:batch], self.piece.inputs)
        move = BlockMove(target, Held(_first(buffers, PLACED_ERROR, batch), self._placed), self._common)
        return [move] if self._common == self.piece.inputs else [Clear(target), move]

    def _named(self, arrays: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._names, arrays, strict=True))

    def _states(self, buffers: Buffers, batch: int) -> dict[str, Array]:
        return {key: _first(buffers, STATE + key, batch) for key in self._state}

    def _made(self, method: Callable[..., Any], arguments: tuple[Any, ...], typed: Array) -> bool:
        """Makes a direction's native calls from Python, if it has any for this type of numbers: the same results."""
        if self.backend != "numba" or typed.dtype != np.float32:
            return False
        return make_from_python(self._checked(method, self._asked(method, *arguments)))

    def _call(self, method: Callable[..., object], *arguments: Any) -> None:
        returned = self._asked(method, *arguments)
        if returned is not None:
            raise CustomError(
                f"{self._where(method)}: expected results in out and nothing returned; found "
                f"{type(returned).__name__}: write out[...] = ..."
            )

    def _asked(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return ask(self._where(method), method, *arguments)

    def _checked(self, method: Callable[..., object], calls: Any) -> list[Call] | None:
        return checked_calls(self._where(method), calls)

    def _where(self, method: Callable[..., object]) -> str:
        kind = type(self.own.layer)
        part = "" if self.is_whole else f", the part of outputs {_shown(self.piece.outputs)}"
        return f"{self.name} ({kind.__module__}:{kind.__qualname__}){part}, {getattr(method, '__name__', method)}"


def _whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, extent) for extent in shape)


def _slices(region: Box) -> Region:
    return tuple(slice(start, stop) for start, stop in region)


def _shown(region: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in region) + "]"


def _first(buffers: Buffers, name: str, batch: int) -> Array:
    return buffers.scratch[name][:batch]  # type: ignore[return-value]
