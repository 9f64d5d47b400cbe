"""A layer of the user's own with its shapes, and the regions that a part of it reads, makes and holds.

The one geometry of such layers: plans of partitions and operations both ask here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from adamctl.errors import ConfigurationError
from adamctl.model.custom.interface import (
    NAME,
    Connectivity,
    Full,
    Layer,
    Message,
    Parameter,
    Range,
    Same,
    Shape,
    Window,
)
from adamctl.model.custom.registry import layer_of
from adamctl.model.description import Custom, Initializer, Padding, pair

Axis: TypeAlias = Literal["rows", "maps", "units"]
Region: TypeAlias = tuple[Range, ...]
DRAWN = (*(name for option in get_args(Initializer) for name in get_args(option)), "ones")


class WindowAxis(NamedTuple):
    """The windows of a layer along rows or columns: pixels of one, distance between two, zeros before the image."""

    size: int
    stride: int
    before: int


class Placed(NamedTuple):
    """Where the pixels that some windows read lie among them.

    Attributes:
        reads: range of the image.
        before: zeros before it.
        extent: pixels of all those windows, zeros included.
    """

    reads: Range
    before: int
    extent: int


class Piece(NamedTuple):
    """The regions of a part of a layer: of its input, of its output, and of each parameter."""

    inputs: Region
    outputs: Region
    parameters: tuple[Region, ...]


@dataclass(frozen=True)
class Resolved:
    """A layer with its shapes.

    Attributes:
        layer: the user's object.
        input, output: shapes of one example.
        connectivity: what a node reads.
        parameters: (name, parameter) in the order of the parameter layout: by name.
    """

    layer: Layer
    input: Shape
    output: Shape
    connectivity: Connectivity
    parameters: tuple[tuple[str, Parameter], ...]

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes along which its outputs can be cut, the usual one first."""
        if len(self.output) == 1:
            return ("units",)
        pointwise = isinstance(self.connectivity, Same) and not self.parameters
        return ("rows", "maps") if pointwise else ("rows",)

    def windows(self, axis: int) -> WindowAxis:
        """Returns the windows along axis 0 or 1; those of a pointwise layer are of one pixel."""
        found = self.connectivity
        if not isinstance(found, Window):
            return WindowAxis(1, 1, 0)
        size, stride = pair(found.size)[axis], pair(found.stride)[axis]
        return WindowAxis(size, stride, _before(self.input[axis], size, stride, found.padding))

    def placed(self, axis: int, start: int, stop: int) -> Placed:
        """Returns where windows [start, stop) along axis 0 or 1 find their pixels."""
        size, stride, before = self.windows(axis)
        first, last = start * stride - before, (stop - 1) * stride - before + size
        reads = max(first, 0), max(min(last, self.input[axis]), max(first, 0))
        return Placed(reads, max(-first, 0), last - first)

    def shares(self, place: int, axis: str) -> bool:
        """Whether parts that are cut along an axis all compute with the whole of a parameter, by its place."""
        return axis == "maps" or self.parameters[place][1].shared

    def piece(self, axis: str, start: int, stop: int) -> Piece:
        """Returns the regions of the part that makes outputs [start, stop) along an axis."""
        outputs, inputs = _along(self.output, axis, (start, stop)), _whole(self.input)
        if isinstance(self.connectivity, Same):
            inputs = _along(self.input, axis, (start, stop))
        elif isinstance(self.connectivity, Window):
            inputs = (self.placed(0, start, stop).reads, *inputs[1:])
        held = tuple(
            _whole(one.shape) if self.shares(place, axis) else ((start, stop), *_whole(one.shape[1:]))
            for place, (_, one) in enumerate(self.parameters)
        )
        return Piece(inputs, outputs, held)


def resolve(custom: Custom, input_shape: Shape, where: str) -> Resolved:
    """Returns a layer with its shapes; `where` begins messages.

    Raises:
        ConfigurationError: the class cannot be found, its keys are wrong, or what it says of itself does not fit.
    """
    try:
        return _resolve(custom, input_shape)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


@lru_cache(maxsize=1024)
def _resolve(custom: Custom, input_shape: Shape) -> Resolved:
    return resolved(layer_of(custom), input_shape)


