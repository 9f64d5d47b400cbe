"""`adamctl bench partition`: what it costs to hold a replica in several processes."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, Counts, print_results
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json
from adamctl.config.experiment import Experiment
from adamctl.errors import RunFailedError
from adamctl.net.address import TransportKind


@click.command("partition")
@options.experiment_options
@click.option("--partition-counts", type=Counts(), default="2,4", show_default=True, help="Partitions of a replica.")
@click.option("--all-threads", type=COUNT, default=2, show_default=True, help="Threads of a replica, together.")
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(["shared", "tcp", "unix"]),
    help="How partitions reach each other, on loopback; several are measured in turn.  [default: shared]",
)
@click.option("--flight-counts", type=Counts(), help="Open flights.  [default: as a run has them]")
@click.option("--examples", type=COUNT, default=32, show_default=True, help="Examples per step.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds per setting; the median counts.")
@click.option("--seconds", type=ABOVE_ZERO, default=5.0, show_default=True, help="About how long a round takes.")
@click.option(
    "--check",
    "checks",
    is_flag=True,
    help="Measure nothing: compare one step in one process and in partitions, layer by layer.",
)
@options.json_option
def partition(
    experiment: str, settings: tuple[str, ...], data: tuple[str, ...], partition_counts: tuple[int, ...],
    all_threads: int, transports: tuple[TransportKind, ...], flight_counts: tuple[int, ...] | None, examples: int,
    rounds: int, seconds: float, checks: bool, as_json: bool, **flags: Any,
) -> None:  # fmt: skip
    """Train EXP.toml's network in one process and in several partitions, in turn, with the same number of threads.

    With --check one step is compared, not timed: exit code 1 if a layer differs by more than the rounding of sums.
    """
    loaded = options.load(experiment, settings, data, flags)
    if checks:
        _check(loaded.experiment, partition_counts, examples, as_json)
        return
    from adamctl.bench.partition.partition import run_partition_benchmark

    report = run_partition_benchmark(
        loaded.experiment,
        [count for count in partition_counts if count > 1],
        threads=all_threads,
        batch=examples,
        flights=flight_counts or (),
        transports=tuple(dict.fromkeys(transports)) or ("shared",),
        rounds=rounds,
        seconds=seconds,
        progress=lambda line: echo(line, err=True),
    )
    if as_json:
        print_json(report)
        return
    print_results(report)


def _check(experiment: Experiment, partition_counts: tuple[int, ...], examples: int, as_json: bool) -> None:
    from adamctl.bench.partition.check import above_limit, check_partitions

    report = check_partitions(
        experiment, [count for count in partition_counts if count > 1], batch=examples,
        progress=lambda line: echo(line, err=True),
    )  # fmt: skip
    if as_json:
        print_json(report)
    else:
        print_results(report)
    if wrong := above_limit(report):
        raise RunFailedError(
            "partitions do not compute what one process does; a difference above the limit is none of rounding:\n  "
            + "\n  ".join(wrong)
        )
