"""The description of a network, the same from TOML and from Python: what its layers are, not where they are stored.

Images are height x width x channels. Layers are typed structs, distinguished by `type` in TOML; their field names are
the keys in TOML. Shapes are derived by `adamctl.model.shapes`, parameters by `adamctl.model.layout`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Activation: TypeAlias = Literal["relu", "tanh", "sigmoid"]
Padding: TypeAlias = Literal["valid", "same"]
Initializer: TypeAlias = Literal["he", "glorot", "lecun", "pytorch", "zeros"] | float
"""A layer's initial weights; a number is the value of all. Biases start at 0; with `pytorch` they are drawn, too.

Unset: `he` in layers with relu, `glorot` in all others (docs/decisions/0024-initial-values.md).
"""
LossName: TypeAlias = Literal["cross_entropy", "squared_error", "logistic", "mean_squared_error"]
Weighting: TypeAlias = Literal["gaussian", "uniform"]
Size: TypeAlias = int | tuple[int, int]
Plain: TypeAlias = bool | int | float | str
KeyValue: TypeAlias = Plain | tuple[Plain, ...]
"""What a key of a layer of the user's own may be."""


class _Layer(msgspec.Struct, frozen=True, kw_only=False, tag_field="type", forbid_unknown_fields=True):
    """Common configuration of all layers: frozen, tagged by `type`, unknown keys rejected."""


class Conv2D(_Layer, frozen=True, tag="conv2d"):
    """A convolution with one bias per map (Adam 2.1).

    Weight [filters, kernel height, kernel width, channels / groups]: with groups, channels and maps are split into that
    many equal parts, and a map sees only the channels of its own part.

    Attributes:
        filters: number of maps.
        kernel: height and width of the window: one number for both, or two.
        stride: distance between windows: one number for both directions, or two.
        padding: `same` adds zeros around the image, so that with stride 1 maps keep its size; `valid` adds none.
        activation: function applied to the sums; unset: none.
        init: initial weights; unset: chosen by the activation. Biases start at zero.
        groups: number of parts.
    """

    filters: int
    kernel: Size
    stride: Size = 1
    padding: Padding = "valid"
    activation: Activation | None = None
    init: Initializer | None = None
    groups: int = 1


class MaxPool2D(_Layer, frozen=True, tag="maxpool2d"):
    """The maximum over windows of `size`, `stride` apart (default: windows touch and do not overlap).

    Attributes:
        size: height and width of the windows: one number for both, or two.
        stride: distance between windows: one number for both directions, or two; unset: `size`.
    """

    size: Size
    stride: Size | None = None


class Local2D(_Layer, frozen=True, tag="local2d"):
    """Like a convolution, but each place has its own weights (DistBelief 5).

    Weight [rows, columns, filters, kernel height, kernel width, channels], bias [rows, columns, filters].

    Attributes:
        filters: number of maps.
        kernel: height and width of the window: one number for both, or two.
        stride: distance between windows: one number for both directions, or two.
        padding: `same` adds zeros around the image, so that with stride 1 maps keep its size; `valid` adds none.
        activation: function applied to the sums; unset: none.
        init: initial weights; unset: chosen by the activation. Biases start at zero.
    """

    filters: int
    kernel: Size
    stride: Size = 1
    padding: Padding = "valid"
    activation: Activation | None = None
    init: Initializer | None = None


class L2Pool2D(_Layer, frozen=True, tag="l2pool2d"):
    """The root of the sum of squares over windows of `size`, `stride` apart (default: they touch; Le et al. 2012).

    Attributes:
        size: height and width of the windows: one number for both, or two.
        stride: distance between windows: one number for both directions, or two; unset: `size`.
    """

    size: Size
    stride: Size | None = None


class LocalContrastNorm(_Layer, frozen=True, tag="local_contrast_norm"):
    """Subtracts from each pixel its neighbourhood's weighted mean and divides by its deviation (Jarrett et al. 2009).

    The neighbourhood is a window of `size` pixels over all maps; a deviation below `deviation_min` is raised to that.

    Attributes:
        size: height and width of the neighbourhood, both odd: one number for both, or two.
        weights: weights of the pixels in a window.
        deviation_min: smallest deviation to divide by.
    """

    size: Size
    weights: Weighting = "gaussian"
    deviation_min: float = 0.01


class Dense(_Layer, frozen=True, tag="dense"):
    """A fully connected layer; an image is flattened row by row. Weight [units, inputs], bias [units].

    Attributes:
        units: number of outputs.
        activation: function applied to the sums; unset: none.
        init: initial weights; unset: chosen by the activation. Biases start at zero.
    """

    units: int
    activation: Activation | None = None
    init: Initializer | None = None


class Dropout(_Layer, frozen=True, tag="dropout"):
    """Sets each input to zero with probability `rate` during training and scales the rest by 1 / (1 - rate).

    Attributes:
        rate: probability, at least 0 and below 1.
    """

    rate: float


class Softmax(_Layer, frozen=True, tag="softmax"):
    """A dense layer whose outputs are normalised by softmax: the last layer of a classifier (Adam 2.1).

    Attributes:
        units: number of classes.
        init: initial weights; unset: chosen by the activation. Biases start at zero.
    """

    units: int
    init: Initializer | None = None


class Logistic(_Layer, frozen=True, tag="logistic"):
    """A dense layer of independent yes-or-no outputs, one against all others: a last layer (DistBelief 5).

    Attributes:
        units: number of outputs.
        init: initial weights; unset: chosen by the activation. Biases start at zero.
    """

    units: int
    init: Initializer | None = None


class Custom(_Layer, frozen=True, tag=":"):
    """A layer that a Python class computes (DistBelief 3): plain data, which `adamctl.model.custom` makes an object of.

    Users write and read it as `type = "mypackage.layers:Whiten"` with the class's keys beside it
    (`adamctl.model.custom.plain`); its tag is a type that no user can write.

    Attributes:
        path: `module:Class`, or the short name of one that comes with adamctl.
        keys: the class's keys and their values, by name; those left out have their defaults.
    """

    path: str
    keys: tuple[tuple[str, KeyValue], ...] = ()


Layer: TypeAlias = (
    Conv2D | MaxPool2D | Dense | Dropout | Softmax | Local2D | L2Pool2D | LocalContrastNorm | Logistic | Custom
)


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network: the shape of one example and the layers in order.

    Attributes:
        input: the shape of one example, [height, width, channels] or [features].
        layers: the layers from input to output.
        loss: compares the last layer's outputs with the labels: cross entropy needs a softmax last layer, logistic (the
            summed cross entropies of yes-or-no outputs) a logistic one; squared error (Adam 2.2) works with any. Mean
            squared error compares the outputs of a dense layer with targets, numbers in place of labels: names are
            `cross_entropy`, `squared_error`, `logistic`, `mean_squared_error`. A loss of one's own is named
            `package.module:Class` (docs/losses.md).
    """

    input: tuple[int, ...]
    layers: tuple[Layer, ...]
    loss: str = "cross_entropy"


def pair(size: Size) -> tuple[int, int]:
    """Returns (height, width) of a size given as one number or two."""
    return (size, size) if isinstance(size, int) else size
