"""The description of a network, the same from TOML and from Python: what its layers are, not where they live.

Images are height x width x channels. Layers are typed structs, told apart by `type` in TOML; their field names are
the keys a user writes. Shapes are derived by `adamctl.model.shapes`, parameters by `adamctl.model.layout`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Activation: TypeAlias = Literal["relu", "tanh", "sigmoid"]
Padding: TypeAlias = Literal["valid", "same"]
Initializer: TypeAlias = Literal["he", "glorot", "lecun", "pytorch", "zeros"] | float
"""Where a layer's weights begin; a number is the value of all. Biases begin at 0, under `pytorch` they are drawn, too.

Unset: `he` in layers with relu, `glorot` in all others (docs/decisions/0024-initial-values.md).
"""
Loss: TypeAlias = Literal["cross_entropy", "squared_error", "logistic"]
Weighting: TypeAlias = Literal["gaussian", "uniform"]
Size: TypeAlias = int | tuple[int, int]


class _Layer(msgspec.Struct, frozen=True, kw_only=False, tag_field="type", forbid_unknown_fields=True):
    """Common configuration of all layers: frozen, tagged by `type`, unknown keys refused."""


class Conv2D(_Layer, frozen=True, tag="conv2d"):
    """A convolution with one bias per map (Adam 2.1).

    Weight [filters, kernel height, kernel width, channels / groups]: with groups, channels and maps are cut into as
    many equal parts, and a map sees the channels of its own part only.

    Attributes:
        filters: maps.
        kernel: height and width of the window: one number for both, or two.
        stride: how far windows are apart, likewise.
        padding: `same` adds zeros around the image, so that with stride 1 maps are as large as it; `valid` adds none.
        activation: applied to the sums; unset: none.
        init: how weights begin; unset: as the activation suggests. Biases begin with zeros.
        groups: how many parts.
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
        stride: how far windows are apart, likewise; unset: as `size`.
    """

    size: Size
    stride: Size | None = None


class Local2D(_Layer, frozen=True, tag="local2d"):
    """Like a convolution, but each place has weights of its own (DistBelief 5).

    Weight [rows, columns, filters, kernel height, kernel width, channels], bias [rows, columns, filters].

    Attributes:
        filters: maps.
        kernel: height and width of the window: one number for both, or two.
        stride: how far windows are apart, likewise.
        padding: `same` adds zeros around the image, so that with stride 1 maps are as large as it; `valid` adds none.
        activation: applied to the sums; unset: none.
        init: how weights begin; unset: as the activation suggests. Biases begin with zeros.
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
        stride: how far windows are apart, likewise; unset: as `size`.
    """

    size: Size
    stride: Size | None = None


class LocalContrastNorm(_Layer, frozen=True, tag="local_contrast_norm"):
    """Takes from each pixel the weighted mean of its surroundings and divides by their deviation (Jarrett et al. 2009).

    Surroundings are a window of `size` pixels, odd, and all maps; a deviation below `deviation_min` counts as that.

    Attributes:
        size: height and width of the surroundings, odd: one number for both, or two.
        weights: of the pixels in a window.
        deviation_min: least deviation to divide by.
    """

    size: Size
    weights: Weighting = "gaussian"
    deviation_min: float = 0.01


class Dense(_Layer, frozen=True, tag="dense"):
    """A fully connected layer; an image is flattened row by row. Weight [units, inputs], bias [units].

    Attributes:
        units: outputs.
        activation: applied to the sums; unset: none.
        init: how weights begin; unset: as the activation suggests. Biases begin with zeros.
    """

    units: int
    activation: Activation | None = None
    init: Initializer | None = None


class Dropout(_Layer, frozen=True, tag="dropout"):
    """Sets each input to zero with probability `rate` while training and scales the rest by 1 / (1 - rate).

    Attributes:
        rate: at least 0 and below 1.
    """

    rate: float


class Softmax(_Layer, frozen=True, tag="softmax"):
    """A dense layer whose outputs are normalised by softmax: the last layer of a classifier (Adam 2.1).

    Attributes:
        units: classes.
        init: how weights begin; unset: as the activation suggests. Biases begin with zeros.
    """

    units: int
    init: Initializer | None = None


class Logistic(_Layer, frozen=True, tag="logistic"):
    """A dense layer of independent yes-or-no outputs, one against all others: a last layer (DistBelief 5).

    Attributes:
        units: outputs.
        init: how weights begin; unset: as the activation suggests. Biases begin with zeros.
    """

    units: int
    init: Initializer | None = None


Layer: TypeAlias = Conv2D | MaxPool2D | Dense | Dropout | Softmax | Local2D | L2Pool2D | LocalContrastNorm | Logistic


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network: the shape of one example and the layers in order.

    Attributes:
        input: the shape of one example, [height, width, channels] or [features].
        layers: from the input to the output.
        loss: compares the last layer's outputs with the labels: cross entropy needs a softmax last layer, logistic (the
            summed cross entropies of yes-or-no outputs) a logistic one; squared error (Adam 2.2) takes any.
    """

    input: tuple[int, ...]
    layers: tuple[Layer, ...]
    loss: Loss = "cross_entropy"


def pair(size: Size) -> tuple[int, int]:
    """Returns (height, width) of a size given as one number or two."""
    return (size, size) if isinstance(size, int) else size
