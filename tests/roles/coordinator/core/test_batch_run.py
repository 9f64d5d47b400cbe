"""Batch algorithms over servers and workers that are lost: the bits of a run that nothing disturbed."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from adamctl.optimizers.cg import conjugate_gradient
from adamctl.optimizers.descent import DescentSettings
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.optimizers.vectors import Evaluate, Program, Requests, State, Vectors
from adamctl.roles.coordinator.core.bundles import Bundle
from adamctl.wire.constants import ErrorCode
from tests.roles.coordinator.core.batch_cluster import BatchCluster, quadratic

EXAMPLES, SIZE = 24, 7
SETTINGS = LBFGSSettings(history=3)


def cluster(program: Program = lbfgs, settings: Any = SETTINGS, **given: Any) -> BatchCluster:
    part, x = quadratic(SIZE, EXAMPLES)
    return BatchCluster(program, settings, part, x, EXAMPLES, **{"budget": 12, **given})


def cluster_minimum() -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(SIZE)
    generator.standard_normal((EXAMPLES, SIZE))
    return generator.standard_normal(SIZE).astype(np.float32)


def digest(one: BatchCluster) -> str:
    one.to_the_end()
    return hashlib.sha256(one.x.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return digest(cluster(buckets=1, workers=1))


@pytest.mark.parametrize("buckets", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_bits_depend_neither_on_servers_nor_on_workers(buckets: int, workers: int, undisturbed: str) -> None:
    for seed in range(3):
        assert digest(cluster(buckets=buckets, workers=workers, seed=seed)) == undisturbed


def test_it_finds_the_minimum() -> None:
    one = cluster(budget=60)
    assert one.to_the_end() in ("gradient", "change", "precision")
    assert one.x == pytest.approx(cluster_minimum(), abs=1e-3)


@pytest.mark.parametrize("seed", range(40))
def test_faults_leave_the_bits_as_they_are(seed: int, undisturbed: str) -> None:
    one = cluster(seed=seed, faults=0.03, buckets=1 + seed % 3, workers=1 + seed % 2)
    assert digest(one) == undisturbed
    assert one.run.restarts == 0 or one.events == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_bucket_that_is_said_to_be_lost_and_is_not_does_again_what_it_has(seed: int, undisturbed: str) -> None:
    one = cluster(seed=seed, false_alarms=0.05, buckets=1 + seed % 3)
    assert digest(one) == undisturbed and not one.run.restarts


def descent(v: Vectors, settings: Any, state: State) -> Requests[str]:
    """Writes over the point that it has evaluated."""
    h = v.scratch("h")
    while True:
        yield v.evaluate(at=v.x, into=h)
        yield v.commit(v.x.set(v.x - 0.01 * h), state={})


def test_a_commit_whose_point_is_nowhere_any_more_drops_the_history_where_it_cannot_be_made_whole() -> None:
    expected, dropped = digest(cluster(descent, None)), []
    for seed in range(12):
        one = cluster(descent, None, seed=seed, faults=0.03, buckets=3)
        found = digest(one)
        dropped.append(one.run.restarts > 0)
        assert len({bucket.commit for bucket in one.buckets}) == 1 and (dropped[-1] or found == expected), seed
    assert any(dropped) and not all(dropped)


@pytest.mark.parametrize("seed", range(10))
def test_where_stores_go_back_the_history_is_dropped_and_the_minimum_found(seed: int) -> None:
    one = cluster(seed=seed, faults=0.01, rolls_back=True, buckets=3, budget=400)
    assert one.to_the_end() in ("gradient", "change", "precision")
    assert one.x == pytest.approx(cluster_minimum(), abs=1e-2)
    assert len({bucket.commit for bucket in one.buckets}) == 1


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_stores_that_go_back_again_before_the_next_commit_neither_mix_points_nor_keep_it_from_ending(seed: int) -> None:
    one = cluster(seed=seed, faults=0.1, rolls_back=True, buckets=3)
    one.to_the_end(30_000)
    assert one.run.restarts and len(one.points) > 1


def test_histories_are_dropped_in_some_runs() -> None:
    dropped = 0
    for seed in range(10):
        one = cluster(seed=seed, faults=0.01, rolls_back=True, buckets=3, budget=400)
        one.to_the_end()
        dropped += one.run.restarts
    assert dropped


@pytest.mark.parametrize("seed", range(5))
def test_other_programs_survive_faults_too(seed: int) -> None:
    settings = DescentSettings()
    expected = digest(cluster(conjugate_gradient, settings, weight_decay=0.01))
    assert digest(cluster(conjugate_gradient, settings, weight_decay=0.01, seed=seed, faults=0.03)) == expected


def test_a_gradient_that_is_too_large_is_evaluated_again_with_fewer_bits() -> None:
    part, x = quadratic(SIZE, EXAMPLES)

    def large(bundle: Bundle, point: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        loss, gradient = part(bundle, point)
        return 1e9 * loss, 1e9 * gradient.astype(np.float64)

    one = BatchCluster(lbfgs, SETTINGS, large, x, EXAMPLES, budget=3)
    one.to_the_end()
    assert one.run.evaluations > 3 and np.isfinite(one.x).all() and one.x.any()


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("program, settings", [(lbfgs, SETTINGS), (conjugate_gradient, DescentSettings())])
def test_an_evaluation_that_needed_fewer_bits_has_them_when_it_is_done_again(
    program: Program, settings: Any, seed: int
) -> None:
    """Gradients of the first trials are too large, those of later ones are not."""
    part, x = quadratic(SIZE, EXAMPLES)

    def steep(bundle: Bundle, point: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        loss, gradient = part(bundle, point)
        return (1e3 * loss, 1e9 * gradient) if np.abs(point).max() > 0.8 else (loss, gradient)

    undisturbed = BatchCluster(program, settings, steep, x, EXAMPLES, budget=12, buckets=1, workers=1)
    disturbed = BatchCluster(
        program, settings, steep, x, EXAMPLES, budget=12, seed=seed, faults=0.04, buckets=1 + seed % 3
    )
    assert digest(disturbed) == digest(undisturbed) and undisturbed.run.evaluations > 12


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_is_an_infinite_loss(what: str) -> None:
    """The first trial is too far; the search comes back from there."""
    part, x = quadratic(SIZE, EXAMPLES)

    def cliff(bundle: Bundle, point: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        loss, gradient = part(bundle, point)
        if np.abs(point).max() > 0.5 and bundle.number == 1:
            return (np.nan, gradient) if what == "loss" else (loss, gradient * np.nan)
        return loss, gradient

    one = BatchCluster(lbfgs, SETTINGS, cliff, x, EXAMPLES, budget=8, faults=0.02, seed=3)
    one.to_the_end()
    assert 0 < np.abs(one.x).max() <= 0.5


def test_a_bundle_that_was_given_up_for_any_other_reason_is_handed_out_again() -> None:
    one = cluster(buckets=1)
    one.run.begin()
    for order in one.run.take_orders():
        one.answer(order)
    task = one.run.take(("w", 1), 0.0)
    assert task is not None
    for code in (ErrorCode.ABANDONED, ErrorCode.STALE_EPOCH):
        assert not one.run.bundle_done(("w", 1), task.given, 0.0, code, 1.0).counts
        assert one.run.take(("w", 1), 2.0) == task
    assert isinstance(one.run.execution.request, Evaluate), "the loss is not infinite"
