"""`adamctl plan EXP.toml`: partitions of a network beside as many whole replicas, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import options
from adamctl.cli.number_types import HOSTS_MOST, PARTITIONS_MOST, SECONDS, Counts, Machines, Number
from adamctl.cli.output import print_json, progress
from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from adamctl.config.experiment import Experiment
    from adamctl.model.partition.cost import Link
    from adamctl.model.partition.rates import Rates

COUNT = click.IntRange(1, HOSTS_MOST)


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
@click.option(
    "--machines", type=Machines(), help="Simulate clusters of so many machines, such as 1..1000: see docs/planning.md."
)
@click.option("--servers", type=COUNT, help="With --machines: parameter servers.  [default: what is best]")
@click.option("--data-servers", type=COUNT, help="With --machines: data servers.  [default: what is best]")
@click.option(
    "--spread",
    type=Number(least=0, most=1),
    help="With --machines: standard deviation of the workers' speeds, as a share of their mean.  [default: 0]",
)
@click.option(
    "--jitter", type=Number(least=0, most=1), help="With --machines: the same of one batch's time.  [default: 0]"
)
@click.option(
    "--restart",
    "restart_s",
    type=SECONDS,
    help="With --machines: from a process's start to its first step.  [default: 2.4s]",
)
@options.plot_option
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
    machines: tuple[int, ...] | None,
    servers: int | None,
    data_servers: int | None,
    spread: float | None,
    jitter: float | None,
    restart_s: float | None,
    plot: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compare partitions of EXP.toml's network with as many whole replicas, and name the fastest that fits.

    Looks for good cuts for each number of partitions; those that [partition] gives stay. Every worker has a machine and
    a network of its own, and so has every parameter server (cluster.ps). Times are predicted from the rates at which
    this machine, or the one of --rates, computes each part; docs/partitions.md has the formulas.

    With --measured, these rates are scaled so that the predicted compute time is what a finished or running run of this
    network took. If one of its partitions was slow, cuts are shown with which all would take as long.

    With --machines, whole clusters are simulated: replicas that share parameter servers and data servers, each of which
    has a machine and a link of its own. For each number of machines it shows how they are shared out best, images per
    second, what binds, and what a failure costs. --plot draws that.

    Exit code 2 if nothing fits cluster.memory_per_worker.
    """
    from adamctl.cli.model.partition_figures import conditions_of, measured_figures, plan_figures, rates_for
    from adamctl.cli.model.partition_tables import refuse_what_does_not_fit, show_measured, show_plan
    from adamctl.launch.measured_run import read_measured
    from adamctl.model.partition.cost import TCP_PROCESSOR_S_PER_BYTE, Link

    trained = options.load(experiment, settings, data, flags).experiment
    if trained.has_own_parameters:
        raise ConfigurationError(
            "cluster.ps: found 0; plan compares with whole replicas, which need parameter servers; set it to 1 or more"
        )
    link = Link(link_bytes_per_s, latency_s, TCP_PROCESSOR_S_PER_BYTE)
    if machines is None:
        _refuse_flags_of_machines(servers, data_servers, spread, jitter, restart_s, plot)
    else:
        _refuse_what_is_not_simulated(trained, link)
    found = None if measured is None else read_measured(measured, Path(run_dir), trained)
    priced = numbers if found is None else (*numbers, found.plan.partitions)
    rates, taken = rates_for(trained, priced, rates_file, progress("measuring")), None
    if found is not None:
        rates, taken = measured_figures(found, rates, conditions_of(trained, link).pushing)
    if machines is None:
        figures = plan_figures(trained, numbers, rates, link)
    else:
        figures = _machine_figures(
            trained, machines, numbers, rates, rates_file, link, servers, data_servers, spread, jitter, restart_s
        )
    figures["measured"] = taken
    if as_json:
        print_json(figures)
    else:
        if taken is not None:
            show_measured(taken)
        (show_plan if machines is None else _show_machines)(figures)
    if machines is None:
        refuse_what_does_not_fit(figures, "workers")
    elif plot is not None:
        from adamctl.cli.model.scaling_tables import plot_scaling

        plot_scaling(figures, plot)


def _refuse_flags_of_machines(*values: object) -> None:
    """Raises ConfigurationError: a flag was given that only counts with --machines."""
    names = ("--servers", "--data-servers", "--spread", "--jitter", "--restart", "--plot")
    given = [name for name, value in zip(names, values, strict=True) if value is not None]
    if given:
        raise ConfigurationError(f"{given[0]}: expected --machines with it, such as --machines 1..1000; found none")


def _refuse_what_is_not_simulated(experiment: Experiment, link: Link) -> None:
    """Raises ConfigurationError, before anything is measured."""
    from adamctl.cli.model.scaling_figures import training_of

    training_of(experiment, link)


def _machine_figures(
    experiment: Experiment, machines: tuple[int, ...], partitions: tuple[int, ...], rates: Rates,
    rates_file: str | None, link: Link, servers: int | None, data_servers: int | None, spread: float | None,
    jitter: float | None, restart_s: float | None,
) -> dict[str, Any]:  # fmt: skip
    from adamctl.cli.model.scaling_figures import RESTART_S, scaling_figures, serving_rates_for

    serving = serving_rates_for(experiment, rates_file, progress("measuring"))
    return scaling_figures(
        experiment, machines, partitions, rates, serving, link,
        servers=servers, data_servers=data_servers, spread=spread or 0.0, jitter=jitter or 0.0,
        restart_s=RESTART_S if restart_s is None else restart_s, progress=progress("simulating"),
    )  # fmt: skip


def _show_machines(figures: dict[str, Any]) -> None:
    from adamctl.cli.model.scaling_tables import show_scaling

    show_scaling(figures)
