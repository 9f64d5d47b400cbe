"""`adamctl bench partition`: what it costs to hold a replica in several processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, Counts, print_bars, print_results
from adamctl.cli.number_types import ABOVE_ZERO, BYTES_PER_S, Number
from adamctl.cli.output import echo, print_json, progress
from adamctl.errors import RunFailedError
from adamctl.net.address import TransportKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adamctl.bench.partition.machines import Machines
    from adamctl.config.experiment import Experiment
    from adamctl.model.partition.rates import Rates

PAUSED_MOST = 0.9


@click.command("partition")
@options.experiment_options
@click.option("--partition-counts", type=Counts(), default="2,4", show_default=True, help="Partitions of a replica.")
@click.option("--all-threads", type=COUNT, default=2, show_default=True, help="Threads of a replica, together.")
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(["shared", "tcp", "unix"]),
    help="How partitions reach each other, on loopback; repeatable.  [default: shared; with links tcp]",
)
@click.option(
    "--link",
    "links_bytes_per_s",
    multiple=True,
    type=BYTES_PER_S,
    help="Give each partition a network of its own with a link of this rate, such as 100Mbit; repeatable.",
)
@click.option(
    "--transfer-share", type=ABOVE_ZERO, help="One more link: its transfer takes this share of a flight's compute time."
)
@click.option("--quota", "quota_cores", type=ABOVE_ZERO, help="Give each process this share of a core.")
@click.option(
    "--pauses",
    "pause_share",
    type=Number(above=0, most=PAUSED_MOST),
    help="Stop each partition at random for this share of the time, never two at once.",
)
@click.option("--pause-seconds", type=ABOVE_ZERO, default=0.05, show_default=True, help="Mean length of a pause.")
@click.option("--predict", "predicts", is_flag=True, help="Measure this machine's rates, and predict each setting.")
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
@click.option(
    "--inference",
    "infers",
    is_flag=True,
    help="Time forward-only flights, as predict has them, beside training, with the first of --partition-counts.",
)
@options.json_option
def partition(
    experiment: str, settings: tuple[str, ...], data: tuple[str, ...], partition_counts: tuple[int, ...],
    all_threads: int, transports: tuple[TransportKind, ...], links_bytes_per_s: tuple[float, ...],
    transfer_share: float | None, quota_cores: float | None, pause_share: float | None, pause_seconds: float,
    predicts: bool, flight_counts: tuple[int, ...] | None, examples: int, rounds: int, seconds: float, checks: bool,
    infers: bool, as_json: bool, **flags: Any,
) -> int:  # fmt: skip
    """Train EXP.toml's network in one process and in several partitions, in turn, with the same number of threads.

    Partitions may be on emulated machines: with links (network namespaces, which need Linux but no privileges), a share
    of a core (control groups, which need privileges), or pauses. hidden_share is how much of the links' transfer
    does not make a flight longer; over_fewest_flights the speed over that with the fewest of --flight-counts.

    With --check one step is compared, not timed: exit code 1 if a layer differs by more than the rounding of sums.

    With --inference training and inference take turns on this machine as it is: exit code 1 if the ratio of inference
    is more than 0.05 below that of training.
    """
    loaded = options.load(experiment, settings, data, flags)
    if checks:
        _check(loaded.experiment, partition_counts, examples, as_json)
        return 0
    counts = [count for count in partition_counts if count > 1]
    if infers:
        return _infer(loaded.experiment, counts, all_threads, examples, rounds, seconds, as_json)
    from adamctl.bench.partition.machines import Machines, Pauses
    from adamctl.bench.partition.partition import run_partition_benchmark

    machines = Machines(
        tuple(dict.fromkeys(links_bytes_per_s)),
        transfer_share,
        quota_cores,
        None if pause_share is None else Pauses(pause_share, pause_seconds),
    )
    _go_where_links_are(machines)
    usual: tuple[TransportKind, ...] = ("tcp",) if machines.have_links else ("shared",)
    report = run_partition_benchmark(
        loaded.experiment,
        counts,
        threads=all_threads,
        batch=examples,
        flights=flight_counts or (),
        transports=tuple(dict.fromkeys(transports)) or usual,
        machines=machines,
        machine_rates=_rates(loaded.experiment, counts, examples) if predicts else None,
        rounds=rounds,
        seconds=seconds,
        progress=lambda line: echo(line, err=True),
    )
    if as_json:
        print_json(report)
    else:
        print_results(report)
    return 0


def _infer(
    experiment: Experiment, counts: Sequence[int], threads: int, examples: int, rounds: int, seconds: float,
    as_json: bool,
) -> int:  # fmt: skip
    from adamctl.bench.partition.inference import run_inference_benchmark

    if not counts:
        raise click.BadParameter("expected a number above 1 with --inference", param_hint="--partition-counts")
    report = run_inference_benchmark(
        experiment, counts[0], threads=threads, batch=examples, rounds=rounds, seconds=seconds,
        progress=lambda line: echo(line, err=True),
    )  # fmt: skip
    if as_json:
        print_json(report)
    else:
        print_bars(report)
    return 0 if report["results"][-1]["meets"] else 1


def _go_where_links_are(machines: Machines) -> None:
    """Continues in a network namespace if links are wanted.

    Raises:
        ConfigurationError: namespaces are not available here.
    """
    from adamctl.bench import namespaces

    if machines.have_links and not namespaces.is_inside():
        namespaces.go_inside(sys.argv[1:])


def _rates(experiment: Experiment, counts: Sequence[int], examples: int) -> Rates:
    from adamctl.bench.slices import measure_rates
    from adamctl.config.partitioning import plan_of

    return measure_rates([plan_of(experiment, number) for number in (1, *counts)], examples, progress("measuring"))


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
