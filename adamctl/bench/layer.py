"""What a layer of one's own costs with native calls: relus written as a user writes them against built-in ones.

The network is Adam's for MNIST (4.3.3). Both kinds compute the same: the user's relus stand after the pooling, where
built-in ones are in the convolution, since the larger of two numbers is rectified as well as both are.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from adamctl.bench.bars import Bar, Progress, row_of
from adamctl.bench.kernels.sample_models import ADAM_MNIST
from adamctl.bench.report import make_report
from adamctl.kernels.step.network import Network
from adamctl.model.description import Conv2D, Custom, Dense, Layer, MaxPool2D, Model
from adamctl.model.initial import initial_rows

BARS = {
    "step": Bar("time of a training step with relus of one's own / with built-in ones", 1.02),
    "predict": Bar("time to predict a batch with relus of one's own / with built-in ones", 1.02),
}
PACKAGES = ("numpy", "numba")
OWN = Custom("relu")


def with_own_relus(model: Model) -> Model:
    """Returns the model with a layer in place of each `activation = "relu"`, after the pooling that follows."""
    layers: list[Layer] = []
    waits = False
    for layer, following in zip(model.layers, (*model.layers[1:], None), strict=True):
        if isinstance(layer, (Conv2D, Dense)) and layer.activation == "relu":
            layer, waits = msgspec.structs.replace(layer, activation=None), True
        layers.append(layer)
        if waits and not isinstance(following, MaxPool2D):
            layers.append(OWN)
            waits = False
    return msgspec.structs.replace(model, layers=tuple(layers))


def run_layer_benchmark(
    batch: int = 32,
    rounds: int = 15,
    seconds: float = 0.5,
    model: Model = ADAM_MNIST,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Returns the ratios of both bars: medians of rounds in which the two kinds take turns."""
    networks = [Network(model, batch), Network(with_own_relus(model), batch)]
    flat = np.zeros(networks[0].flat_size, np.float32)
    for index, (tensor, view) in enumerate(zip(networks[0].tensors, networks[0].views(flat), strict=True)):
        view[...] = initial_rows(tensor, index, 0, tensor.shape[0], 7).reshape(tensor.shape)
    generator = np.random.default_rng(7)
    images = generator.random((batch, *model.input), np.float32)
    labels = generator.integers(0, networks[0].shapes[-1].output[0], batch)
    contexts = [network.context() for network in networks]
    steps: list[Callable[[], object]] = [
        lambda network=network, context=context: network.step(context, flat, images, labels)  # type: ignore[misc]
        for network, context in zip(networks, contexts, strict=True)
    ]
    predictions: list[Callable[[], object]] = [
        lambda network=network, context=context: network.predict(context, flat, images)  # type: ignore[misc]
        for network, context in zip(networks, contexts, strict=True)
    ]
    load, rows = os.getloadavg()[0], []
    with threadpool_limits(limits=1, user_api="blas"):
        for network, context in zip(networks, contexts, strict=True):
            network.prepare(context, flat)
            network.prepare_predictions(context, flat)
        for name, calls in (("step", steps), ("predict", predictions)):
            progress(name)
            times = [_times(calls, seconds) for _ in range(rounds)]
            found = {
                "ratio": statistics.median(own / built_in for built_in, own in times),
                "built_in_us": statistics.median(one for one, _ in times) * 1e6,
                "own_us": statistics.median(own for _, own in times) * 1e6,
                "native": networks[1].is_native(flat),
                "batch": batch,
            }
            rows.append(row_of(name, BARS[name], found, load))
    return make_report("layer", PACKAGES, rows)


def _times(calls: list[Callable[[], object]], seconds: float) -> tuple[float, float]:
    """Returns the seconds of a call of each kind; they take turns in short pieces, so that both meet the same load."""
    spent, made = [0.0, 0.0], [0, 0]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not all(made):
        for number, call in enumerate(calls):
            began = time.perf_counter()
            for _ in range(10):
                call()
            spent[number] += time.perf_counter() - began
            made[number] += 10
    return spent[0] / made[0], spent[1] / made[1]
