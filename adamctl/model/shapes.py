"""Derives the shape of every layer's output and rejects layers that do not fit together."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import TypeAlias, get_args

from adamctl.errors import ConfigurationError
from adamctl.model.custom.loss import is_custom_loss
from adamctl.model.custom.resolved import Resolved, resolve
from adamctl.model.description import (
    Conv2D,
    Custom,
    Dense,
    Dropout,
    L2Pool2D,
    Layer,
    Local2D,
    LocalContrastNorm,
    Logistic,
    LossName,
    MaxPool2D,
    Model,
    Padding,
    Softmax,
    pair,
)

BuiltIn: TypeAlias = Conv2D | MaxPool2D | Dense | Dropout | Softmax | Local2D | L2Pool2D | LocalContrastNorm | Logistic
HEAD_OF_LOSS: dict[LossName, type[Dense | Softmax | Logistic]] = {
    "cross_entropy": Softmax,
    "logistic": Logistic,
    "mean_squared_error": Dense,
}
"""Loss -> the last layer that it needs, for losses that need a certain one."""


@dataclass(frozen=True)
class LayerShape:
    """One layer with its place in the network.

    Attributes:
        index: position in `Model.layers`, from 0.
        name: unique in the network: type and ordinal within the type, e.g. `conv2d1`, `dense2`, `softmax1`; of a layer
            of the user's own, its class's name.
        layer: the description.
        input: shape of one input example, without the batch axis.
        output: shape of one output example.
        connections: multiply-accumulates of one example's forward pass (Adam 4.3.1 counts these as connections).
    """

    index: int
    name: str
    layer: Layer
    input: tuple[int, ...]
    output: tuple[int, ...]
    connections: int

    @property
    def own(self) -> Resolved | None:
        """What its class says of it, if it is a layer of the user's own."""
        return resolve(self.layer, self.input, self.name) if isinstance(self.layer, Custom) else None


