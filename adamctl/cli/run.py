"""`adamctl run stop`: ends a job of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import print_json

CONTROLLER_DEADLINE_S = 5.0

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
        click.echo(f"job {job} {'was asked to end' if asked else 'has ended'}")


async def _stop(addresses: Sequence[str], token: str, job: str) -> bool:
    """Returns whether the job's coordinator was asked; it ends the job when it has written a checkpoint."""
    from adamctl.cli.ckpt_save import running_job
    from adamctl.config.records import NodeRecord, node_key
    from adamctl.net.address import prefer
    from adamctl.net.handshake import make_hello
    from adamctl.net.stream import StreamTransport
    from adamctl.roles.controller.client import cluster_client, read_record
    from adamctl.roles.coordinator.client import CoordinatorClient
    from adamctl.roles.coordinator.job import end_job

    hello = make_hello("front", f"front-{os.getpid()}", 0, token)
    transport = StreamTransport()
    store = cluster_client(transport, addresses, lambda: hello, deadline_s=CONTROLLER_DEADLINE_S)
    try:
        name, record = await running_job(store, job)
        found: Any = await read_record(store, node_key(record.coordinator), NodeRecord) if record.coordinator else None
        if found is None or found[0].role != "coordinator":
            await end_job(store, name)
            return False
        client = await CoordinatorClient.connect(transport, (prefer(found[0].addresses, found[0].host),), hello)
        try:
            await client.stop("adamctl run stop")
        finally:
            await client.close()
        return True
    finally:
        await store.close()
