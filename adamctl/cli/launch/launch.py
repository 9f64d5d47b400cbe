"""`adamctl launch slurm|ray|k8s|systemd`: scripts for engines that start a run, to be read and changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from adamctl.cli import options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.number_types import RUN_TIME_S, Hosts
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from adamctl.launch.scripts.wanted import Wanted

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
ROLES = ("controller", "ps", "data", "worker", "host")
"""`ROLES` of `adamctl.launch.scripts.systemd`, which `--help` need not import; a test compares the two."""

command = TableGroup(
    name="launch",
    help="Print what starts a run by Slurm, Ray or Kubernetes, or a role by systemd.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "slurm": ("adamctl.cli.launch.launch:slurm", "A script for sbatch"),
        "ray": ("adamctl.cli.launch.launch:ray", "A script that submits a job to a Ray cluster"),
        "k8s": ("adamctl.cli.launch.launch:k8s", "Objects for kubectl apply"),
        "systemd": ("adamctl.cli.launch.launch:systemd", "A unit for one role on each machine"),
    },
)

print_option = click.option("--print", "printed", is_flag=True, help="Print it to stdout. Nothing is started.")


def _size_options(command: CommandT) -> CommandT:
    for names, attributes in reversed(
        (
            (["--hosts"], {"default": (2, 2), "type": Hosts(), "show_default": "2", "help": "Hosts, or least:most."}),
            (["--cores"], {"default": 0, "type": click.IntRange(0, 4096), "help": "Cores of each; by default all."}),
            (
                ["--insecure"],
                {"is_flag": True, "help": "The network between the hosts is trusted: no TLS, a token only."},
            ),
            (["--time", "time_s"], {"default": 0.0, "type": RUN_TIME_S, "help": "For how long, such as 4h."}),
        )
    ):
        command = click.option(*names, **attributes)(command)  # type: ignore[arg-type]
    return command


@click.command("slurm")
@click.argument("experiment", metavar="EXP.toml")
@_size_options
@click.option("--slurm-partition", default="", metavar="PARTITION", help="Slurm's partition; by default Slurm's own.")
@print_option
def slurm(
    experiment: str,
    hosts: tuple[int, int],
    cores: int,
    time_s: float,
    insecure: bool,
    slurm_partition: str,
    printed: bool,
) -> None:
    """Print a script for sbatch that trains EXP.toml on nodes of Slurm.

    adamctl launch slurm EXP.toml --hosts 4 --time 4h --print > run.sbatch; then sbatch run.sbatch
    """
    _only_printed(printed, "sbatch")
    from adamctl.launch.scripts.slurm import slurm_script

    echo(slurm_script(_wanted(experiment, hosts, cores, time_s, insecure), slurm_partition), nl=False)


@click.command("ray")
@click.argument("experiment", metavar="EXP.toml")
@_size_options
@print_option
def ray(experiment: str, hosts: tuple[int, int], cores: int, time_s: float, insecure: bool, printed: bool) -> None:
    """Print a script that submits the training of EXP.toml to a Ray cluster.

    adamctl launch ray EXP.toml --hosts 4 --print > run.sh; then sh run.sh http://HEAD:8265
    """
    _only_printed(printed, "sh")
    from adamctl.launch.scripts.ray import ray_script

    echo(ray_script(_wanted(experiment, hosts, cores, time_s, insecure), Path.cwd()), nl=False)


@click.command("k8s")
@click.argument("experiment", metavar="EXP.toml")
@_size_options
@click.option("--image", default="adamctl:latest", show_default=True, metavar="IMAGE", help="Image with adamctl.")
@print_option
def k8s(
    experiment: str, hosts: tuple[int, int], cores: int, time_s: float, insecure: bool, image: str, printed: bool
) -> None:
    """Print objects of Kubernetes that train EXP.toml: one Job with the front, an Indexed Job with host agents.

    adamctl launch k8s EXP.toml --hosts 4 --cores 8 --print > run.yaml; then kubectl apply -f run.yaml
    """
    _only_printed(printed, "kubectl apply -f")
    from adamctl.launch.scripts.kubernetes import kubernetes_description

    wanted = _wanted(experiment, hosts, cores, time_s, insecure)
    echo(kubernetes_description(wanted, Path(experiment).read_text(), image), nl=False)


@click.command("systemd")
@click.argument("role", type=click.Choice(ROLES))
@print_option
def systemd(role: str, printed: bool) -> None:
    """Print a unit of systemd for ROLE, which then runs for as long as its machine.

    adamctl launch systemd ps --print > /etc/systemd/system/adamctl-ps.service
    """
    _only_printed(printed, "systemctl enable --now")
    from adamctl.launch.scripts.systemd import systemd_unit

    found = shutil.which("adamctl")
    echo(systemd_unit(role, os.path.abspath(found) if found else "/usr/local/bin/adamctl"), nl=False)


def _only_printed(printed: bool, then: str) -> None:
    """Raises ConfigurationError: --print is missing. What starts machines should be looked at first."""
    if not printed:
        raise ConfigurationError(f"give --print: it writes the text to stdout; look at it, then pass it to {then}")


def _wanted(experiment: str, hosts: tuple[int, int], cores: int, time_s: float, insecure: bool) -> Wanted:
    """Returns what a script is made of.

    Raises:
        ConfigurationError: the experiment is wrong, which should be known before it waits in a queue.
    """
    from adamctl.config.names import as_name, printable
    from adamctl.launch.scripts.wanted import Wanted
    from adamctl.net.sockets import is_insecure

    loaded = options.load(experiment, (), (), {})
    trusted = insecure or is_insecure(os.environ)
    return Wanted(as_name(loaded.experiment.name), printable(experiment), *hosts, cores, time_s, trusted)
