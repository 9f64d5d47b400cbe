"""`adamctl bench sandblaster`: every bar of batch algorithms, such as L-BFGS over parameter servers."""

from __future__ import annotations

import os
import sys

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, print_bars
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json

PARTS = (
    "evaluations", "per-iteration", "images", "time-to-loss", "command-share", "rounds", "kernels", "bytes",
    "slow-worker", "stopped-worker", "copies",
)  # fmt: skip
"""Repeats `adamctl.bench.sandblaster.sandblaster.BARS`, so that `--help` need not import it; a test compares them."""
PASSES = click.IntRange(min=10)
"""So many evaluations that some are left after those until workers' speeds are known, and one that is disturbed."""


@click.command("sandblaster")
@click.option(
    "--only", multiple=True, type=click.Choice(PARTS), help="Measure only this part; repeatable.  [default: all]"
)
@options.data_option
@click.option("--peer-python", default=sys.executable, metavar="PYTHON", help="Python with PyTorch and SciPy.")
@click.option("--evaluations", type=COUNT, default=100, show_default=True, help="Of SciPy, on each problem.")
@click.option(
    "--race-passes", type=COUNT, default=30, show_default=True, help="Evaluations of each side on the way to a loss."
)
@click.option("--passes", type=PASSES, default=14, show_default=True, help="Evaluations of each of the other runs.")
@click.option("--rounds", type=COUNT, default=3, show_default=True, help="Rounds of whole runs; the median counts.")
@click.option("--slices", type=COUNT, default=45, show_default=True, help="Slices of evaluations, and of Downpour.")
@click.option("--seconds", type=ABOVE_ZERO, default=0.1, show_default=True, help="Length of a slice.")
@click.option("--iterations", type=COUNT, default=60, show_default=True, help="Whose rounds on a server are timed.")
@click.option("--elements", type=COUNT, default=1 << 24, show_default=True, help="Of the vectors of R1 and R3.")
@click.option("--turns", type=COUNT, default=7, show_default=True, help="Of R1 and R3; the median counts.")
@options.json_option
def sandblaster(
    only: tuple[str, ...], data: tuple[str, ...], peer_python: str, evaluations: int, race_passes: int, passes: int,
    rounds: int, slices: int, seconds: float, iterations: int, elements: int, turns: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure L-BFGS over parameter servers against its bars: SciPy, PyTorch, Downpour, and limits of this machine.

    R1, commit and R3 are the rounds of an iteration on the servers: measure, accept, step. Whole runs train a
    perceptron on MNIST. A part that cannot be measured here says why: PyTorch is not installed, or control groups
    or network namespaces, which need Linux, cannot be made.
    """
    from adamctl.bench.peer import require_interpreter
    from adamctl.bench.sandblaster.sandblaster import SandblasterSettings, run_sandblaster_benchmark
    from adamctl.config.load import data_folders

    require_interpreter(peer_python)
    settings = SandblasterSettings(
        only=only,
        data=(*data, *data_folders(os.environ)),
        peer_python=peer_python,
        evaluations=evaluations,
        race_passes=race_passes,
        passes=passes,
        rounds=rounds,
        slices=slices,
        seconds=seconds,
        iterations=iterations,
        elements=elements,
        turns=turns,
    )
    report = run_sandblaster_benchmark(settings, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        print_bars(report)