def resolved(layer: Layer, input_shape: Shape) -> Resolved:
    """As `resolve`, of an object."""
    for direction in ("up", "down"):
        if not isinstance(getattr(layer, direction), Message):
            raise ConfigurationError(f"{direction}: expected an adam.Message; found {getattr(layer, direction)!r:.80}")
    output = asked(layer, "output_shape", input_shape)
    if not is_shape(output) or len(output) not in (1, 3):
        expected = "expected (units,) or (height, width, maps), whole numbers of at least 1"
        raise ConfigurationError(f"output_shape({input_shape}): {expected}; found {output!r:.80}")
    connectivity = asked(layer, "connectivity")
    _check_connectivity(connectivity, input_shape, tuple(output))
    given = asked(layer, "parameters", input_shape)
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"parameters: expected a dictionary name -> adam.Parameter; found {given!r:.80}")
    for name, one in given.items():
        _check_parameter(name, one, output[0])
    ordered = tuple((name, given[name]) for name in sorted(given))
    return Resolved(layer, input_shape, tuple(output), connectivity, ordered)


def asked(layer: Layer, method: str, *arguments: Any) -> Any:
    """Returns what a method of the user's class returns; what it raises becomes a ConfigurationError."""
    try:
        return getattr(layer, method)(*arguments)
    except ConfigurationError:
        raise
    except NotImplementedError:
        raise ConfigurationError(f"{type(layer).__name__} has no {method}; define it") from None
    except Exception as error:
        shown = ", ".join(map(str, arguments))
        raise ConfigurationError(f"{method}({shown}): {type(error).__name__}: {error}") from error


def _check_connectivity(found: object, input_shape: Shape, output: Shape) -> None:
    if isinstance(found, Same):
        if output != input_shape:
            raise ConfigurationError(
                f"connectivity Same(): expected outputs of the inputs' shape {list(input_shape)}; found {list(output)}"
            )
    elif isinstance(found, Window):
        if len(input_shape) != 3 or len(output) != 3:
            raise ConfigurationError(
                f"connectivity Window: expected images [height, width, maps]; found inputs {list(input_shape)} and "
                f"outputs {list(output)}"
            )
        made = tuple(_window_count(found, axis, input_shape[axis]) for axis in (0, 1))
        if output[:2] != made or min(made) < 1:
            raise ConfigurationError(
                f"connectivity {found}: inputs {list(input_shape)} have {made[0]} x {made[1]} windows; found outputs "
                f"{list(output)}"
            )
    elif not isinstance(found, Full):
        raise ConfigurationError(f"connectivity: expected adam.Window, adam.Same or adam.Full; found {found!r:.80}")


def _window_count(window: Window, axis: int, extent: int) -> int:
    size, stride = pair(window.size)[axis], pair(window.stride)[axis]
    if size < 1 or stride < 1 or window.padding not in get_args(Padding):
        raise ConfigurationError(
            f"connectivity {window}: expected size and stride of at least 1, padding valid or same"
        )
    return -(-extent // stride) if window.padding == "same" else (extent - size) // stride + 1


def _before(extent: int, size: int, stride: int, padding: Padding) -> int:
    """Returns the zeros before an axis: as `adamctl.model.shapes.same_padding`, which asks this module for shapes."""
    return max((-(-extent // stride) - 1) * stride + size - extent, 0) // 2 if padding == "same" else 0


def _check_parameter(name: object, one: object, rows: int) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(f"parameters: expected names of small letters, digits and _; found {name!r:.80}")
    if name == "weight":
        raise ConfigurationError("parameters: weight is what dense layers push as factors; give it another name")
    if not isinstance(one, Parameter) or not is_shape(one.shape):
        expected = "expected adam.Parameter with a shape of whole numbers of at least 1"
        raise ConfigurationError(f"parameters: {name}: {expected}; found {one!r:.80}")
    if not one.shared and one.shape[0] != rows:
        raise ConfigurationError(
            f"parameters: {name}: expected {rows} on axis 0, the rows of the outputs, or shared=True; found shape "
            f"{list(one.shape)}"
        )
    drawn = isinstance(one.init, (int, float)) and not isinstance(one.init, bool) and isfinite(one.init)
    if not drawn and one.init not in DRAWN:
        raise ConfigurationError(
            f"parameters: {name}: expected init of {', '.join(DRAWN)} or a number; found {one.init}"
        )


def is_shape(shape: Any) -> bool:
    """Whether it is a shape: whole numbers of at least 1."""
    if not isinstance(shape, (tuple, list)) or not shape:
        return False
    return all(isinstance(extent, int) and not isinstance(extent, bool) and extent > 0 for extent in shape)


def _whole(shape: Shape) -> Region:
    return tuple((0, extent) for extent in shape)


def _along(shape: Shape, axis: str, made: Range) -> Region:
    whole = _whole(shape)
    return (*whole[:-1], made) if axis == "maps" else (made, *whole[1:])
