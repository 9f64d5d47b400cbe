"""What each kind of simulated cluster is tested for: seeds are clean, and planted faults are found."""

from __future__ import annotations

import os
from pathlib import Path

from adamctl.kernels.threads import available_cores
from tests.sim.runner import ROOT, Ledger, Suite, blocks, noted_seeds, run_block, run_seeds

JOBS = 1 if "PYTEST_XDIST_WORKER" in os.environ else available_cores()
"""One where tests themselves run side by side."""
BLOCK_SEEDS = 5
MUTANT_SEEDS = 1_000


def noted(suite: Suite) -> dict[str, int]:
    """Returns planted fault -> the seed that the document says finds it."""
    return noted_seeds((ROOT / "docs" / "simulator.md").read_text(encoding="utf-8"), suite)


def check_clean(suite: Suite, seeds: range) -> None:
    """Seeds are clean, and none of them is a short one; on all cores."""
    with blocks(suite, 0, "", seeds, JOBS, block_seeds=BLOCK_SEEDS) as done:
        for block in done:
            assert not block.failed, f"{block.reason}; {_again(suite, block.failed)}"
            assert block.events_min >= suite.events_min


def check_many(suite: Suite, seeds: int, members: int = 0) -> None:
    """As many seeds, from the first, are clean.

    Goes on from the file that ADAMCTL_SIM_PROGRESS names, to which the members, or else the kind of cluster, are added.
    """
    progress = os.environ.get("ADAMCTL_SIM_PROGRESS")
    ledger = Ledger(Path(f"{progress}-{members or suite.name}") if progress else None, suite, members, 1)
    failed = run_seeds(suite, members, 1, seeds, ledger=ledger)
    assert failed is None, f"{failed}; {_again(suite, failed.failed, members)}"
    assert ledger.progress.events_min >= suite.events_min


def check_documented(suite: Suite) -> None:
    """The document tells of every planted fault, and of no other."""
    assert noted(suite).keys() == suite.mutants.keys(), f"`{_command(suite)} --find-mutants` writes the table"


def check_found(suite: Suite, name: str, first: int, and_next: int) -> None:
    """A planted fault is found by the seed that is noted, or by one soon after it."""
    found = run_block(suite, 0, name, first, and_next)
    assert found.failed, (
        f"seeds {first} to {first + and_next - 1} do not find {name} any more: "
        f"`{_command(suite)} --find-mutants` looks for others and notes them in docs/simulator.md"
    )


def check_found_early(suite: Suite, name: str) -> None:
    """A planted fault is found by one of the first thousand seeds."""
    assert run_block(suite, 0, name, 1, MUTANT_SEEDS).failed


def _command(suite: Suite) -> str:
    return f"python -m tests.sim --of {suite.name}"


def _again(suite: Suite, seed: int, members: int = 0) -> str:
    return f"{_command(suite)} --members {members} --first {seed} --trace"
