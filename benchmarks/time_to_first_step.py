"""Seconds from the start of `adamctl train examples/digits.toml` until its first steps have been taken.

The coordinator is asked every 10 ms; the first steps are there when it has the report of the first range of 8 batches.
With --peer-python the same command is run with another installation (of an older version, say) in turn, and the median
difference is what ours takes longer. Both have to be installed the same way: the same code took 0.1 s longer from an
editable installation than from a folder named in a .pth file. The processor time that all its processes have used by
then is told, too: it does not depend on what else the machine does.

    python benchmarks/time_to_first_step.py [--peer-python OTHER_PYTHON] [--rounds 10] [--json] [TRAIN_OPTION ...]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from adamctl.bench.report import make_report
from adamctl.bench.watched_run import WatchedRun
from adamctl.errors import AdamctlError

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits.toml"
ASKED_EVERY_S = 0.01


async def first_steps(python: str, arguments: tuple[str, ...]) -> tuple[float, float]:
    """Runs the command until its first steps; returns how long that took, and how much processor time."""
    async with WatchedRun((str(DIGITS), *arguments), python=python, every_s=ASKED_EVERY_S) as run:
        return await run.trains() - run.began_s, run.cpu_s()


def summary(taken: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Returns the medians of each installation and, if there are two, by how much ours is later."""
    result: dict[str, Any] = {"case": "digits", "rounds": len(taken["ours"])}
    for name, rounds in taken.items():
        seconds, cpu_seconds = zip(*rounds, strict=True)
        result[f"{name}_median_s"] = statistics.median(seconds)
        result[f"{name}_cpu_median_s"] = statistics.median(cpu_seconds)
        result[f"{name}_s"] = [round(s, 3) for s in seconds]
    if "peer" in taken:
        pairs = list(zip(taken["ours"], taken["peer"], strict=True))
        result["later_s"] = result["ours_median_s"] - result["peer_median_s"]
        result["later_paired_s"] = statistics.median(ours[0] - peer[0] for ours, peer in pairs)
        result["later_cpu_s"] = statistics.median(ours[1] - peer[1] for ours, peer in pairs)
    return result


def place_of(python: str) -> str:
    """Returns where an interpreter's adamctl lies."""
    with tempfile.TemporaryDirectory() as elsewhere:
        line = (python, "-c", "import adamctl; print(adamctl.__path__[0])")
        found = subprocess.run(line, cwd=elsewhere, capture_output=True, text=True, check=False)
    if found.returncode:
        raise click.UsageError(f"{python} has no adamctl: {found.stderr.strip().splitlines()[-1]}")
    return found.stdout.strip()


@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.option("--rounds", default=10, show_default=True)
@click.option("--peer-python", default="", metavar="PATH", help="Interpreter of another installation to compare with.")
@click.option("--json", "as_json", is_flag=True)
@click.argument("train_options", nargs=-1, type=click.UNPROCESSED)
def main(rounds: int, peer_python: str, as_json: bool, train_options: tuple[str, ...]) -> None:
    pythons = {"ours": sys.executable} | ({"peer": peer_python} if peer_python else {})
    if len({place_of(python) for python in pythons.values()}) < len(pythons):
        raise click.UsageError("--peer-python: expected another installation of adamctl; found this one")
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in pythons}
    try:
        for number in range(rounds + 1):  # the first one may compile kernels, and is not counted
            for name, python in pythons.items():
                one = asyncio.run(first_steps(python, train_options))
                if number:
                    taken[name].append(one)
            if number and not as_json:
                click.echo("  ".join(f"{name} {rounds[-1][0]:.2f} s" for name, rounds in taken.items()))
    except AdamctlError as error:
        raise click.ClickException(str(error)) from error
    result = summary(taken)
    if as_json:
        click.echo(json.dumps(make_report("time-to-first-step", ("adamctl", "numpy", "numba"), [result]), indent=2))
        return
    click.echo(f"first steps after {result['ours_median_s']:.2f} s, {result['ours_cpu_median_s']:.2f} s of processors")
    if peer_python:
        click.echo(
            f"the other's after {result['peer_median_s']:.2f} s, {result['peer_cpu_median_s']:.2f} s of processors\n"
            f"ours later by {result['later_s']:+.2f} s (by round {result['later_paired_s']:+.2f} s), "
            f"{result['later_cpu_s']:+.2f} s of processors"
        )


if __name__ == "__main__":
    main()
