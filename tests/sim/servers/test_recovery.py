"""Servers stay away and lose their disks, an operator goes on without them, and everything that must hold holds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.sim.engine import ViolationError
from tests.sim.servers.recovery_scenario import RecoveryScenario

QUICK_SEEDS = range(1, 6)
SLOW_SEEDS = range(1, 301)


def recovered(seeds: Iterable[int]) -> int:
    """Runs seeds and returns how many buckets were recovered."""
    count = 0
    for seed in seeds:
        scenario = RecoveryScenario(seed)
        try:
            scenario.run()
        except ViolationError as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        count += scenario.operator.recovered
    return count


def test_an_operator_goes_on_without_some() -> None:
    assert recovered(QUICK_SEEDS) > 0


@pytest.mark.slow
def test_an_operator_goes_on_without_some_again_and_again() -> None:
    assert recovered(SLOW_SEEDS) > len(SLOW_SEEDS) // 3
