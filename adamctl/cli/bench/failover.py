"""`adamctl bench failover`: how long pushes stall when a parameter server is lost."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, print_results
from adamctl.cli.number_types import ABOVE_ZERO, Number, Numbers
from adamctl.cli.output import echo, print_json
from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from adamctl.bench.failover.failover import Fault

FAULTS: tuple[Fault, ...] = ("kill", "stop", "cut")
"""Repeats `adamctl.bench.failover.failover`, so that `--help` need not import it; a test compares the two."""
MEGABYTES = Number(above=0, most=1000)


@click.command("failover")
@click.option(
    "--fault", "faults", multiple=True, type=click.Choice(FAULTS), help="Measure only this fault.  [default: all]"
)
@click.option(
    "--lease",
    "leases_s",
    type=Numbers(ABOVE_ZERO),
    default="4,1",
    show_default=True,
    help="Lease D of the servers, in seconds.",
)
@click.option("--rounds", type=COUNT, default=20, show_default=True, help="Rounds per fault and lease.")
@click.option("--model-megabytes", type=MEGABYTES, default=4.0, show_default=True, help="Size of the weights.")
@options.join_store_option
@options.json_option
def failover(
    faults: tuple[Fault, ...], leases_s: tuple[float, ...], rounds: int, model_megabytes: float, as_json: bool
) -> None:
    """Kill, stop and cut off one of three servers, again and again, while a client pushes to all of them.

    The time runs from the fault to the acknowledgement of the next push to a bucket whose primary was that server.
    Links are cut in network namespaces, which need Linux but no privileges. With --config-store, a running etcd
    cluster is used instead of a controller, under a prefix of this run's own; D is then four fifths of a whole number
    of seconds, 2 or more, and links cannot be cut.
    """
    from adamctl.bench import namespaces
    from adamctl.bench.failover.failover import FailoverSettings, run_failover_benchmark

    wanted = faults or FAULTS
    store = options.config_store()
    if store:
        options.addresses(())
        if "cut" in faults:
            raise ConfigurationError("--fault cut: links to a running etcd cluster cannot be cut; leave it out")
        wanted = tuple(fault for fault in wanted if fault != "cut")
    settings = FailoverSettings(wanted, leases_s, rounds, int(model_megabytes * 1e6), store)
    if "cut" in wanted and not namespaces.is_inside():
        problem = "" if faults else namespaces.missing()
        if not problem:
            namespaces.go_inside(sys.argv[1:])
        echo(f"links are not cut: {problem}", err=True)
        settings = replace(settings, faults=tuple(fault for fault in wanted if fault != "cut"))
    report = run_failover_benchmark(settings, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        print_results(report)
