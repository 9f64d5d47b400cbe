"""`adamctl status`: the nodes and jobs of a cluster, once."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.output import print_json, table


@click.command("status")
@options.controller_option
@options.token_option
@options.json_option
def command(controller: tuple[str, ...], token: str, as_json: bool) -> None:
    """Show the nodes of a cluster, how each is, and its jobs."""
    addresses = options.addresses(controller)
    from adamctl.net import loop

    cluster = loop.run(_read(addresses, token))
    if as_json:
        print_json(cluster)
        return
    print_cluster(cluster)


def print_cluster(cluster: dict[str, Any]) -> None:
    """Prints the tables of controllers, if there are several, of nodes and of jobs."""
    from adamctl.cli.cluster_table import (
        CONTROLLER_COLUMNS,
        JOB_COLUMNS,
        NODE_COLUMNS,
        controller_rows,
        job_rows,
        node_rows,
    )

    controllers = controller_rows(cluster)
    if len(controllers) > 1:
        click.echo(table(CONTROLLER_COLUMNS, controllers))
        click.echo()
    click.echo(table(NODE_COLUMNS, node_rows(cluster)) if cluster["nodes"] else "no node has registered yet")
    click.echo()
    click.echo(table(JOB_COLUMNS, job_rows(cluster)) if cluster["jobs"] else "no jobs")


async def _read(addresses: tuple[str, ...], token: str) -> dict[str, Any]:
    from adamctl.cli.cluster import ClusterReader

    async with ClusterReader(addresses, token) as reader:
        return await reader.read()
