"""`python -m tests.sim --seeds N`: runs seeds, shows seeds and events per second, replays the one that fails."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.sim.mutants import MUTANTS
from tests.sim.scenario import Planted, Scenario

TRACE_LINES = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulated clusters of controllers.")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--members", type=int, default=0, choices=(0, 1, 3, 5), help="0: each seed decides")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant a fault, which has to be found")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of the first seed")
    arguments = parser.parse_args()
    planted = MUTANTS[arguments.mutant] if arguments.mutant else None
    if arguments.trace:
        return replay(arguments.first, arguments.members, planted, lines_max=0)
    return run(arguments.first, arguments.seeds, arguments.members, planted)


def run(first: int, count: int, members: int, planted: Planted | None) -> int:
    """Runs seeds until one fails."""
    began_s = shown_s = time.monotonic()
    events = 0
    for seed in range(first, first + count):
        try:
            events += Scenario(seed, members, planted=planted).run().events
        except Exception:
            print(f"seed {seed} fails after {seed - first} that did not", file=sys.stderr)
            return replay(seed, members, planted, lines_max=TRACE_LINES)
        now_s = time.monotonic()
        if now_s - shown_s > 2.0 or seed == first + count - 1:
            shown_s, spent_s, done = now_s, now_s - began_s, seed - first + 1
            print(f"{done} seeds clean, {done / spent_s:.2f} seeds/s, {events / spent_s:,.0f} events/s", flush=True)
    return 0


def replay(seed: int, members: int, planted: Planted | None, *, lines_max: int) -> int:
    """Runs a seed again and prints what happened; returns 1 if it fails."""
    scenario = Scenario(seed, members, planted=planted, keep_trace=True)
    failed = 0
    try:
        scenario.run()
    except Exception:
        failed = 1
        scenario.world.note("world", "FAILS", traceback.format_exc().strip().splitlines()[-1])
        print("\n".join(scenario.world.lines[-lines_max:]))
        traceback.print_exc()
    else:
        print("\n".join(scenario.world.lines[-lines_max:]))
    again = f"python -m tests.sim --first {seed} --members {members} --trace"
    if planted is not None:
        again += f" --mutant {next(name for name, one in MUTANTS.items() if one is planted)}"
    print(f"replay the whole of it with: {again}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
