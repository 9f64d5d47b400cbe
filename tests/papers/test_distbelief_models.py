"""DistBelief (NIPS 2012), section 5: its image model, in small, is a network that trains.

"The network had three stages, each composed of filtering, pooling and local contrast normalization, where each node in
the filtering layer was connected to a 10x10 patch in the layer below. [...] The output layer consisted of 21 thousand
one-vs-all logistic classifier nodes".
"""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.backend import installed
from adamctl.kernels.layers.make import make_loss
from adamctl.kernels.slicing import OutputSlice
from adamctl.kernels.step.network import Network
from adamctl.model.description import L2Pool2D, Layer, Local2D, LocalContrastNorm, Logistic, Model
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.model.shapes import infer
from tests.tensors import tensor_named


def image_model(side: int, patch: int, filters: int, pool: int, units: int) -> Model:
    """Three stages of filtering, pooling and normalisation, then logistic outputs."""
    stage: tuple[Layer, ...] = (Local2D(filters, patch), L2Pool2D(pool, 2), LocalContrastNorm(3))
    return Model((side, side, 3), (*stage * 3, Logistic(units)), "logistic")


SMALL = image_model(side=28, patch=3, filters=4, pool=2, units=5)


def initial(network: Network) -> np.ndarray:
    flat = np.zeros(network.flat_size, np.float32)
    for number, (tensor, view) in enumerate(zip(network.tensors, network.views(flat), strict=True)):
        view[...] = initial_rows(tensor, number, 0, tensor.shape[0], 1).reshape(tensor.shape)
    return flat


def batch_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    return generator.standard_normal((size, *SMALL.input), np.float32), generator.integers(0, 5, size)


def test_5_each_node_is_connected_to_a_10x10_patch_with_weights_of_its_own() -> None:
    """100x100 pixels, 10x10 patches, 8 nodes to each: 20 million weights in the first filtering layer alone."""
    model = image_model(side=100, patch=10, filters=8, pool=2, units=21_000)
    shapes, layout = infer(model), build_layout(model, 4)
    assert shapes[0].output == (91, 91, 8)
    assert tensor_named(layout, "local2d1.weight").size == 91 * 91 * 8 * 10 * 10 * 3
    assert tensor_named(layout, "logistic1.weight").shape[0] == 21_000
    assert sum(shape.connections for shape in shapes) == sum(
        t.size for t in layout.tensors if t.name.endswith("weight")
    )


@pytest.mark.parametrize("backend", installed())
def test_5_the_image_model_trains(backend: str) -> None:
    network = Network(SMALL, 12, backend)
    context, flat, batch = network.context(), initial(network), batch_of(12)
    losses = []
    for _ in range(25):
        losses.append(network.step(context, flat, *batch).loss)
        flat -= np.float32(0.05) * context.gradient
    assert losses[0] > losses[5] > losses[10] > losses[24]
    assert losses[24] < 0.5 * losses[0]
    assert network.evaluate(context, flat, *batch)[1] == 12


def test_5_the_gradient_of_the_image_model_is_the_slope_of_its_loss() -> None:
    """In float64 through all ten layers, at some parameters of each tensor: relative error below 1e-5."""
    network, loss = Network(SMALL, 2, "numpy"), make_loss("logistic", "numpy")
    views = [view.astype(np.float64) for view in network.views(initial(network))]
    images, labels = batch_of(2)
    buffers = [layer.operation.allocate(2, True, np.float64) for layer in network.layers]
    generator, key = np.random.default_rng(0), np.zeros(2, np.uint32)

    def forward() -> list[np.ndarray]:
        values = [images.astype(np.float64)]
        for layer, own in zip(network.layers, buffers, strict=True):
            weights = [views[index] for index in layer.tensors]
            values.append(layer.operation.forward(values[-1], weights, own, True, key))
        return values

    def mean_loss() -> float:
        return loss.evaluate(forward()[-1], labels).loss_sum / 2

    values, gradients = forward(), [np.zeros_like(view) for view in views]
    error = np.zeros_like(values[-1])
    loss.backward(values[-1], labels, error)
    for layer, own, inputs in reversed(list(zip(network.layers, buffers, values[:-1], strict=True))):
        weights, into = ([arrays[index] for index in layer.tensors] for arrays in (views, gradients))
        error = layer.operation.backward(error, inputs, weights, into, own)
    for view, gradient in zip(views, gradients, strict=True):
        for place in generator.integers(0, view.size, 12):
            kept = view.flat[place]
            view.flat[place] = kept + 1e-6
            above = mean_loss()
            view.flat[place] = kept - 1e-6
            numerical = (above - mean_loss()) / 2e-6
            view.flat[place] = kept
            scale = np.abs(gradient).max()
            assert gradient.flat[place] == pytest.approx(numerical, rel=1e-5, abs=1e-5 * scale + 1e-9)


def test_5_nodes_are_divided_over_machines_by_rows_that_share_only_a_halo() -> None:
    """Figure 1: only "nodes with edges that cross partition boundaries" send their state; no weight is shared."""
    network = Network(SMALL, 2, "numpy")
    filtering = network.layers[0].operation
    halves = [filtering.slice(OutputSlice("rows", *rows)) for rows in ((0, 13), (13, 26))]
    assert [half.inputs[0] for half in halves] == [slice(0, 15), slice(13, 28)]
    assert [half.parameters[0][0] for half in halves] == [slice(0, 13), slice(13, 26)]
