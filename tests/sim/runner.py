"""Runs seeds of a kind of cluster, on several cores and with a file to go on from; finds planted faults.

A `Suite` is a kind of simulated cluster. `SUITES` in `tests/sim/suites.py` lists them.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import msgspec

from adamctl.wire.unreadable import UNREADABLE
from tests.sim.engine import World

BLOCK_SEEDS = 20
COLLECT_AFTER = (200_000, 20, 20)
"""A seed makes many objects and few circles of them: looking for those as often as usual takes a third of its time."""
ROOT = Path(__file__).resolve().parents[2]


class Outcome(Protocol):
    """What a clean seed gives."""

    @property
    def events(self) -> int: ...


class Simulated(Protocol):
    """One seed."""

    @property
    def world(self) -> World: ...

    def run(self) -> Outcome: ...


@dataclass(frozen=True)
class Suite:
    """A kind of cluster.

    Attributes:
        scenario: called with seed, members (0: the seed decides), and keywords `planted` (what `mutants` holds, or
            None) and `keep_trace`.
        mutants: planted faults by name.
        sources: files (patterns relative to the repository) on whose contents the outcome of a seed depends.
        events_min: no clean seed has fewer.
    """

    name: str
    scenario: Callable[..., Simulated]
    mutants: Mapping[str, Any]
    sources: tuple[str, ...]
    events_min: int = 0

    def fingerprint(self) -> int:
        """Returns a checksum of the sources."""
        checksum = 0
        for source in self.sources:
            for file in sorted(ROOT.glob(source)):
                checksum = crc32(file.read_bytes(), checksum)
        return checksum


class Block(msgspec.Struct, frozen=True):
    """What came of some seeds that follow each other. `failed`: the first that did; those after it were not run."""

    first: int
    count: int
    events: int = 0
    events_min: int = 0
    failed: int = 0
    reason: str = ""


def run_block(suite: Suite, members: int, planted: str, first: int, count: int) -> Block:
    """Runs seeds until one fails."""
    events, events_min = 0, 1 << 60
    fault = suite.mutants[planted] if planted else None
    with _rare_collections():
        for seed in range(first, first + count):
            try:
                found = suite.scenario(seed, members, planted=fault).run().events
            except Exception as error:
                return Block(first, seed - first, events, events_min, seed, reason(error))
            events += found
            events_min = min(events_min, found)
    return Block(first, count, events, events_min)


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def reason(error: BaseException) -> str:
    """Returns what a violation begins with, which is the same for all of its kind."""
    text = str(error).strip() or ("an assertion of the core" if isinstance(error, AssertionError) else repr(error))
    return text.splitlines()[0].partition(":")[0][:100]


@contextmanager
def blocks(
    suite: Suite, members: int, planted: str, seeds: range, jobs: int, *, block_seeds: int = BLOCK_SEEDS
) -> Iterator[Iterator[Block]]:
    """Gives the blocks of a range of seeds, in their order, run by `jobs` processes (1: by this one)."""
    starts = range(seeds.start, seeds.stop, block_seeds)
    tasks = [(suite.name, members, planted, start, min(block_seeds, seeds.stop - start)) for start in starts]
    if jobs <= 1:
        yield (run_block(suite, *task[1:]) for task in tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap(_run_named, tasks)


def _run_named(task: tuple[str, int, str, int, int]) -> Block:
    from tests.sim.suites import SUITES

    name, members, planted, first, count = task
    return run_block(SUITES[name], members, planted, first, count)


# --- going on -------------------------------------------------------------------------------------------------------


class Progress(msgspec.Struct):
    """How far a run is: what the file given with --progress holds, as JSON."""

    suite: str
    members: int
    sources: int
    first: int
    clean_to: int = 0
    events: int = 0
    events_min: int = 0
    seconds: float = 0.0

    @property
    def seeds(self) -> int:
        return max(self.clean_to - self.first + 1, 0)

    def add(self, block: Block, seconds: float) -> None:
        self.events_min = min(self.events_min or block.events_min, block.events_min)
        self.clean_to = block.first + block.count - 1
        self.events += block.events
        self.seconds += seconds


class Ledger:
    """Keeps progress in a file, if there is one. Seeds that ran with other sources do not count: it starts again."""

    def __init__(self, path: Path | None, suite: Suite, members: int, first: int) -> None:
        self.path = path
        self.restarted = False
        self.progress = Progress(suite.name, members, suite.fingerprint(), first)
        if path is None or not path.exists():
            return
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Progress)
        except (OSError, *UNREADABLE) as error:
            raise ValueError(f"{path}: expected a file that --progress made, found: {error}") from error
        same = (found.suite, found.members, found.first) == (suite.name, members, first)
        if not same:
            raise ValueError(
                f"{path} is about {found.suite}, {found.members} members, from seed {found.first}; expected "
                f"{suite.name}, {members} members, from seed {first}: give another file"
            )
        self.restarted = found.sources != self.progress.sources
        if not self.restarted:
            self.progress = found

    def save(self) -> None:
        if self.path is not None:
            temporary = self.path.with_name(f"{self.path.name}.new")
            temporary.write_bytes(msgspec.json.encode(self.progress))
            temporary.replace(self.path)


def run_seeds(
    suite: Suite,
    members: int,
    first: int,
    count: int,
    *,
    planted: str = "",
    jobs: int = 1,
    ledger: Ledger | None = None,
    tell: Callable[[Progress, bool], None] = lambda *_: None,
) -> Block | None:
    """Runs seeds, from where the ledger says; returns the block of the one that fails, None if all are clean.

    `tell` is called after each block, with whether it is the last one.
    """
    ledger = ledger or Ledger(None, suite, members, first)
    progress = ledger.progress
    seeds = range(max(first, progress.clean_to + 1), first + count)
    before_s = time.monotonic()
    with blocks(suite, members, planted, seeds, jobs) as done:
        for block in done:
            now_s = time.monotonic()
            progress.add(block, now_s - before_s)
            before_s = now_s
            ledger.save()
            if block.failed:
                return block
            tell(progress, progress.clean_to == seeds.stop - 1)
    return None


# --- planted faults -------------------------------------------------------------------------------------------------


def find_mutants(
    suite: Suite, seeds_max: int, jobs: int, tell: Callable[[str, Block | None], None] = lambda *_: None
) -> dict[str, Block | None]:
    """Returns planted fault -> the block in which it was found; None: not within so many seeds."""
    found: dict[str, Block | None] = {}
    for name in suite.mutants:
        with blocks(suite, 0, name, range(1, seeds_max + 1), jobs, block_seeds=5) as done:
            found[name] = next((block for block in done if block.failed), None)
        tell(name, found[name])
    return found


def table_of(suite: Suite, found: Mapping[str, Block | None]) -> str:
    """Returns the table of docs/simulator.md."""
    lines = ["| planted fault | what it does | found by seed | as |", "| --- | --- | --- | --- |"]
    for name, block in found.items():
        seed, how = (str(block.failed), block.reason) if block is not None else ("not found", "")
        lines.append(f"| `{name}` | {suite.mutants[name].about} | {seed} | {how} |")
    return "\n".join(lines)


def noted_seeds(text: str, suite: Suite) -> dict[str, int]:
    """Returns planted fault -> seed, from the table of a suite in a document."""
    found: dict[str, int] = {}
    for line in between_marks(text, suite)[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[2].isdigit():
            found[cells[0].strip("`")] = int(cells[2])
    return found


def between_marks(text: str, suite: Suite) -> tuple[str, str, str]:
    """Splits a document around the table of a suite. Raises ValueError if it has no place for it."""
    begin, end = f"<!-- planted faults: {suite.name} -->\n", f"<!-- end of planted faults: {suite.name} -->"
    before, found, rest = text.partition(begin)
    table, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"expected the lines {begin.strip()!r} and {end!r}, found none")
    return before + begin, table, end + after


def write_table(path: Path, suite: Suite, found: Mapping[str, Block | None]) -> None:
    """Puts the table into a document, between its marks."""
    before, _, after = between_marks(path.read_text(encoding="utf-8"), suite)
    path.write_text(f"{before}\n{table_of(suite, found)}\n\n{after}", encoding="utf-8")
