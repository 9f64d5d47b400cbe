"""How far ahead of fetched weights a gradient is computed: by the mean age of gradients and what the rule keeps."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.roles.worker.core.foresight import Foresight, Momentum, Way

SHARDS = 3


def pushes(number: int | list[int]) -> np.ndarray:
    return np.broadcast_to(np.asarray(number, np.int64), SHARDS)


def of_age(kept: float, age: int) -> Momentum:
    momentum = Momentum(kept)
    for _ in range(1000):
        momentum.told([age] * SHARDS)
    return momentum


def test_nothing_is_known_of_the_first_weights() -> None:
    assert of_age(0.9, 1).arrived(pushes(5)) == Foresight(Way.AS_THEY_ARE)


@pytest.mark.parametrize(("kept", "age", "updates"), [(0.9, 0, 0.0), (0.9, 1, 1.0), (0.9, 3, 2.71), (0.5, 2, 1.5)])
def test_the_updates_that_come_meanwhile_each_keep_their_share_of_the_one_before(
    kept: float, age: int, updates: float
) -> None:
    momentum = of_age(kept, age)
    assert momentum.updates_ahead == pytest.approx(updates)
    momentum.arrived(pushes(5))
    assert momentum.arrived(pushes(6)) == (Way.AHEAD, pytest.approx(updates))
    assert momentum.arrived(pushes(10)) == (Way.AHEAD, pytest.approx(updates / 4)), "the change of four updates"
    assert momentum.arrived(pushes([11, 10, 10])) == (Way.AHEAD, pytest.approx(updates)), "one, where there was any"


def test_weights_that_contain_nothing_new_are_left_as_they_were_made() -> None:
    momentum = of_age(0.9, 1)
    momentum.arrived(pushes(5))
    momentum.arrived(pushes(6))
    assert momentum.arrived(pushes(6)) == Foresight(Way.KEEP)
    assert momentum.arrived(pushes(7)) == (Way.AHEAD, pytest.approx(1.0))


def test_after_servers_have_lost_pushes_weights_are_taken_as_they_are() -> None:
    momentum = of_age(0.9, 1)
    momentum.arrived(pushes(50))
    assert momentum.arrived(pushes(40)) == Foresight(Way.AS_THEY_ARE)
    assert momentum.arrived(pushes(41)) == (Way.AHEAD, pytest.approx(1.0))


def test_one_replica_alone_looks_nowhere() -> None:
    momentum = Momentum(0.9)
    momentum.arrived(pushes(0))
    for number in range(1, 20):
        momentum.told([0] * SHARDS)
        assert momentum.arrived(pushes(number)) == Foresight(Way.AHEAD, 0.0)
        momentum.told([])


def steepest(looks_ahead: bool, delay: int, steps: int = 60, lr: float = 0.02, kept: float = 0.9) -> float:
    """Returns the mean loss of momentum on a quadratic whose gradients come `delay` pushes late."""
    curvature = np.array([0.5, 2.0, 8.0])
    weights, velocity = np.ones(3), np.zeros(3)
    fetched, momentum, losses = [weights], Momentum(kept), []
    for number in range(steps):
        base = max(number - delay, 0)
        foresight = momentum.arrived(np.array([base]))
        at = fetched[base]
        if looks_ahead and foresight.way is Way.AHEAD:
            at = at + foresight.factor * (fetched[base] - fetched[base - 1])
        velocity = kept * velocity + curvature * at
        weights = weights - lr * velocity
        fetched.append(weights)
        momentum.told([number - base])
        losses.append(float(curvature @ weights**2))
    return float(np.mean(losses))


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_late_gradients_cost_less_than_half_as_much_with_it(delay: int) -> None:
    none = steepest(False, 0)
    assert steepest(True, 0) == none
    assert steepest(True, delay) - none < (steepest(False, delay) - none) / 2
