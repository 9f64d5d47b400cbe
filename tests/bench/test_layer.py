"""Both networks of the benchmark compute the same; no time is asserted."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.bench.kernels.sample_models import ADAM_MNIST
from adamctl.bench.layer import OWN, run_layer_benchmark, with_own_relus
from adamctl.kernels.step.network import Network
from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax

SMALL = Model(
    (8, 8, 1), (Conv2D(3, 3, activation="relu"), MaxPool2D(2), Dense(6, "relu"), Dense(5, "relu"), Softmax(3))
)


def test_each_relu_stands_where_it_computes_the_same() -> None:
    kinds = [getattr(layer, "path", type(layer).__name__) for layer in with_own_relus(ADAM_MNIST).layers]
    assert kinds == [
        "Conv2D", "MaxPool2D", "relu", "Conv2D", "MaxPool2D", "relu", "Dense", "relu", "Dense", "relu", "Softmax"
    ]  # fmt: skip
    networks = [Network(SMALL, 4), Network(with_own_relus(SMALL), 4)]
    generator = np.random.default_rng(5)
    flat = generator.standard_normal(networks[0].flat_size).astype(np.float32)
    images, labels = generator.standard_normal((4, 8, 8, 1)).astype(np.float32), np.array([0, 1, 2, 1])
    losses, gradients = [], []
    for network in networks:
        context = network.context()
        losses.append(network.step(context, flat, images, labels).loss)
        gradients.append(context.gradient)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    np.testing.assert_allclose(gradients[0], gradients[1], atol=2e-5 * float(np.abs(gradients[0]).max()))


def test_it_reports_both_bars() -> None:
    report = run_layer_benchmark(4, 1, 0.01, SMALL)
    assert [row["part"] for row in report["results"]] == ["step", "predict"]
    assert all(row["ratio"] > 0 and row["bar"] == "<= 1.02" for row in report["results"])
    assert OWN.path == "relu"
