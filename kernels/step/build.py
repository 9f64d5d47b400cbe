"""Builds the operations of a model from its shapes, with the tensors of the layout that each one uses."""

from __future__ import annotations

from dataclasses import dataclass

from adamctl.kernels.backend import Backend
from adamctl.kernels.layers.conv2d import Conv2D
from adamctl.kernels.layers.convpool import ConvPool
from adamctl.kernels.layers.custom import Custom
from adamctl.kernels.layers.dense import Dense
from adamctl.kernels.layers.dropout import Dropout
from adamctl.kernels.layers.l2pool2d import L2Pool2D
from adamctl.kernels.layers.local2d import Local2D
from adamctl.kernels.layers.local_contrast_norm import LocalContrastNorm
from adamctl.kernels.layers.logistic import Logistic
from adamctl.kernels.layers.maxpool2d import MaxPool2D
from adamctl.kernels.layers.softmax import Softmax
from adamctl.kernels.needed import does_pooling
from adamctl.kernels.operation import Operation
from adamctl.model import description
from adamctl.model.description import Model
from adamctl.model.layout import Tensor
from adamctl.model.shapes import LayerShape


@dataclass(frozen=True)
class NetworkLayer:
    """One operation of a network.

    Attributes:
        shape: its layer in the model; for a fused operation the first layer, which has the parameters.
        operation: computes the layer.
        tensors: indices of its parameters in the layout, in the operation's order (weight, bias).
    """

    shape: LayerShape
    operation: Operation
    tensors: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """Whether the weight's gradient is a product of factors."""
        return isinstance(self.operation, Dense)


def build_layers(
    model: Model, shapes: tuple[LayerShape, ...], tensors: tuple[Tensor, ...], backend: Backend
) -> tuple[NetworkLayer, ...]:
    """Returns the operations of a model in order."""
    layers: list[NetworkLayer] = []
    for shape in shapes:
        owned = tuple(index for index, tensor in enumerate(tensors) if tensor.layer == shape.index)
        operation = build_operation(model, shape, backend)
        if backend == "numba" and layers and isinstance(operation, MaxPool2D):
            before = layers[-1]
            if isinstance(before.operation, Conv2D) and does_pooling(before.shape.layer, shape.layer):
                fused = ConvPool(before.operation, operation)
                layers[-1] = NetworkLayer(before.shape, fused, before.tensors)
                continue
        layers.append(NetworkLayer(shape, operation, owned))
    return tuple(layers)


def build_operation(model: Model, shape: LayerShape, backend: Backend) -> Operation:
    """Returns the operation for one layer of a model, not fused with its neighbours."""
    layer = shape.layer
    if shape.own is not None:
        return Custom(shape.own, shape.name, backend)
    if isinstance(layer, description.Conv2D):
        return Conv2D(
            shape.input, layer.filters, layer.kernel, layer.stride, layer.padding, layer.activation, backend,
            layer.groups,
        )  # fmt: skip
    if isinstance(layer, description.MaxPool2D):
        return MaxPool2D(shape.input, layer.size, layer.stride, backend)
    if isinstance(layer, description.Dense):
        return Dense(shape.input, layer.units, layer.activation, backend)
    if isinstance(layer, description.Dropout):
        return Dropout(shape.input, layer.rate, backend, layer=shape.index)
    if isinstance(layer, description.Local2D):
        return Local2D(shape.input, layer.filters, layer.kernel, layer.stride, layer.padding, layer.activation, backend)
    if isinstance(layer, description.L2Pool2D):
        return L2Pool2D(shape.input, layer.size, layer.stride, backend)
    if isinstance(layer, description.LocalContrastNorm):
        return LocalContrastNorm(shape.input, layer.size, layer.weights, layer.deviation_min, backend)
    if isinstance(layer, description.Logistic):
        return Logistic(shape.input, layer.units, model.loss == "logistic", backend)
    assert isinstance(layer, description.Softmax)
    return Softmax(shape.input, layer.units, model.loss == "cross_entropy", backend)
