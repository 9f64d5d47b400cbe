"""`adamctl bench hosts`: runs on many hosts against their bars."""

from __future__ import annotations

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, print_bars
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json

PARTS = ("placed", "front", "throughput", "role", "host")
"""Repeats `adamctl.bench.hosts.bars`, so that `--help` need not import it; a test compares the two."""


@click.command("hosts")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Measure only this.  [default: all]")
@click.option("--hosts", "count", type=COUNT, default=300, show_default=True, help="Agents without roles at one front.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds of the comparison with roles by hand.")
@click.option("--seconds", type=ABOVE_ZERO, default=10.0, show_default=True, help="How long each is measured.")
@options.json_option
def hosts(parts: tuple[str, ...], count: int, rounds: int, seconds: float, as_json: bool) -> None:
    """Measure many agents at one front, roles through agents against the same by hand, and the loss of role and host.

    All hosts are this machine. A lost host is one whose processes are all frozen.
    """
    from adamctl.bench.hosts.bars import measure
    from adamctl.bench.report import make_report
    from adamctl.net import loop

    rows = loop.run(measure(parts or PARTS, count, rounds, seconds, lambda text: echo(text, err=True)))
    report = make_report("hosts", ("msgspec", "uvloop"), rows)
    if as_json:
        print_json(report)
    else:
        print_bars(report)
