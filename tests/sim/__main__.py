"""`python -m tests.sim --seeds N`: runs seeds, shows seeds and events per second, replays the one that fails."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from tests.sim.runner import ROOT, Block, Ledger, Progress, Suite, find_mutants, run_seeds, write_table
from tests.sim.suites import SUITES

TRACE_LINES = 200
TELL_EVERY_S = 2.0
DOCUMENT = ROOT / "docs" / "simulator.md"


def main() -> int:
    arguments = _parser().parse_args()
    suite = SUITES[arguments.of]
    if arguments.mutant and arguments.mutant not in suite.mutants:
        print(f"--mutant: expected one of {', '.join(suite.mutants)}", file=sys.stderr)
        return 2
    if arguments.find_mutants:
        return find(suite, arguments.seeds or 1000, arguments.jobs)
    if arguments.trace:
        return replay(suite, arguments.first, arguments.members, arguments.mutant, lines_max=0)
    return run(suite, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulated clusters (docs/simulator.md).")
    parser.add_argument("--of", choices=sorted(SUITES), default="controllers", help="what kind of cluster")
    parser.add_argument("--seeds", type=int, default=0, help="how many (100; of planted faults at most 1000)")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--members", type=int, default=0, choices=(0, 1, 3, 5), help="0: each seed decides")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--progress", type=Path, help="a file to go on from, unless the sources have changed since")
    parser.add_argument("--mutant", default="", help="plant a fault, which has to be found")
    parser.add_argument("--find-mutants", action="store_true", help="find every planted fault; write docs/simulator.md")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of the first seed")
    return parser


def run(suite: Suite, arguments: argparse.Namespace) -> int:
    """Runs seeds until one fails, whose trace is printed and, whole, kept beside the file of --progress."""
    members, mutant = arguments.members, arguments.mutant
    try:
        ledger = Ledger(arguments.progress, suite, members, arguments.first)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if ledger.restarted:
        print("starts again: the sources have changed since that progress was made")
    shown_s = 0.0

    def tell(progress: Progress, last: bool) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s > TELL_EVERY_S or last:
            shown_s = now_s
            seeds_per_s, events_per_s = progress.seeds / progress.seconds, progress.events / progress.seconds
            rates = f"{seeds_per_s:.2f} seeds/s, {events_per_s:,.0f} events/s, at least {progress.events_min} a seed"
            print(f"{progress.seeds} seeds clean, {rates}", flush=True)

    count = arguments.seeds or 100
    failed = run_seeds(
        suite, members, arguments.first, count, planted=mutant, jobs=arguments.jobs, ledger=ledger, tell=tell
    )
    if failed is None:
        return 0
    print(f"seed {failed.failed} fails after {failed.failed - arguments.first} that did not", file=sys.stderr)
    keep = None
    if arguments.progress is not None:
        keep = arguments.progress.with_name(f"{arguments.progress.name}.seed-{failed.failed}")
    return replay(suite, failed.failed, members, mutant, lines_max=TRACE_LINES, keep=keep)


def find(suite: Suite, seeds_max: int, jobs: int) -> int:
    """Finds all planted faults, and notes the seeds in the document from which the tests take them."""

    def tell(name: str, block: Block | None) -> None:
        told = f"not found by {seeds_max} seeds" if block is None else f"seed {block.failed}: {block.reason}"
        print(f"{name:34} {told}", flush=True)

    found = find_mutants(suite, seeds_max, jobs, tell)
    write_table(DOCUMENT, suite, found)
    return int(None in found.values())


def replay(suite: Suite, seed: int, members: int, mutant: str, *, lines_max: int, keep: Path | None = None) -> int:
    """Runs a seed again and prints what happened; returns 1 if it fails."""
    planted = suite.mutants[mutant] if mutant else None
    scenario = suite.scenario(seed, members, planted=planted, keep_trace=True)
    failed = 0
    try:
        scenario.run()
    except Exception:
        failed = 1
        scenario.world.note("world", "FAILS", traceback.format_exc().strip().splitlines()[-1])
        traceback.print_exc()
    lines = scenario.world.lines
    print("\n".join(lines[-lines_max:]))
    again = f"python -m tests.sim --of {suite.name} --first {seed} --members {members} --trace"
    if mutant:
        again += f" --mutant {mutant}"
    print(f"replay the whole of it with: {again}")
    if keep is not None:
        keep.write_text("\n".join([*lines, again, ""]), encoding="utf-8")
        print(f"the whole trace is in {keep}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
