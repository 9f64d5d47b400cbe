"""`adamctl bench soak`: hours of faults, with an account of every push."""

from __future__ import annotations

from pathlib import Path

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import print_results
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json


@click.command("soak")
@click.option("--hours", type=ABOVE_ZERO, default=2.0, show_default=True, help="How long, all starts together.")
@click.option(
    "--folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it keeps everything. One that was interrupted there goes on.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the order of faults.")
@click.option(
    "--acks",
    type=click.Choice(["durable", "replicated"]),
    default="durable",
    show_default=True,
    help="When a push is acknowledged: on the disk of every copy, or in its memory. Of the latter, those of a start "
    "that was interrupted may be lost, as all servers end with it.",
)
@click.option("--every", type=ABOVE_ZERO, default=30.0, show_default=True, help="Seconds from one fault to the next.")
@options.json_option
def soak(hours: float, folder: Path, seed: int, acks: str, every: float, as_json: bool) -> int:
    """Run a cluster under faults for hours: nothing acknowledged is lost, and no process grows.

    Three servers with three copies of everything and stores, three controllers, clients that push all the time, and a
    metrics server that is scraped every second. Servers are killed, stopped, cut off and left without room on the disk;
    controllers are killed and stopped. A line a minute tells how it goes; the report and a picture are written to
    --folder. Linux alone.
    """
    from adamctl.bench.soak.picture import check, draw
    from adamctl.bench.soak.record import Record
    from adamctl.bench.soak.soak import SoakSettings, run_soak

    check()
    settings = SoakSettings(folder, hours * 3600, seed, acks, every)
    report = run_soak(settings, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        print_results(report)
    for file in draw(Record(folder), report):
        echo(f"picture: {file}", err=True)
    return 0 if report["results"][0]["meets"] is not False else 1
