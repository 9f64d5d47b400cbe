"""Clipping by layer norm: short gradients stay, long ones get the limit's length, factors and gradients agree."""

import numpy as np
import pytest

from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Context, Network
from adamctl.model.description import Conv2D, Dense, Model, Softmax

MODEL = Model((6, 6, 1), (Conv2D(3, 3, activation="relu"), Dense(7, "tanh"), Softmax(4)))
BATCH = 5


def stepped(skip_dense_gradients: bool = False, scale: float = 1.0) -> tuple[Network, Context]:
    network = Network(MODEL, BATCH)
    generator = np.random.default_rng(3)
    weights = generator.standard_normal(network.flat_size).astype(np.float32)
    images = (scale * generator.standard_normal((BATCH, 6, 6, 1))).astype(np.float32)
    context = network.context()
    context.gradient[...] = 0
    network.step(context, weights, images, np.arange(BATCH) % 4, skip_dense_gradients)
    return network, context


def layer_norms(network: Network, context: Context) -> list[float]:
    norms = []
    for layer in network.layers:
        parts = [context.gradient_views[index].astype(np.float64) for index in layer.tensors]
        norms.append(float(np.sqrt(sum((part**2).sum() for part in parts))))
    return norms


def test_only_layers_longer_than_the_limit_are_scaled_to_it() -> None:
    network, context = stepped()
    before, gradient = layer_norms(network, context), context.gradient.copy()
    limit = sorted(before)[1]  # one is longer, one is exactly that long, one is shorter
    clip = LayerNormClip(network, context, limit * 1.0001)
    clip.apply()
    expected = [min(norm, limit * 1.0001) for norm in before]
    np.testing.assert_allclose(layer_norms(network, context), expected, rtol=1e-5)
    assert clip.clipped == 1
    changed = [index for index, (a, b) in enumerate(zip(gradient, context.gradient, strict=True)) if a != b]
    longest = network.layers[int(np.argmax(before))]
    places = [(network.tensors[i].offset, network.tensors[i].offset + network.tensors[i].size) for i in longest.tensors]
    assert changed
    assert all(any(start <= index < stop for start, stop in places) for index in changed)


def test_the_direction_stays() -> None:
    network, context = stepped()
    gradient = context.gradient_views[0].copy()
    LayerNormClip(network, context, 0.01).apply()
    ratio = context.gradient_views[0] / gradient
    np.testing.assert_allclose(ratio[gradient != 0], ratio[gradient != 0].mean(), rtol=1e-5)


def test_factors_are_scaled_as_the_gradient_would_be() -> None:
    network, with_gradients = stepped()
    _, without = stepped(skip_dense_gradients=True)
    LayerNormClip(network, with_gradients, 0.05).apply()
    LayerNormClip(network, without, 0.05).apply(skip_dense_gradients=True)
    for layer in network.layers:
        if layer.is_dense:
            factors = without.factors(layer.shape.index)
            assert factors is not None
            product = factors.errors.T @ factors.activations
            expected = with_gradients.gradient_views[layer.tensors[0]]
            np.testing.assert_allclose(product, expected, atol=1e-6)
            kept = with_gradients.factors(layer.shape.index)
            assert kept is not None
            np.testing.assert_allclose(kept.errors, factors.errors, atol=1e-6)
            bias = layer.tensors[1]
            np.testing.assert_allclose(without.gradient_views[bias], with_gradients.gradient_views[bias], atol=1e-6)


def test_a_norm_whose_square_overflows_is_still_clipped() -> None:
    network, context = stepped()
    context.gradient_views[0][...] = 1e25
    LayerNormClip(network, context, 2.0).apply()
    assert np.linalg.norm(layer_norms(network, context)[0]) == pytest.approx(2.0, rel=1e-5)


def test_what_is_not_finite_is_left_for_the_check_that_refuses_it() -> None:
    network, context = stepped()
    context.gradient_views[0].flat[0] = np.nan
    LayerNormClip(network, context, 0.01).apply()
    assert np.isnan(context.gradient_views[0].flat[0])
    assert np.isfinite(context.gradient_views[0]).sum() == context.gradient_views[0].size - 1
