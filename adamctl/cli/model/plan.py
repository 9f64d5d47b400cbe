"""`adamctl plan EXP.toml`: partitions of a network beside as many whole replicas, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.number_types import PARTITIONS_MOST, Counts
from adamctl.cli.output import print_json, progress
from adamctl.errors import ConfigurationError


@click.command("plan")
@options.experiment_options
@click.option(
    "--partitions",
    "numbers",
    type=Counts(PARTITIONS_MOST),
    default="1,2,4",
    show_default=True,
    help="Numbers to compare.",
)
@options.machine_options
@click.option("--measured", metavar="RUN", help="Take what this run has measured: a run folder, NAME/NNN or NAME.")
@options.runs_option
@options.json_option
def command(
    experiment: str,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    numbers: tuple[int, ...],
    link_bytes_per_s: float,
    latency_s: float,
    rates_file: str | None,
    measured: str | None,
    run_dir: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compare partitions of EXP.toml's network with as many whole replicas, and name the fastest that fits.

    Looks for good cuts for each number of partitions; those that [partition] gives stay. Every worker has a machine and
    a network of its own, and so has every parameter server (cluster.ps). Times are predicted from the rates at which
    this machine, or the one of --rates, computes each part; docs/partitions.md has the formulas.

    With --measured, these rates are scaled so that the predicted compute time is what a finished or running run of this
    network took. If one of its partitions was slow, cuts are shown with which all would take as long.

    Exit code 2 if nothing fits cluster.memory_per_worker.
    """
    loaded = options.load(experiment, settings, data, flags)
    if loaded.experiment.has_own_parameters:
        raise ConfigurationError(
            "cluster.ps: found 0; plan compares with whole replicas, which need parameter servers; set it to 1 or more"
        )
    from adamctl.cli.model.partition_figures import conditions_of, measured_figures, plan_figures, rates_for
    from adamctl.cli.model.partition_tables import refuse_what_does_not_fit, show_measured, show_plan
    from adamctl.launch.measured_run import read_measured
    from adamctl.model.partition.cost import TCP_PROCESSOR_S_PER_BYTE, Link

    found = None if measured is None else read_measured(measured, Path(run_dir), loaded.experiment)
    priced = numbers if found is None else (*numbers, found.plan.partitions)
    rates = rates_for(loaded.experiment, priced, rates_file, progress("measuring"))
    link, taken = Link(link_bytes_per_s, latency_s, TCP_PROCESSOR_S_PER_BYTE), None
    if found is not None:
        rates, taken = measured_figures(found, rates, conditions_of(loaded.experiment, link).pushing)
    figures = plan_figures(loaded.experiment, numbers, rates, link)
    figures["measured"] = taken
    if as_json:
        print_json(figures)
    else:
        if taken is not None:
            show_measured(taken)
        show_plan(figures)
    refuse_what_does_not_fit(figures, "workers")
