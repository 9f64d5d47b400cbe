"""Seeds of clients that come and go, and faults in what shards remember of them."""

from __future__ import annotations

import pytest

from tests.sim.engine import ViolationError
from tests.sim.servers.memory_scenario import MemoryScenario
from tests.sim.servers.mutants.memory import MUTANTS

SEEDS = 12
MUTANT_SEEDS_MAX = 200


def test_seeds_are_clean() -> None:
    for seed in range(SEEDS):
        MemoryScenario(seed).run()


@pytest.mark.slow
def test_many_seeds_are_clean() -> None:
    for seed in range(SEEDS, 3000):
        MemoryScenario(seed).run()


@pytest.mark.parametrize("name", MUTANTS)
def test_each_planted_fault_is_found(name: str) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            MemoryScenario(seed, MUTANTS[name]).run()
        except (ViolationError, AssertionError):
            return
    pytest.fail(f"{name} is not found by {MUTANT_SEEDS_MAX} seeds")
