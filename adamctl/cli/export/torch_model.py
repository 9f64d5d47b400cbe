"""A model as PyTorch's `nn.Sequential`: its modules, and its parameters in PyTorch's order and with PyTorch's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.model.custom.loss import is_custom_loss
from adamctl.model.description import (
    Activation,
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Logistic,
    MaxPool2D,
    Model,
    Size,
    Softmax,
    pair,
)
from adamctl.model.shapes import LayerShape, infer, same_padding, written_type

Floats: TypeAlias = NDArray[np.float32]
_ACTIVATIONS: dict[Activation, str] = {"relu": "nn.ReLU()", "tanh": "nn.Tanh()", "sigmoid": "nn.Sigmoid()"}


@dataclass(frozen=True)
class TorchModule:
    """One module of the `nn.Sequential`. `layer` names our layer whose parameters it has; "" if it has none.

    Attributes:
        image: [height, width, channels] that a linear module's inputs were flattened from, or () if they were not.
    """

    expression: str
    layer: str = ""
    image: tuple[int, ...] = ()


def torch_modules(model: Model) -> list[TorchModule]:
    """Returns the modules that compute what the model computes from images [n, channels, height, width], up to logits.

    Raises:
        ConfigurationError: a layer has no equivalent in `torch.nn`.
    """
    modules: list[TorchModule] = []
    for shape in infer(model):
        modules.extend(_modules_of(shape))
    return modules


def _modules_of(shape: LayerShape) -> list[TorchModule]:
    layer = shape.layer
    if isinstance(layer, Conv2D):
        return _convolution(shape, layer)
    if isinstance(layer, (Dense, Softmax, Logistic)):
        activation = layer.activation if isinstance(layer, Dense) else None
        image = shape.input if len(shape.input) == 3 else ()
        linear = TorchModule(f"nn.Linear({int(np.prod(shape.input))}, {layer.units})", shape.name, image)
        return [*([TorchModule("nn.Flatten()")] if image else []), linear, *_activation(activation)]
    if isinstance(layer, MaxPool2D):
        return [TorchModule(f"nn.MaxPool2d({_window(layer.size, layer.stride)})")]
    if isinstance(layer, L2Pool2D):
        return [TorchModule(f"nn.LPPool2d(2, {_window(layer.size, layer.stride)})")]
    if isinstance(layer, Dropout):
        return [TorchModule(f"nn.Dropout({layer.rate})")]
    raise ConfigurationError(
        f"model.layers[{shape.index}] ({written_type(layer)}): torch.nn has no such layer; export with --order adamctl"
    )


def _convolution(shape: LayerShape, layer: Conv2D) -> list[TorchModule]:
    height, width, channels = shape.input
    kernel, stride = pair(layer.kernel), pair(layer.stride)
    (top, bottom), (left, right) = (0, 0), (0, 0)
    if layer.padding == "same":
        top, bottom = same_padding(height, kernel[0], stride[0])
        left, right = same_padding(width, kernel[1], stride[1])
    even = top == bottom and left == right
    options = f", stride={stride}" if stride != (1, 1) else ""
    options += f", padding={(top, left)}" if even and (top or left) else ""
    options += f", groups={layer.groups}" if layer.groups != 1 else ""
    convolution = TorchModule(f"nn.Conv2d({channels}, {layer.filters}, {kernel}{options})", shape.name)
    padding = [] if even else [TorchModule(f"nn.ZeroPad2d({(left, right, top, bottom)})")]
    return [*padding, convolution, *_activation(layer.activation)]


def _activation(activation: Activation | None) -> list[TorchModule]:
    return [TorchModule(_ACTIVATIONS[activation])] if activation else []


def _window(size: Size, stride: Size | None) -> str:
    return f"{pair(size)}, stride={pair(size if stride is None else stride)}"


def module_code(model: Model) -> str:
    """Returns the `nn.Sequential` as Python code to paste; parameters are named by their positions in it."""
    lines = [f"    {module.expression},  # {number}" for number, module in enumerate(torch_modules(model))]
    last = model.layers[-1]
    if isinstance(last, (Softmax, Logistic)):
        kind = "nn.Softmax(1)" if isinstance(last, Softmax) else "nn.Sigmoid()"
        lines[-1] += f"; logits: {kind} turns them into what adamctl predicts"
    elif model.loss == "mean_squared_error":
        lines[-1] += "; what adamctl predicts; its loss is nn.MSELoss()"
    elif is_custom_loss(model.loss):
        lines[-1] += f"; outputs that {model.loss} compares, which is not exported"
    return "\n".join(["nn.Sequential(", *lines, ")"])


def torch_names(model: Model) -> dict[str, str]:
    """Returns our name -> the name in the state_dict, in module order."""
    return {
        f"{module.layer}.{part}": f"{number}.{part}"
        for number, module in enumerate(torch_modules(model))
        if module.layer
        for part in ("weight", "bias")
    }


def to_torch(model: Model, values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Returns a state_dict: convolutions' weights are [filters, channels, height, width]; linear weights expect
    channels first where an image is flattened."""
    names, images = torch_names(model), _images(model)
    return {name: np.ascontiguousarray(_channels_first(values[ours], images, ours)) for ours, name in names.items()}


def from_torch(model: Model, values: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Inverts `to_torch`; arrays whose names or shapes are not the model's are left unchanged."""
    names, images = {theirs: ours for ours, theirs in torch_names(model).items()}, _images(model)
    return {names.get(name, name): _channels_last(array, images, names.get(name, "")) for name, array in values.items()}


def _images(model: Model) -> dict[str, tuple[int, ...]]:
    return {f"{module.layer}.weight": module.image for module in torch_modules(model) if module.layer}


def _channels_first(array: Floats, images: Mapping[str, tuple[int, ...]], name: str) -> Floats:
    if array.ndim == 4:
        return array.transpose(0, 3, 1, 2)
    if images.get(name):
        return array.reshape(-1, *images[name]).transpose(0, 3, 1, 2).reshape(array.shape)
    return array


def _channels_last(array: NDArray[np.generic], images: Mapping[str, tuple[int, ...]], name: str) -> NDArray[np.generic]:
    image = images.get(name, ())
    if array.ndim == 4:
        return array.transpose(0, 2, 3, 1)
    if image and array.ndim == 2 and array.shape[1] == np.prod(image):
        height, width, channels = image
        return array.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(array.shape)
    return array
