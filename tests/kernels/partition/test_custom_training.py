"""A layer of the user's own, in 30 lines of numpy, trains in several partitions as in one."""

from __future__ import annotations

import numpy as np
import pytest

import adamctl as adam
from adamctl.kernels.backend import choose
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import cut_network, cuts_of
from adamctl.kernels.step.network import Network
from adamctl.model.initial import initial_rows
from adamctl.model.partition.rules import make_plan
from tests.custom_layers import Whitening
from tests.kernels.partition.replica import Replica

STEPS, BATCH, RATE = 20, 8, 0.1


@pytest.mark.parametrize("partitions", [2, 3])
def test_whitening_trains_in_partitions_to_the_same_losses(partitions: int) -> None:
    """Bar: within 1e-5 of the loss at each step."""
    layers = [Whitening(5), adam.Conv2D(4, 3, activation="relu"), Whitening(3), adam.MaxPool2D(2), adam.Softmax(4)]
    model = adam.Sequential(layers, (14, 12, 2))
    network = Network(model, BATCH)
    weights = [
        initial_rows(tensor, index, 0, tensor.shape[0], 7).reshape(tensor.shape)
        for index, tensor in enumerate(network.tensors)
    ]
    generator = np.random.default_rng(3)
    patterns = generator.standard_normal((4, *model.input)).astype(np.float32)
    batches = []
    for _ in range(STEPS):
        labels = generator.integers(0, 4, BATCH).astype(np.int32)
        noise = generator.standard_normal((BATCH, *model.input)).astype(np.float32)
        batches.append(Batch(patterns[labels] + noise * np.float32(0.5), labels))
    flat = np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    context, losses = network.context(), []
    for batch in batches:
        losses.append(network.step(context, flat, batch.images, batch.labels).loss)
        flat -= np.float32(RATE) * context.gradient

    plan = make_plan(model, partitions)
    assert [stage.cut.axis for stage in plan.stages] == ["rows", "rows", "rows", "rows", "units"]
    replica = Replica(cut_network(model, cuts_of(plan), choose()), BATCH, 1, weights, accrues=True)
    found, _ = replica.train(batches, RATE)
    np.testing.assert_allclose(np.array(found) / BATCH, losses, atol=1e-5)
    assert losses[-1] < 0.5 * losses[0], "it learns"
