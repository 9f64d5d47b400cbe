"""`adamctl bench data`: every bar of data servers: augmentation, decoding, order, serving."""

from __future__ import annotations

import os
import sys

import click

from adamctl.bench.data.parts import PARTS, DataSettings
from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, print_bars
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json


@click.command("data")
@click.option(
    "--only", multiple=True, type=click.Choice(list(PARTS)), help="Measure only this part; repeatable.  [default: all]"
)
@options.data_option
@click.option(
    "--peer-python", default=sys.executable, metavar="PYTHON", help="Python with PyTorch, torchvision and OpenCV."
)
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds of each side, which take turns.")
@click.option("--seconds", type=ABOVE_ZERO, default=0.5, show_default=True, help="Length of a round.")
@options.json_option
def data(
    only: tuple[str, ...], data: tuple[str, ...], peer_python: str, rounds: int, seconds: float, as_json: bool
) -> None:  # fmt: skip
    """Measure data servers against their bars: SciPy, OpenCV, PyTorch, and limits of this machine.

    A part that cannot be measured here says why, such as a peer that is not installed.
    """
    from adamctl.bench.data.data import run_data_benchmark
    from adamctl.bench.peer import require_interpreter
    from adamctl.config.load import data_folders

    require_interpreter(peer_python)
    settings = DataSettings(
        data=(*data, *data_folders(os.environ)),
        peer_python=peer_python,
        rounds=rounds,
        seconds=seconds,
    )
    report = run_data_benchmark(settings, only, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        print_bars(report)
