"""`adamctl bench failover`: how long pushes stand still when a parameter server is lost."""

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
"""As in `adamctl.bench.failover.failover`, so that `--help` need not import it; a test compares the two."""
MEGABYTES = Number(above=0, most=1000)


@click.command("failover")
@click.option("--fault", "faults", multiple=True, type=click.Choice(FAULTS), help="Only these.  [default: all]")
@click.option(
    "--lease", "leases_s", type=Numbers(ABOVE_ZERO), default="4,1", show_default=True, help="Of the servers, D."
)
@click.option("--rounds", type=COUNT, default=20, show_default=True, help="Of each fault with each lease.")
@click.option("--model-megabytes", type=MEGABYTES, default=4.0, show_default=True, help="Of weights.")
@options.join_store_option
@options.json_option
def failover(
    faults: tuple[Fault, ...], leases_s: tuple[float, ...], rounds: int, model_megabytes: float, as_json: bool
) -> None:
    """Kill, stop and cut off one of three servers, again and again, while a client pushes to all of them.

    Measured from the fault to the acknowledgement of the next push that touches what the server was primary of. Links
    are cut in network namespaces, which need Linux and no rights. With --config-store, an etcd cluster that is there is
    used, under a prefix of this run's own, instead of a controller; D is then four fifths of 2 s or more whole seconds,
    and links cannot be cut.
    """
    from adamctl.bench.failover import namespaces
    from adamctl.bench.failover.failover import FailoverSettings, run_failover_benchmark

    wanted = faults or FAULTS
    store = options.config_store()
    if store:
        options.addresses(())
        if "cut" in faults:
            raise ConfigurationError("--fault cut: links to an etcd cluster that is there cannot be cut; leave it out")
        wanted = tuple(fault for fault in wanted if fault != "cut")
    settings = FailoverSettings(wanted, leases_s, rounds, int(model_megabytes * 1e6), store)
    if "cut" in wanted and not namespaces.is_inside():
        problem = "" if faults else namespaces.missing()
        if not problem:
            namespaces.go_inside(sys.argv[1:])
        echo(f"without cut links: {problem}", err=True)
        settings = replace(settings, faults=tuple(fault for fault in wanted if fault != "cut"))
    report = run_failover_benchmark(settings, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        print_results(report)
