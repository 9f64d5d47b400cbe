"""`adamctl plan EXP.toml`: partitions of a network beside as many whole replicas, before anything starts."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.number_types import Counts
from adamctl.cli.output import print_json, progress

MOST = 64


@click.command("plan")
@options.experiment_options
@click.option(
    "--partitions", "numbers", type=Counts(MOST), default="1,2,4", show_default=True, help="Numbers to compare."
)
@options.machine_options
@options.json_option
def command(
    experiment: str,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    numbers: tuple[int, ...],
    link_bytes_per_s: float,
    latency_s: float,
    rates_file: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compare partitions of EXP.toml's network with as many whole replicas, and name the fastest that fits.

    Looks for good cuts for each number of partitions; those that [partition] gives stay. Every worker has a machine and
    a network of its own, and so has every parameter server (cluster.ps). Times are predicted from the rates at which
    this machine, or the one of --rates, computes each part; docs/partitions.md has the formulas.

    Exit code 2 if nothing fits cluster.memory_per_worker.
    """
    loaded = options.load(experiment, settings, data, flags)
    from adamctl.cli.model.partition_figures import plan_figures, rates_for
    from adamctl.cli.model.partition_tables import refuse_what_does_not_fit, show_plan
    from adamctl.model.partition.cost import Link

    rates = rates_for(loaded.experiment, numbers, rates_file, progress("measuring"))
    figures = plan_figures(loaded.experiment, numbers, rates, Link(link_bytes_per_s, latency_s))
    if as_json:
        print_json(figures)
    else:
        show_plan(figures)
    refuse_what_does_not_fit(figures, "workers")
