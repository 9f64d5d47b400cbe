"""Partitions clip, accrue and apply as one network would."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.backend import Backend
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.partition.program import Batch, Row
from adamctl.kernels.partition.stages import StageCut, cut_network
from adamctl.kernels.partition.update import Clipping
from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Network
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import BATCH, IMAGES, ROWS_AND_UNITS, UNEVEN, cut, small_integers

RATE = 0.125
ALONE = cut(IMAGES, [("rows", [5]), ("rows", [4]), ("units", [7]), ("units", [5])], {0: 1})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cuts", [ROWS_AND_UNITS, UNEVEN, ALONE], ids=["even", "uneven", "one partition"])
@pytest.mark.parametrize("norm_max", [None, 0.05, 1e3])
def test_a_flight_is_clipped_and_applied_as_a_step(
    cuts: list[StageCut], norm_max: float | None, backend: Backend
) -> None:
    weights, _ = small_integers(IMAGES, 3)
    weights = [weight * np.float32(0.3) for weight in weights]
    batches = [small_integers(IMAGES, seed)[1] for seed in range(3)]

    network = Network(IMAGES, BATCH, backend)
    context = network.context()
    flat, slot = np.zeros(network.flat_size, np.float32), np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    clip = LayerNormClip(network, context, norm_max) if norm_max is not None else None
    accrual, losses = Accrual(backend), []
    for number, batch in enumerate(batches):
        made = network.step(context, flat, batch.images, batch.labels)
        losses.append(made.loss * BATCH)
        if clip is not None:
            clip.apply()
        accrual.accrue_and_apply(slot, flat, context.gradient, RATE, not number)

    replica = Replica(cut_network(IMAGES, cuts, backend), BATCH, 1, weights, clip_norm=norm_max, accrues=True)
    made_losses, clipped = replica.train(batches, RATE)
    np.testing.assert_allclose(made_losses, losses, rtol=1e-5)
    assert clipped == (0 if clip is None else clip.clipped)
    for found, right in zip(
        replica.whole_of([member.weights for member in replica.own]), network.views(flat), strict=True
    ):
        np.testing.assert_allclose(found, right, atol=2e-5 * float(np.abs(right).max()))
    for found, right in zip(
        replica.whole_of([member.slots[1] for member in replica.own]), network.views(slot), strict=True
    ):
        np.testing.assert_allclose(found, right, atol=2e-5 * max(float(np.abs(right).max()), 1e-3))
    assert not any(member.slots[0].any() for member in replica.own), "the other slot is free"


def test_squares_that_rounding_makes_negative_are_none() -> None:
    """The square of E^T A is summed from E E^T and A A^T, in which small ones cancel."""
    weights, _ = small_integers(IMAGES, 3)
    (member,) = Replica(cut_network(IMAGES, ALONE, "numpy"), BATCH, 1, weights).members
    squares, row = np.full(len(ALONE), -1e-12), Row()
    squares[-1] = 4.0
    Clipping(member.arrays(0), 1.0, None)._scale([squares], row)
    assert row.clipped == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_is_not_finite_is_not_scaled(backend: Backend) -> None:
    weights, batch = small_integers(IMAGES, 3)
    weights[0][0] = np.inf
    replica = Replica(cut_network(IMAGES, UNEVEN, backend), BATCH, 1, weights, clip_norm=1.0)
    with np.errstate(all="ignore"):
        gradients, _, _ = replica.run([Batch(batch.images, batch.labels)])[0]
    assert not all(np.isfinite(one).all() for found in gradients for one in found)
