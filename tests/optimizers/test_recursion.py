"""The recursion on coefficients gives the direction of the recursion on vectors, whatever pairs come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from adamctl.kernels.array import Array
from adamctl.optimizers.recursion import History, has_curvature


def two_loop(g: Array, pairs: list[tuple[Array, Array]]) -> Array:
    """Algorithm 7.4 of Nocedal and Wright's "Numerical Optimization", on vectors in float64; returns -H g."""
    q, alphas = g.astype(float), []
    for s, y in reversed(pairs):
        alphas.append((s @ q) / (s @ y))
        q = q - alphas[-1] * y
    if pairs:
        s, y = pairs[-1]
        q = q * (s @ y) / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + s * (alpha - (y @ q) / (s @ y))
    return -q


def quadratic_pairs(condition: float, count: int, seed: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yields gradients and pairs that steps of random length down a quadratic leave, as float32 holds them."""
    chance = np.random.default_rng(seed)
    scales = np.geomspace(1, condition, 50)
    x = chance.normal(size=50)
    for _ in range(count):
        s = (-scales * x * chance.uniform(0.1, 1) / condition + 1e-3 * chance.normal(size=50)).astype(np.float32)
        y = (scales * s).astype(np.float32)
        x = x + s
        yield (scales * x).astype(np.float32).astype(float), s.astype(float), y.astype(float)


def combined(history: History, g: Array, pairs: dict[int, tuple[Array, Array]]) -> Array:
    kept = [pairs[slot] for slot in history.slots]
    found = history.direction([float(s @ g) for s, _ in kept], [float(y @ g) for _, y in kept])
    vectors = [found.gradient * g]
    vectors += [factor * s for factor, (s, _) in zip(found.s, kept, strict=True)]
    vectors += [factor * y for factor, (_, y) in zip(found.y, kept, strict=True)]
    return np.sum(vectors, axis=0)


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("length", [1, 5, 10, 31])
def test_the_direction_is_that_of_the_recursion_on_vectors(condition: float, length: int) -> None:
    history, slots, ages = History(length), {}, []
    for number, (g, s, y) in enumerate(quadratic_pairs(condition, 40, seed=length)):
        kept = [slots[slot] for slot in history.slots]
        slots[history.next_slot] = (s, y)
        history.add([one @ y for one, _ in kept], [one @ y for _, one in kept], s @ y, y @ y)
        ages = [*ages, (s, y)][-length:]
        if number == 20:
            history = History.of_state(length, json.loads(json.dumps(history.state())))
        if number == 30:
            history.clear()
            ages = []
        expected = two_loop(g, ages)
        assert np.linalg.norm(combined(history, g, slots) - expected) <= 1e-6 * np.linalg.norm(expected), number


def test_slots_are_used_in_turn() -> None:
    history, seen = History(3), []
    for _ in range(5):
        seen.append(history.next_slot)
        count = len(history.pairs)
        history.add([0.0] * count, [0.0] * count, 1.0, 1.0)
    assert (seen, history.slots) == ([0, 1, 2, 0, 1], [2, 0, 1])


@pytest.mark.parametrize(
    ("sigma_eta", "kept"),
    [(1.0, True), (3e-8, True), (1e-8, False), (0.0, False), (-1.0, False), (float("nan"), False)],
)
def test_a_pair_is_kept_only_if_the_loss_curves_up_along_it(sigma_eta: float, kept: bool) -> None:
    assert has_curvature(sigma_eta, 4.0, 1.0) == kept
