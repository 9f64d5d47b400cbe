"""Adam 3.2.1: everything a step needs is there before training; a step allocates no array.

What a step takes at its peak is counted, arrays and Python's own objects together. Batches are so large that the
smallest array with a row per example is larger than what is allowed. The NumPy and numexpr implementations make
temporary arrays where a convolution's products are put among other groups' outputs and where an activation's
derivative is taken; they are the reference, and bounded in `tests/papers/test_adam.py`.
"""

from __future__ import annotations

import tracemalloc
from statistics import median

import numpy as np
import pytest

from adamctl.kernels.backend import installed
from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Network
from adamctl.model import description as d
from adamctl.model.layout import build_layout
from adamctl.roles.worker.replica import Replica

BATCH = 1024
ALLOWED_BYTES = 8 << 10  # views, tuples and numbers of one step; a row per example takes 4 * 1024 * units
STEPS = 6

MODELS = {
    "images": d.Model(
        (12, 11, 2),
        (
            d.Conv2D(6, 3, activation="relu"), d.MaxPool2D(2), d.Conv2D(5, 2, padding="same", activation="relu"),
            d.Dropout(0.2), d.Dense(9, "relu"), d.Softmax(4),
        ),
    ),
    "flat": d.Model(
        (7,), (d.Dropout(0.1), d.Dense(8, "sigmoid"), d.Dense(8, "tanh"), d.Dense(8, "relu"), d.Softmax(4))
    ),
    "DistBelief's images": d.Model(
        (9, 9, 2), (d.Local2D(3, 3), d.L2Pool2D(2), d.LocalContrastNorm(3), d.Logistic(4)), "logistic"
    ),
}  # fmt: skip


@pytest.mark.skipif("numba" not in installed(), reason="of the compiled implementation")
@pytest.mark.parametrize("sends_factors", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_3_2_1_a_step_allocates_no_array(name: str, sends_factors: bool) -> None:
    network, layout = Network(MODELS[name], BATCH, "numba"), build_layout(MODELS[name], 1)
    dense = ("dense", "softmax", "logistic")
    factored = tuple(
        index
        for index, tensor in enumerate(layout.tensors)
        if sends_factors and tensor.name.startswith(dense) and tensor.name.endswith("weight")
    )
    replica = Replica(network, layout, 1, BATCH, 2, 2, factored, applies_locally=not sends_factors)
    generator = np.random.default_rng(0)
    replica.weights[:] = 0.1 * generator.standard_normal(len(replica.weights), np.float32)
    images = generator.standard_normal((BATCH, *network.model.input), np.float32)
    labels = generator.integers(0, 4, BATCH).astype(np.int32)
    context = network.context()
    clip = LayerNormClip(network, context, 0.01)

    def step() -> None:
        slot = replica.begin_step(0)
        assert slot is not None
        network.step(context, replica.weight_views, images, labels, sends_factors)
        clip.apply(sends_factors, sends_factors)
        actions = replica.end_step(0, slot, context, BATCH, 0.1, 0.1)
        if actions.push is not None:
            replica.acknowledged(actions.push)

    for _ in range(STEPS):
        step()
    tracemalloc.start()
    try:
        step()
        peaks = []
        for _ in range(STEPS):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            step()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        assert median(peaks) < ALLOWED_BYTES, "threads of other tests may allocate during a step"
    finally:
        tracemalloc.stop()
    replica.memory.close()
