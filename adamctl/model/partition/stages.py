"""The stages of a network: what is cut over the partitions of a replica as one thing.

A stage is a layer, or a convolution with the max-pooling that follows it directly: those are cut together, at the
pooled rows or maps, and rows of the convolution that two windows share are computed on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from adamctl.model.custom.interface import Same
from adamctl.model.custom.interface import Window as CustomWindow
from adamctl.model.custom.resolved import Resolved
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Layer,
    Local2D,
    LocalContrastNorm,
    Logistic,
    MaxPool2D,
    Model,
    Softmax,
    pair,
)
from adamctl.model.shapes import LayerShape, infer, same_padding

CutAxis: TypeAlias = Literal["rows", "maps", "units", "groups", "whole"]


@dataclass(frozen=True)
class Window:
    """The windows of a layer along the rows of its input.

    Attributes:
        size, stride: rows of a window, and rows between the starts of two.
        before: rows of zeros above the image.
    """

    size: int
    stride: int
    before: int = 0

    def reads(self, start: int, stop: int, rows: int) -> tuple[int, int]:
        """Returns the rows of an image of `rows` that windows [start, stop) read, halo included, zeros left out."""
        first = start * self.stride - self.before
        last = (stop - 1) * self.stride - self.before + self.size
        return max(first, 0), min(last, rows)


@dataclass(frozen=True)
class Stage:
    """A stage of a network, not yet cut.

    Attributes:
        index: its position in the network, from 0.
        layers: the layer, or a convolution and its pooling.
        tensors: indices of its parameters in the parameter layout: weight and bias, or none.
    """

    index: int
    layers: tuple[LayerShape, ...]
    tensors: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of its first layer."""
        return self.layers[0].name

    @property
    def layer(self) -> Layer:
        """Its first layer, the one with the parameters."""
        return self.layers[0].layer

    @property
    def kind(self) -> str:
        """The type of its first layer; of one of the user's own, its class's name."""
        return self.own.name if self.own is not None else str(self.layer.__struct_config__.tag)

    @property
    def own(self) -> Resolved | None:
        """What its class says of it, if it is a layer of the user's own."""
        return self.layers[0].own

    @property
    def input(self) -> tuple[int, ...]:
        """The shape of one input example."""
        return self.layers[0].input

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of one output example."""
        return self.layers[-1].output

    @property
    def groups(self) -> int:
        """Into how many groups its maps are split; 1 for all but convolutions in groups."""
        return self.layer.groups if isinstance(self.layer, Conv2D) else 1

    @property
    def axes(self) -> tuple[CutAxis, ...]:
        """The axes along which its outputs can be cut, the usual one first."""
        layer = self.layer
        if self.own is not None:
            return self.own.axes
        if isinstance(layer, Conv2D):
            return ("rows", "maps", "groups") if layer.groups > 1 else ("rows", "maps")
        if isinstance(layer, Local2D):
            return ("rows",)
        if isinstance(layer, (MaxPool2D, L2Pool2D, LocalContrastNorm)):
            return ("rows", "maps")
        if isinstance(layer, Dropout):
            return ("units",) if len(self.output) == 1 else ("rows", "maps")
        return ("units",)

    @property
    def follows(self) -> bool:
        """Whether it is cut as the stage before: pooling by itself, dropout, and a user's pointwise layer."""
        if self.own is not None:
            return isinstance(self.own.connectivity, Same)
        return isinstance(self.layer, (MaxPool2D, L2Pool2D, Dropout))

    @property
    def window(self) -> Window:
        """The windows of its first layer along the rows; a dropout's rows read themselves alone."""
        layer, rows = self.layer, self.input[0]
        if self.own is not None:
            return Window(*self.own.windows(0))
        if isinstance(layer, (Conv2D, Local2D)):
            size, stride = pair(layer.kernel)[0], pair(layer.stride)[0]
            before, _ = same_padding(rows, size, stride) if layer.padding == "same" else (0, 0)
            return Window(size, stride, before)
        if isinstance(layer, (MaxPool2D, L2Pool2D)):
            return _window_of_pooling(layer)
        if isinstance(layer, LocalContrastNorm):  # means, then deviations of what the means were taken from
            size = pair(layer.size)[0]
            return Window(2 * size - 1, 1, size - 1)
        return Window(1, 1)

    @property
    def pooling(self) -> Window | None:
        """The windows of the pooling that belongs to a convolution."""
        pooling = self.layers[-1].layer
        return _window_of_pooling(pooling) if len(self.layers) > 1 and isinstance(pooling, MaxPool2D) else None

    @property
    def reads_all_maps(self) -> bool:
        """Whether an output map is computed from all maps of the input, or of its group."""
        if self.own is not None:
            return isinstance(self.own.connectivity, CustomWindow)
        return isinstance(self.layer, (Conv2D, Local2D, LocalContrastNorm))

    def extent(self, axis: str) -> int:
        """Returns how many rows, maps or units its outputs have."""
        return self.output[-1] if axis == "maps" else self.output[0]

    def why_not(self, axis: str) -> str:
        """Returns why it cannot be cut along an axis that other layers can be cut along, or nothing."""
        if isinstance(self.layer, Local2D) and axis == "maps":
            return ": the parameters of a map do not lie together"
        if isinstance(self.layer, (Dense, Softmax, Logistic)):
            return ": its outputs are units"
        if self.own is not None and axis == "maps":
            return ": only a layer that reads the same place alone and has no parameters can be"
        return ""


def stages_of(model: Model) -> tuple[Stage, ...]:
    """Returns the stages of a network in order.

    Raises:
        ConfigurationError: the layers do not fit together.
    """
    stages: list[Stage] = []
    tensors = 0
    for shape in infer(model):
        before = stages[-1].layers if stages else ()
        if isinstance(shape.layer, MaxPool2D) and len(before) == 1 and isinstance(before[0].layer, Conv2D):
            stages[-1] = Stage(stages[-1].index, (*before, shape), stages[-1].tensors)
            continue
        count = 2 if isinstance(shape.layer, (Conv2D, Local2D, Dense, Softmax, Logistic)) else 0
        count = len(shape.own.parameters) if shape.own is not None else count
        stages.append(Stage(len(stages), (shape,), tuple(range(tensors, tensors + count))))
        tensors += count
    return tuple(stages)


def _window_of_pooling(layer: MaxPool2D | L2Pool2D) -> Window:
    size = pair(layer.size)[0]
    return Window(size, size if layer.stride is None else pair(layer.stride)[0])
