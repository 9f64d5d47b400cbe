"""`adamctl bench layer`: what a layer of one's own costs."""

from __future__ import annotations

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, print_bars
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json


@click.command("layer")
@click.option("--batch", type=COUNT, default=32, show_default=True, help="Examples of a step.")
@click.option("--rounds", type=COUNT, default=15, show_default=True, help="Rounds; the median counts.")
@click.option("--seconds", type=ABOVE_ZERO, default=0.5, show_default=True, help="Length of a round.")
@options.json_option
def layer(batch: int, rounds: int, seconds: float, as_json: bool) -> int:
    """Measure relus written as a user writes a layer, with native calls, against built-in ones.

    In Adam's MNIST network, in a training step and in predictions, by one thread, in turns. The bar is 1.02.
    """
    from adamctl.bench.layer import run_layer_benchmark

    report = run_layer_benchmark(batch, rounds, seconds, progress=lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        print_bars(report)
    return 0 if all(row["meets"] for row in report["results"]) else 1
