"""`adamctl run`: the runs of this machine, and how to end one, here or on a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from adamctl.cli import completing, options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import echo, print_json
from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from adamctl.launch.live_runs import LiveRun

command = TableGroup(
    name="run",
    help="List, show, follow, stop and remove runs; stop the jobs of a cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "list": ("adamctl.cli.run.runs:list_", "Show the runs of this machine and the state of each"),
        "show": ("adamctl.cli.run.runs:show", "Show the state of one run"),
        "follow": ("adamctl.cli.run.follow:command", "Hand what a run measures to TensorBoard or another sink"),
        "stop": ("adamctl.cli.run.run:stop", "End a run, or a job of a cluster; servers free its memory"),
        "rm": ("adamctl.cli.run.runs:rm", "Remove ended runs, or only their servers' stores"),
    },
)


@click.command("stop")
@click.argument("job", required=False, shell_complete=completing.live_runs)
@options.controller_option
@options.token_option
@options.json_option
def stop(job: str | None, controller: tuple[str, ...], token: str, as_json: bool) -> None:
    """End JOB: a run in progress on this machine (its folder, NAME/NNN or NAME), or a job of the cluster.

    JOB may be left out if there is only one. A run of `adamctl train` is asked to write a checkpoint and end; a job
    that clients of other frameworks made, or whose coordinator is gone, ends at once.
    """
    from adamctl.net import loop

    run = options.live_run(job, controller)
    if run is not None:
        name, asked = run.name, True
        loop.run(_stop_run(run, token))
    else:
        if job and not controller and not options.config_store():
            _refuse_what_is_over(job)
        name, asked = loop.run(_stop(options.addresses(controller), token, job))
    if as_json:
        print_json({"job": name, "asked": asked})
    else:
        echo(f"{'run' if run else 'job'} {name} {'was asked to end' if asked else 'has ended'}")


def _refuse_what_is_over(job: str) -> None:
    """Raises ConfigurationError: a run that is over has this name, and there is no cluster here with such a job."""
    from adamctl.cli.cluster.access import default_listens
    from adamctl.launch.known_runs import look_at
    from adamctl.launch.live_runs import live_runs, state_folder
    from adamctl.launch.run_folder import find_run

    state = state_folder(os.environ)
    try:
        found = look_at(find_run(job), state)
    except ConfigurationError:
        return  # only a cluster may know it
    if not live_runs(state) and not default_listens():
        raise ConfigurationError(
            f"run {found.name} is not in progress; its state is {found.state!r}: adamctl run show {quote(found.name)}"
        )


async def _stop_run(run: LiveRun, token: str) -> None:
    """Asks a run of this machine through its coordinator, or through its front while the coordinator is not ready."""
    from adamctl.launch.run_certificates import run_transport
    from adamctl.launch.run_token import read_token
    from adamctl.net.handshake import make_hello
    from adamctl.roles.coordinator.client import CoordinatorClient

    if not run.coordinator:
        os.kill(run.pid, signal.SIGTERM)
        return
    hello = make_hello("front", f"front-{os.getpid()}", 0, token or read_token(Path(run.folder)))
    client = await CoordinatorClient.connect(run_transport(Path(run.folder)), run.coordinator, hello)
    try:
        await client.stop("adamctl run stop")
    finally:
        await client.close()


async def _stop(addresses: Sequence[str], token: str, job: str | None) -> tuple[str, bool]:
    """Returns the job, and whether its coordinator was asked; that ends the job after it has written a checkpoint."""
    from adamctl.cli.cluster.access import ClusterAccess, running_job
    from adamctl.roles.coordinator.job import end_job

    async with ClusterAccess(addresses, token) as cluster:
        name, record = await running_job(cluster.store, job)
        client = await cluster.coordinator_of(record)
        if client is None:
            await end_job(cluster.store, name)
            return name, False
        try:
            await client.stop("adamctl run stop")
        finally:
            await client.close()
        return name, True
