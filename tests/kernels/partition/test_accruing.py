"""What flights keep: factors of dense layers, whose product is the gradient."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from adamctl.kernels.backend import Backend
from adamctl.kernels.native import address_of
from adamctl.kernels.partition.accruing import WORDS, Accruing, KeptFactors, SlotPlace
from adamctl.kernels.partition.stages import StageCut, cut_network
from adamctl.model.description import Model
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import BATCH, IMAGES, NINE, ROWS_AND_UNITS, UNEVEN, VECTOR, small_integers

FLIGHTS = 3
CASES: dict[str, tuple[Model, list[StageCut]]] = {
    "images": (IMAGES, ROWS_AND_UNITS),
    "uneven": (IMAGES, UNEVEN),
    "nine": (VECTOR, NINE),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("keeps", ["beside", "instead"])
@pytest.mark.parametrize("norm_max", [None, 0.05, 1e3])
def test_the_product_of_kept_factors_is_the_gradient(
    case: str, keeps: Literal["beside", "instead"], norm_max: float | None, backend: Backend
) -> None:
    model, cuts = CASES[case]
    weights, _ = small_integers(model, 3)
    weights = [weight * np.float32(0.3) for weight in weights]
    batches = [small_integers(model, seed)[1] for seed in range(FLIGHTS)]
    network = cut_network(model, cuts, backend)
    rate = 0.0  # so that all make the same gradients
    kept = Replica(network, BATCH, 1, weights, clip_norm=norm_max, accrues=True, keeps=keeps)
    plain = Replica(network, BATCH, 1, weights, clip_norm=norm_max, accrues=True)
    losses, clipped = kept.train(batches, rate)
    assert (losses, clipped) == plain.train(batches, rate)
    factored = 0
    for own, beside, member in zip(kept.own, plain.own, kept.members, strict=True):
        factors = {one.tensor: one for one in own.factors}
        found, right = (member.tensors.views(one.slots[1]) for one in (own, beside))
        for (tensor, rows), gradient, expected in zip(member.tensors.held, found, right, strict=True):
            scale = max(float(np.abs(expected).max(initial=0.0)), 1e-6)
            if tensor in factors:
                factored += 1
                columns, one = slice(*rows), factors[tensor]
                errors, activations = one.errors[1][: FLIGHTS * BATCH], one.activations[1][: FLIGHTS * BATCH]
                np.testing.assert_allclose(errors[:, columns].T @ activations, expected, atol=2e-5 * scale)
                assert np.isnan(np.delete(errors, np.arange(*rows), axis=1)).all(), "only its own columns are written"
                assert np.isnan(one.errors[1][FLIGHTS * BATCH :]).all() and np.isnan(one.activations[0]).all()
                if keeps == "instead":
                    assert not gradient.any()
                    continue
            np.testing.assert_allclose(gradient, expected, atol=2e-5 * scale)
    assert factored


def test_examples_that_a_slot_holds_come_before() -> None:
    slots = [np.zeros(16, np.float32) for _ in range(2)]
    errors, activations = ([np.zeros((8, size), np.float32) for _ in range(2)] for size in (3, 5))
    accruing = Accruing(slots, None, None, [KeptFactors(4, (1, 3), errors, activations)])
    words = accruing.addresses(SlotPlace(1, 6))
    assert words.tolist() == [
        address_of(one) for one in (slots[1], accruing.filled[1:], errors[1][6:], activations[1][6:])
    ]
    assert list(accruing.stand_ins())[2:] == [WORDS, WORDS + 1]


def test_gradients_are_computed_where_they_are_applied() -> None:
    slots = [np.zeros(16, np.float32)]
    with pytest.raises(ValueError, match="expected gradients of all tensors"):
        Accruing(slots, slots[0], skips=True)
