"""The flags of a run on many machines, and what they ask for together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli.number_types import RUN_TIME_S, Hosts
from adamctl.cli.options import CommandT, insecure_flag

if TYPE_CHECKING:
    from adamctl.launch.hosts.asked import HostsAsked

HOSTS_FLAGS = ("hosts", "engine", "cores", "time_s", "spares", "slurm_partition")
"""Parameters of `hosts_options`."""


def hosts_options(command: CommandT) -> CommandT:
    """Adds the flags that say on which hosts a run is placed; `hosts_asked` makes them one value."""
    names, attributes = insecure_flag()
    for option in (
        click.option(*names, **attributes),
        click.option("--slurm-partition", metavar="P", help="Partition of Slurm, with --on slurm."),
        click.option("--spares", type=int, help="Hosts that wait until another one is lost."),
        click.option("--time", "time_s", type=RUN_TIME_S, help="How long the hosts are wanted, such as 4h."),
        click.option("--cores", type=int, help="Cores of each host that the run may use; by default all of them."),
        click.option(
            "--on",
            "engine",
            metavar="ENGINE",
            help="Who starts the agents of the hosts: you, by a command that is shown (agents, the default), ray, "
            "slurm, or local, for processes of this machine.",
        ),
        click.option(
            "--hosts",
            type=Hosts(),
            help="Run on so many hosts; 2:8 begins with two and takes up to eight as they come.",
        ),
    ):
        command = option(command)
    return command


def hosts_asked(flags: Mapping[str, Any], default_hosts: int) -> HostsAsked | None:
    """Returns what the values of `hosts_options` ask for; None if the run stays on this machine.

    Raises:
        ConfigurationError: a flag does not fit the others.
    """
    from adamctl.launch.hosts.asked import asked

    hosts, engine, cores, time_s, spares, partition = (flags[name] for name in HOSTS_FLAGS)
    own = {} if partition is None else {"slurm-partition": str(partition)}
    return asked(hosts, engine, cores, time_s, spares, own, default_hosts)
