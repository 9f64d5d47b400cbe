"""I9, I13 and leases across leaders, over many seeds; `python -m tests.sim --first SEED --trace` replays one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sim.engine import ViolationError
from tests.sim.mutants import MUTANTS
from tests.sim.scenario import Scenario

QUICK_SEEDS = 100
SLOW_SEEDS = 10_000
MUTANT_SEEDS = 1_000
FOUND_BY = {
    "promise-sent-before-durable": 1,
    "accept-below-promise": 1,
    "snapshot-without-slot": 1,
    "snapshot-without-accepted": 1,
    "two-values-after-leader-change": 6,
    "adopts-lowest-ballot": 152,
    "sessions-left-out-of-snapshot": 1,
    "forgotten-session-begins-anew": 2,
    "deposed-leader-renews": 73,
    "unconfirmed-read": 33,
    "half-is-enough": 13,
    "lost-folder-keeps-identity": 15,
    "old-promises-for-new-members": 124,
}
"""Planted fault -> a seed that finds it, as in docs/simulator.md. Any change of what the cores or the simulator do
changes which: `python -m tests.sim --mutant NAME --seeds 1000` finds another."""


@pytest.mark.parametrize("block", range(10))
def test_i9_clean_seeds(block: int) -> None:
    count = QUICK_SEEDS // 10
    for seed in range(1 + block * count, 1 + (block + 1) * count):
        try:
            Scenario(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}; python -m tests.sim --first {seed} --trace") from error


def test_i9_a_seed_replays_exactly() -> None:
    first, second = Scenario(17, keep_trace=True), Scenario(17, keep_trace=True)
    assert first.run() == second.run()
    assert first.world.lines == second.world.lines and len(first.world.lines) > 1000


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_fault_is_found(name: str) -> None:
    with pytest.raises((ViolationError, AssertionError)):
        Scenario(FOUND_BY[name], planted=MUTANTS[name]).run()


@pytest.mark.slow
@pytest.mark.parametrize("members", [3, 5])
def test_i9_thousands_of_seeds(members: int) -> None:
    """Goes on after the last clean seed that the file named by ADAMCTL_SIM_PROGRESS holds, if that is set."""
    progress = os.environ.get("ADAMCTL_SIM_PROGRESS")
    file = Path(f"{progress}-{members}") if progress else None
    first = int(file.read_text()) + 1 if file is not None and file.exists() else 1
    for seed in range(first, SLOW_SEEDS + 1):
        try:
            Scenario(seed, members).run()
        except Exception as error:
            again = f"python -m tests.sim --first {seed} --members {members} --trace"
            raise AssertionError(f"seed {seed}: {error}; {again}") from error
        if file is not None and seed % 100 == 0:
            file.write_text(str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name != "leads-without-own-value"])
def test_every_planted_fault_is_found_within_a_thousand_seeds(name: str) -> None:
    for seed in range(1, MUTANT_SEEDS + 1):
        try:
            Scenario(seed, planted=MUTANTS[name]).run()
        except (ViolationError, AssertionError):
            return
    raise AssertionError(f"{MUTANT_SEEDS} seeds did not find {name}")
