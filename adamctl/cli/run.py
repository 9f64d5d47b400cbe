"""`adamctl run stop`: ends a job of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import click

from adamctl.cli import options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import echo, print_json

command = TableGroup(
    name="run",
    help="Stop the runs and jobs of a cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={"stop": ("adamctl.cli.run:stop", "End a job: its servers free what they hold of it")},
)


@click.command("stop")
@click.argument("job")
@options.controller_option
@options.token_option
@options.json_option
def stop(job: str, controller: tuple[str, ...], token: str, as_json: bool) -> None:
    """End JOB.

    A run of `adamctl train` is asked to write a checkpoint and to end; a job that was made by clients of other
    frameworks, or whose coordinator is gone, ends at once.
    """
    addresses = options.addresses(controller)
    from adamctl.net import loop

    asked = loop.run(_stop(addresses, token, job))
    if as_json:
        print_json({"job": job, "asked": asked})
    else:
        echo(f"job {job} {'was asked to end' if asked else 'has ended'}")


async def _stop(addresses: Sequence[str], token: str, job: str) -> bool:
    """Returns whether the job's coordinator was asked; it ends the job when it has written a checkpoint."""
    from adamctl.cli.cluster_access import ClusterAccess, running_job
    from adamctl.roles.coordinator.job import end_job

    async with ClusterAccess(addresses, token) as cluster:
        name, record = await running_job(cluster.store, job)
        client = await cluster.coordinator_of(record)
        if client is None:
            await end_job(cluster.store, name)
            return False
        try:
            await client.stop("adamctl run stop")
        finally:
            await client.close()
        return True
