"""`adamctl bench metrics`: what scraping metrics costs a run."""

from __future__ import annotations

from pathlib import Path

import click

from adamctl.cli import completing, options
from adamctl.cli.bench.bench import COUNT, print_bars
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json


@click.command("metrics")
@click.argument("experiment", metavar="[EXP.toml]", required=False, default="", shell_complete=completing.experiments)
@click.option("--seconds", type=ABOVE_ZERO, default=10.0, show_default=True, help="Length of a period.")
@click.option("--pairs", type=COUNT, default=6, show_default=True, help="Pairs of periods, with and without scraping.")
@click.option(
    "--rate", type=ABOVE_ZERO, default=20.0, show_default=True, help="Scrapes per second of the part `amplified`."
)
@options.json_option
def metrics(experiment: str, seconds: float, pairs: int, rate: float, as_json: bool) -> int:
    """Train with and without scraping, in turn, and compare processor time for the same examples.

    Once a second costs less than the noise of a period, so the part `amplified` scrapes --rate times a second and
    divides. The bar is 0.5% of what all cores have in a second, with the metrics server on the same machine.
    """
    from adamctl.bench.metrics import run_metrics_benchmark

    if experiment:
        options.load(experiment, (), (), {})
        experiment = str(Path(experiment).absolute())  # the run is in a folder of its own
    report = run_metrics_benchmark(seconds, pairs, rate, experiment, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        print_bars(report)
    return 0 if report["results"][0]["meets"] else 1
