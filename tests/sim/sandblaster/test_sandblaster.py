"""Batch runs cost no bit, whatever is lost; `python -m tests.sim --of sandblaster --first SEED --trace` replays one."""

from __future__ import annotations

import pytest

from tests.sim.sandblaster.scenario import SandblasterScenario
from tests.sim.suite_checks import check_clean, check_documented, check_found, check_found_early, check_many, noted
from tests.sim.suites import SANDBLASTER

QUICK_SEEDS, AT_ONCE = 200, 50
SLOW_SEEDS = 10_000
NOTED_AND_NEXT = 40
NOTED = noted(SANDBLASTER)


@pytest.mark.parametrize("first", range(1, QUICK_SEEDS, AT_ONCE))
def test_clean_seeds(first: int) -> None:
    check_clean(SANDBLASTER, range(first, first + AT_ONCE))


def test_seeds_have_what_they_are_for() -> None:
    scenarios = [SandblasterScenario(seed) for seed in range(1, 41)]
    found = [one.run() for one in scenarios]
    assert {one.problem.name for one in scenarios} == {"lbfgs", "cg", "owlqn", "descent", "averaged"}
    assert {one.cluster.copies for one in scenarios} == {1, 3}
    assert sum(one.takeovers for one in found) > len(found), "buckets are taken over"
    assert sum(one.restarts for one in found) and sum(one.resumed for one in found)
    assert max(len(set(one.truth.points)) for one in scenarios) > 5, "programs move"
    assert any(float("inf") in one.truth.losses for one in scenarios), "gradients are not finite in some"


def test_a_seed_replays_exactly() -> None:
    first, second = SandblasterScenario(11, keep_trace=True), SandblasterScenario(11, keep_trace=True)
    assert first.run() == second.run()
    assert first.world.lines == second.world.lines and len(first.world.lines) > 20


def test_the_document_tells_of_every_planted_fault() -> None:
    check_documented(SANDBLASTER)


@pytest.mark.parametrize("name", SANDBLASTER.mutants)
def test_a_planted_fault_is_found(name: str) -> None:
    check_found(SANDBLASTER, name, NOTED[name], NOTED_AND_NEXT)


@pytest.mark.slow
def test_thousands_of_seeds() -> None:
    check_many(SANDBLASTER, SLOW_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SANDBLASTER.mutants)
def test_every_planted_fault_is_found_within_a_thousand_seeds(name: str) -> None:
    check_found_early(SANDBLASTER, name)
