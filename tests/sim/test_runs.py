"""Ranges are done once, whoever is lost; `python -m tests.sim --of runs --first SEED --trace` replays a seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sim.run_mutants import MUTANTS
from tests.sim.run_scenario import RunResult, RunScenario
from tests.sim.runner import ROOT, Ledger, noted_seeds, run_block, run_seeds
from tests.sim.server_scenario import EVENTS_MIN
from tests.sim.suites import RUNS

QUICK_SEEDS = 8
SLOW_SEEDS = 1_000
MUTANT_SEEDS = 1_000
NOTED_AND_NEXT = 5
NOTED = noted_seeds((ROOT / "docs" / "simulator.md").read_text(encoding="utf-8"), RUNS)


def test_clean_seeds_in_which_ranges_are_lost_and_given_to_others() -> None:
    found: list[RunResult] = []
    for seed in range(1, QUICK_SEEDS + 1):
        try:
            result = RunScenario(seed).run()
            assert isinstance(result, RunResult)
            found.append(result)
        except AssertionError as violation:
            again = f"python -m tests.sim --of runs --first {seed} --trace"
            raise AssertionError(f"{violation}; {again}") from violation
    assert min(result.events for result in found) >= EVENTS_MIN
    assert (
        sum(result.again for result in found) > QUICK_SEEDS and sum(result.joined for result in found) > 3 * QUICK_SEEDS
    )
    assert any(result.late for result in found) and any(result.duplicates for result in found)


def test_a_seed_replays_exactly() -> None:
    first, second = RunScenario(8, keep_trace=True), RunScenario(8, keep_trace=True)
    assert first.run() == second.run()
    assert first.world.lines == second.world.lines and len(first.world.lines) > 50


def test_the_document_tells_of_every_planted_fault() -> None:
    assert NOTED.keys() == MUTANTS.keys(), "python -m tests.sim --of runs --find-mutants writes the table"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    found = run_block(RUNS, 0, name, NOTED[name], NOTED_AND_NEXT)
    assert found.failed, (
        f"seeds {NOTED[name]} to {NOTED[name] + NOTED_AND_NEXT - 1} do not find {name} any more: "
        "`python -m tests.sim --of runs --find-mutants` looks for others and notes them in docs/simulator.md"
    )


@pytest.mark.slow
def test_a_thousand_seeds() -> None:
    """Goes on from the file that ADAMCTL_SIM_PROGRESS names (and `runs` is added to), if that is set."""
    progress = os.environ.get("ADAMCTL_SIM_PROGRESS")
    ledger = Ledger(Path(f"{progress}-runs") if progress else None, RUNS, 0, 1)
    failed = run_seeds(RUNS, 0, 1, SLOW_SEEDS, ledger=ledger)
    assert failed is None, f"{failed}; python -m tests.sim --of runs --first {failed.failed} --trace"
    assert ledger.progress.events_min >= EVENTS_MIN
