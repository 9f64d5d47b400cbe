"""A whole network's loss and gradient against PyTorch's, in the slow suite where PyTorch is installed."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.step.network import Network
from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax
from adamctl.model.initial import initial_rows
from tests.kernels.kernel_checks import BACKENDS

pytestmark = pytest.mark.slow
ADAM_MNIST = Model(
    (28, 28, 1),
    (
        Conv2D(10, 5, activation="relu"),
        MaxPool2D(2),
        Conv2D(20, 5, activation="relu"),
        MaxPool2D(2),
        Dense(400, "relu"),
        Dense(400, "relu"),
        Softmax(10),
    ),
)
OTHERS = Model(
    (17, 15, 3),
    (
        Conv2D(12, 3, stride=2, activation="tanh"),
        Conv2D(9, 3, padding="same", activation="sigmoid", groups=3),
        MaxPool2D(3, 2),
        Dense(30, "tanh"),
        Softmax(10),
    ),
)


def torch_loss(torch, model, parameters, images, labels):
    """The same network in PyTorch: channels first inside, flattened row by row before dense layers."""
    functions = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, None: lambda x: x}
    values, rest = torch.from_numpy(images).permute(0, 3, 1, 2), iter(parameters)
    for layer in model.layers:
        if isinstance(layer, MaxPool2D):
            values = torch.nn.functional.max_pool2d(values, layer.size, layer.stride or layer.size)
            continue
        weight, bias = next(rest), next(rest)
        if isinstance(layer, Conv2D):
            padding = layer.padding if layer.stride == 1 else 0
            weight = weight.permute(0, 3, 1, 2)
            values = torch.nn.functional.conv2d(values, weight, bias, layer.stride, padding, groups=layer.groups)
        else:
            flat = values.permute(0, 2, 3, 1) if values.ndim == 4 else values
            values = torch.nn.functional.linear(flat.reshape(len(images), -1), weight, bias)
        values = functions[getattr(layer, "activation", None)](values)
    return torch.nn.functional.cross_entropy(values, torch.from_numpy(labels))


OVERLAPPING = Model(
    (23, 19, 3),
    (
        Conv2D(20, 7, padding="same", activation="relu"),
        MaxPool2D(3, 2),
        Conv2D(35, 5, padding="same", activation="relu"),
        MaxPool2D(3, 2),
        Conv2D(17, 3, padding="same", activation="relu"),
        Conv2D(30, 3, padding="same", activation="relu"),
        Dense(30, "relu"),
        Softmax(10),
    ),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [ADAM_MNIST, OTHERS, OVERLAPPING], ids=["adam mnist", "others", "overlapping"])
def test_loss_and_gradient_equal_pytorchs(backend, model):
    """float32, batch 16: loss to 1e-5, each gradient to 1e-4 of its largest element."""
    torch = pytest.importorskip("torch")
    network = Network(model, 16, backend)
    flat = np.zeros(network.flat_size, np.float32)
    for number, (tensor, view) in enumerate(zip(network.tensors, network.views(flat), strict=True)):
        view[...] = initial_rows(tensor, number, 0, tensor.shape[0], 1).reshape(tensor.shape)
    generator = np.random.default_rng(2)
    images = generator.random((16, *model.input), np.float32)
    labels = generator.integers(0, 10, 16)
    context = network.context()
    result = network.step(context, flat, images, labels)
    parameters = [torch.from_numpy(view.copy()).requires_grad_() for view in network.views(flat)]
    loss = torch_loss(torch, model, parameters, images, labels)
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    for tensor, ours, theirs in zip(network.tensors, context.gradient_views, parameters, strict=True):
        scale = float(theirs.grad.abs().max())
        np.testing.assert_allclose(ours, theirs.grad.numpy(), atol=1e-4 * scale, rtol=0, err_msg=tensor.name)
