"""Seeds in blocks, progress that is gone on from, and the table of planted faults in a document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.sim.engine import ViolationError, World
from tests.sim.runner import (
    ROOT,
    Block,
    Ledger,
    Suite,
    find_mutants,
    noted_seeds,
    run_block,
    run_seeds,
    write_table,
)
from tests.sim.suites import SUITES


@dataclass
class Fault:
    """Found by the seed that it names."""

    about: str
    seed: int


class Counting:
    """A cluster in which nothing happens."""

    ran: list[int] = []  # noqa: RUF012

    def __init__(self, seed: int, members: int = 0, *, planted: Fault | None = None, keep_trace: bool = False) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        self.planted = planted

    def run(self) -> World:
        Counting.ran.append(self.world.seed)
        if self.planted is not None and self.planted.seed == self.world.seed:
            raise ViolationError("something wrong: with details")
        self.world.events = 10 + self.world.seed
        return self.world


SUITE = Suite("counting", Counting, {"early": Fault("shows at once", 3), "never": Fault("cannot be seen", 0)}, ())


@pytest.fixture(autouse=True)
def ran() -> list[int]:
    Counting.ran.clear()
    return Counting.ran


def test_a_block_ends_at_the_seed_that_fails(ran: list[int]) -> None:
    assert run_block(SUITE, 0, "", 1, 5) == Block(1, 5, 65, 11)
    assert run_block(SUITE, 0, "early", 1, 5) == Block(1, 2, 23, 11, 3, "something wrong")
    assert ran == [1, 2, 3, 4, 5, 1, 2, 3]


def test_a_run_goes_on_after_the_last_clean_block(tmp_path: Path, ran: list[int]) -> None:
    file = tmp_path / "progress"
    assert run_seeds(SUITE, 5, 1, 30, ledger=Ledger(file, SUITE, 5, 1)) is None
    ledger = Ledger(file, SUITE, 5, 1)
    assert (ledger.progress.clean_to, ledger.progress.seeds, ledger.progress.events_min) == (30, 30, 11)
    assert run_seeds(SUITE, 5, 1, 32, ledger=ledger) is None
    assert ran == list(range(1, 33)) and ledger.progress.events == sum(range(11, 43))


def test_a_seed_that_fails_is_run_again(tmp_path: Path, ran: list[int]) -> None:
    file = tmp_path / "progress"
    failed = run_seeds(SUITE, 0, 1, 10, planted="early", ledger=Ledger(file, SUITE, 0, 1))
    assert failed is not None and failed.failed == 3
    assert Ledger(file, SUITE, 0, 1).progress.clean_to == 2


def test_progress_of_other_sources_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    run_seeds(SUITE, 0, 1, 5, ledger=Ledger(file, SUITE, 0, 1))
    ledger = Ledger(file, replace(SUITE, sources=("tests/sim/engine.py",)), 0, 1)
    assert ledger.restarted and ledger.progress.clean_to == 0


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_sources_are_the_whole_of_what_decides(suite: Suite) -> None:
    """Patterns that match nothing would let the progress of other code count."""
    assert all(list(ROOT.glob(pattern)) for pattern in suite.sources)
    sources = {file for pattern in suite.sources for file in ROOT.glob(pattern)}
    decides = {
        "controllers": ["roles/controller/core"],
        "servers": ["roles/controller/core", "roles/ps"],
        "runs": ["roles/controller/core", "roles/ps", "roles/coordinator/core"],
        "partitions": ["kernels/partition", "roles/worker", "roles/coordinator/core"],
        "sandblaster": ["kernels/numeric", "roles/coordinator/core", "roles/ps/core", "roles/worker/core"],
    }
    for folder in decides[suite.name]:
        assert set((ROOT / folder).rglob("*.py")) <= sources


def test_progress_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    run_seeds(SUITE, 0, 1, 5, ledger=Ledger(file, SUITE, 0, 1))
    with pytest.raises(ValueError, match="expected counting, 3 members, from seed 1"):
        Ledger(file, SUITE, 3, 1)
    with pytest.raises(ValueError, match="expected a file that --progress made"):
        Ledger(tmp_path, SUITE, 0, 1)


def test_planted_faults_are_looked_for_and_noted(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        "Before.\n<!-- planted faults: counting -->\n<!-- end of planted faults: counting -->\nAfter.\n"
    )
    found = find_mutants(SUITE, 20, 1)
    write_table(document, SUITE, found)
    text = document.read_text()
    assert "| `early` | shows at once | 3 | something wrong |" in text and "not found" in text
    assert text.startswith("Before.") and text.endswith("After.\n")
    assert noted_seeds(text, SUITE) == {"early": 3}
    with pytest.raises(ValueError, match="found none"):
        noted_seeds("", SUITE)
