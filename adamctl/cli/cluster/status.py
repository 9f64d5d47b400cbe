"""`adamctl status`: shows the nodes and jobs of a cluster once."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.output import echo, print_json, table
from adamctl.errors import UnreachableError


@click.command("status")
@options.live_run_argument
@options.controller_option
@options.token_option
@options.json_option
def command(controller: tuple[str, ...], token: str, as_json: bool) -> None:
    """Show the nodes of a cluster, the version and the state of each, and its jobs."""
    addresses = options.addresses(controller)
    from adamctl.net import loop

    cluster, problem = loop.run(_read(addresses, token))
    if as_json:
        print_json(cluster if problem is None else {**cluster, "error": str(problem), "exit_code": problem.exit_code})
    elif problem is None:
        print_cluster(cluster)
    else:
        print_controllers(cluster["controllers"])
    if problem is not None:
        raise problem


def print_cluster(cluster: dict[str, Any]) -> None:
    """Prints the tables of controllers (if there are several), nodes and jobs."""
    from adamctl.cli.cluster.table import (
        CONTROLLER_COLUMNS,
        JOB_COLUMNS,
        NODE_COLUMNS,
        REPLICA_COLUMNS,
        certificates,
        controller_rows,
        job_rows,
        node_rows,
        proposals,
        replica_rows,
    )

    controllers = controller_rows(cluster)
    if len(controllers) > 1:
        echo(table(CONTROLLER_COLUMNS, controllers))
        echo()
    echo(table(NODE_COLUMNS, node_rows(cluster)) if cluster["nodes"] else "no node has registered yet")
    if replicas := replica_rows(cluster):
        echo()
        echo(table(REPLICA_COLUMNS, replicas, right=(2, 6)))
        for line in proposals(cluster):
            echo(line)
    echo()
    echo(table(JOB_COLUMNS, job_rows(cluster)) if cluster["jobs"] else "no jobs")
    for line in cluster.get("sharing", ()):
        echo(line)
    for line in certificates(cluster):
        echo(line)


def print_controllers(controllers: list[dict[str, Any]]) -> None:
    """Prints each controller's status."""
    from adamctl.cli.cluster.table import CONTROLLER_COLUMNS, standing_rows

    echo(table(CONTROLLER_COLUMNS, standing_rows(controllers)))


async def _read(addresses: tuple[str, ...], token: str) -> tuple[dict[str, Any], UnreachableError | None]:
    """Returns a cluster; or, if none of several controllers leads, only the controllers, and what is wrong."""
    from adamctl.cli.cluster.state import ClusterReader
    from adamctl.cli.cluster.table import why_none_leads

    async with ClusterReader(addresses, token) as reader:
        try:
            return await reader.read_all(), None
        except UnreachableError:
            controllers = await reader.controllers()
            if len(controllers) == 1 or all("error" in status for status in controllers):
                raise
            problem = why_none_leads(controllers)
            return {"problem": problem, "controllers": controllers}, UnreachableError(problem)