def window_output(size: int, window: int, stride: int, padding: Padding) -> int:
    """Returns how many windows fit: floor((size - window) / stride) + 1 when valid, ceil(size / stride) when same."""
    return -(-size // stride) if padding == "same" else (size - window) // stride + 1


def same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    """Returns the zeros (before, after) that make `ceil(size / stride)` windows fit; the odd one goes after."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def infer(model: Model) -> tuple[LayerShape, ...]:
    """Returns the shapes of all layers in order.

    Raises:
        ConfigurationError: a size is not positive, a window does not fit, an image layer follows a flat one, or the
            loss does not fit the last layer. The message names the layer as `model.layers[i]`.
    """
    if len(model.input) not in (1, 3) or any(extent < 1 for extent in model.input):
        raise ConfigurationError(
            f"model.input: expected [features] or [height, width, channels], all at least 1; found {list(model.input)}"
        )
    if not model.layers:
        raise ConfigurationError("model.layers: expected at least one layer, found none")
    shapes: list[LayerShape] = []
    ordinals: dict[str, int] = {}
    current = model.input
    for index, layer in enumerate(model.layers):
        where = f"model.layers[{index}] ({written_type(layer)})"
        if isinstance(layer, Custom):
            own = resolve(layer, current, where)
            kind, output = own.name, own.output
            connections = sum(prod(one.shape) for _, one in own.parameters if not one.shared)
        else:
            kind = written_type(layer)
            output, connections = _apply(layer, current, where)
        ordinals[kind] = ordinals.get(kind, 0) + 1
        shapes.append(LayerShape(index, f"{kind}{ordinals[kind]}", layer, current, output, connections))
        current = output
    _check_head(model, current)
    return tuple(shapes)


def _check_head(model: Model, output: tuple[int, ...]) -> None:
    for index, layer in enumerate(model.layers[:-1]):
        if isinstance(layer, (Softmax, Logistic)):
            raise ConfigurationError(
                f"model.layers[{index}]: {written_type(layer)} is the last layer; "
                f"found {len(model.layers) - 1 - index} after it"
            )
    last = model.layers[-1]
    if model.loss not in get_args(LossName) and not is_custom_loss(model.loss):
        names = ", ".join(get_args(LossName))
        raise ConfigurationError(f"model.loss: found {model.loss!r}; expected {names} or package.module:Class")
    needed = HEAD_OF_LOSS.get(model.loss)  # type: ignore[call-overload]
    if needed is not None and not isinstance(last, needed):
        raise ConfigurationError(
            f"model.loss: {model.loss} needs {_tag(needed)} as the last layer; found {written_type(last)}. "
            f'End with {_tag(needed)} or set loss = "{_loss_for(last)}"'
        )
    if isinstance(last, Custom) and len(output) == 1:
        return
    if not isinstance(last, (Dense, Softmax, Logistic)):
        raise ConfigurationError(
            f"model.layers[{len(model.layers) - 1}]: the last layer must be dense, softmax or logistic; "
            f"found {written_type(last)}"
        )


def written_type(layer: Layer) -> str:
    """Returns a layer's `type` as users write it."""
    return layer.path if isinstance(layer, Custom) else _tag(type(layer))


def _tag(kind: type[Layer]) -> str:
    return str(kind.__struct_config__.tag)


def _loss_for(last: Layer) -> LossName:
    """Returns a loss of labels that the last layer fits."""
    if isinstance(last, Dense):
        return "squared_error"
    return next((loss for loss, head in HEAD_OF_LOSS.items() if isinstance(last, head)), "squared_error")


def _apply(layer: BuiltIn, shape: tuple[int, ...], where: str) -> tuple[tuple[int, ...], int]:
    """Returns (output shape, connections) of one layer on one example."""
    if isinstance(layer, (Conv2D, Local2D)):
        _positive(where, filters=layer.filters, kernel=layer.kernel, stride=layer.stride)
        _check_init(layer, where)
        height, width = _windows(where, shape, pair(layer.kernel), pair(layer.stride), layer.padding)
        connections = (
            height * width * layer.filters * prod(pair(layer.kernel)) * shape[2] // _groups(layer, shape, where)
        )
        return (height, width, layer.filters), connections
    if isinstance(layer, (MaxPool2D, L2Pool2D)):
        stride = layer.size if layer.stride is None else layer.stride
        _positive(where, size=layer.size, stride=stride)
        height, width = _windows(where, shape, pair(layer.size), pair(stride), "valid")
        return (height, width, shape[2]), 0
    if isinstance(layer, LocalContrastNorm):
        _check_contrast(layer, shape, where)
        return shape, 0
    if isinstance(layer, Dropout):
        if not 0.0 <= layer.rate < 1.0:
            raise ConfigurationError(f"{where}: rate must be at least 0 and below 1; found {layer.rate}")
        return shape, 0
    _positive(where, units=layer.units)
    _check_init(layer, where)
    return (layer.units,), prod(shape) * layer.units


def _groups(layer: Conv2D | Local2D, shape: tuple[int, ...], where: str) -> int:
    groups = layer.groups if isinstance(layer, Conv2D) else 1
    _positive(where, groups=groups)
    if shape[2] % groups or layer.filters % groups:
        raise ConfigurationError(
            f"{where}: groups must divide both the {shape[2]} channels and the {layer.filters} filters; found {groups}"
        )
    return groups


def _check_contrast(layer: LocalContrastNorm, shape: tuple[int, ...], where: str) -> None:
    _image(where, shape)
    if any(extent < 1 or extent % 2 == 0 for extent in pair(layer.size)):
        raise ConfigurationError(f"{where}: size must be odd, so that a window has a centre; found {layer.size}")
    if not 0.0 < layer.deviation_min < inf:
        raise ConfigurationError(f"{where}: deviation_min must be above 0 and finite; found {layer.deviation_min}")


def _check_init(layer: Conv2D | Local2D | Dense | Softmax | Logistic, where: str) -> None:
    if isinstance(layer.init, float) and not isfinite(layer.init):
        raise ConfigurationError(f"{where}: init must be finite; found {layer.init}")


def _positive(where: str, **sizes: int | tuple[int, int]) -> None:
    for key, size in sizes.items():
        if any(extent < 1 for extent in (size if isinstance(size, tuple) else (size,))):
            raise ConfigurationError(f"{where}: {key} must be at least 1; found {size}")


def _image(where: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise ConfigurationError(f"{where}: expected an image [height, width, channels]; found shape {list(shape)}")


def _windows(
    where: str, shape: tuple[int, ...], window: tuple[int, int], stride: tuple[int, int], padding: Padding
) -> tuple[int, int]:
    _image(where, shape)
    extents = tuple(window_output(shape[axis], window[axis], stride[axis], padding) for axis in (0, 1))
    if extents[0] < 1 or extents[1] < 1:
        raise ConfigurationError(
            f"{where}: a window of {window[0]}x{window[1]} does not fit an input of {shape[0]}x{shape[1]}; "
            'use a smaller window or padding = "same"'
        )
    return extents[0], extents[1]
