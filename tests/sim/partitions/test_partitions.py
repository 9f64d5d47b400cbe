"""Partitions compute, count and push each flight once; `python -m tests.sim --of partitions --first SEED --trace`."""

from __future__ import annotations

import pytest

from tests.sim.partitions.scenario import PartitionScenario
from tests.sim.suite_checks import check_clean, check_documented, check_found, check_found_early, check_many, noted
from tests.sim.suites import PARTITIONS

QUICK_SEEDS, AT_ONCE = 160, 40
SLOW_SEEDS = 5_000
NOTED_AND_NEXT = 80
NOTED = noted(PARTITIONS)


@pytest.mark.parametrize("first", range(1, QUICK_SEEDS, AT_ONCE))
def test_clean_seeds(first: int) -> None:
    check_clean(PARTITIONS, range(first, first + AT_ONCE))


def test_seeds_have_what_they_are_for() -> None:
    found = [PartitionScenario(seed).run() for seed in range(1, 41)]
    assert min(one.partitions for one in found) == 1 and max(one.partitions for one in found) >= 7
    assert max(one.groups for one in found) >= 3 and all(one.evaluations for one in found)
    flights, replayed = sum(one.flights for one in found), sum(one.replayed for one in found)
    assert 10 * len(found) < replayed < flights, "most flights are finished, and some are not: their group has ended"


def test_a_seed_replays_exactly() -> None:
    first, second = PartitionScenario(11, keep_trace=True), PartitionScenario(11, keep_trace=True)
    assert first.run() == second.run()
    assert first.world.lines == second.world.lines and len(first.world.lines) > 500


def test_the_document_tells_of_every_planted_fault() -> None:
    check_documented(PARTITIONS)


@pytest.mark.parametrize("name", PARTITIONS.mutants)
def test_a_planted_fault_is_found(name: str) -> None:
    check_found(PARTITIONS, name, NOTED[name], NOTED_AND_NEXT)


@pytest.mark.slow
def test_thousands_of_seeds() -> None:
    check_many(PARTITIONS, SLOW_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTITIONS.mutants)
def test_every_planted_fault_is_found_within_a_thousand_seeds(name: str) -> None:
    check_found_early(PARTITIONS, name)
