"""`adamctl run`: the runs of this machine, and how to end one, here or on a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adamctl.cli import completing, options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import echo, print_json

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
        name, asked = loop.run(_stop(options.addresses(controller), token, job))
    if as_json:
        print_json({"job": name, "asked": asked})
    else:
        echo(f"{'run' if run else 'job'} {name} {'was asked to end' if asked else 'has ended'}")


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
