"""`adamctl top`: shows the nodes and jobs of a cluster, refreshed until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import options
from adamctl.cli.cluster.status import print_cluster
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.config.names import printable

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

GAP = 2
"""Spaces between columns."""
RIGHT = frozenset({"partition", "flights"})
"""Columns of numbers."""


@click.command("top")
@options.live_run_argument
@options.controller_option
@options.token_option
@click.option("--interval", type=ABOVE_ZERO, default=1.0, show_default=True, help="Seconds between readings.")
@click.option("--once", is_flag=True, help="Show the cluster once and exit.")
def command(controller: tuple[str, ...], token: str, interval: float, once: bool) -> None:
    """Watch the nodes and jobs of a cluster; Ctrl-C ends it."""
    addresses = options.addresses(controller)
    from adamctl.net import loop

    loop.run(_watch(addresses, token, interval, once))


async def _watch(addresses: tuple[str, ...], token: str, interval_s: float, once: bool) -> None:
    import asyncio

    from rich.console import Console
    from rich.live import Live

    from adamctl.cli.cluster.state import ClusterReader

    console = Console(file=sys.stdout, markup=False, emoji=False)
    async with ClusterReader(addresses, token) as reader:
        if once or not console.is_terminal:
            print_cluster(await reader.read())
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(picture(await reader.read(), console.width), refresh=True)
                await asyncio.sleep(interval_s)


def picture(cluster: dict[str, Any], width: int) -> RenderableType:
    """Returns the tables of a cluster for a terminal of `width` columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from adamctl.cli.cluster.table import (
        JOB_COLUMNS,
        NODE_COLUMNS,
        REPLICA_COLUMNS,
        fitting_columns,
        fitting_replica_columns,
        job_rows,
        node_rows,
        replica_rows,
    )

    nodes, replicas, jobs = node_rows(cluster), replica_rows(cluster), job_rows(cluster)
    chosen = fitting_columns(nodes, width, GAP)
    of_replicas = fitting_replica_columns(replicas, width, GAP)
    title = printable(f"cluster at {cluster['controller']['address']}")
    parts: list[RenderableType] = [Text(title, style="bold cyan"), Text()]
    tables = [(_some(NODE_COLUMNS, chosen), [_some(row, chosen) for row in nodes], "no nodes")]
    if replicas:
        tables.append((_some(REPLICA_COLUMNS, of_replicas), [_some(row, of_replicas) for row in replicas], ""))
    tables.append((list(JOB_COLUMNS), [list(row) for row in jobs], "no jobs"))
    for columns, rows, missing in tables:
        table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False)
        for column, *cells in zip(columns, *rows, strict=True):
            whole = None if column == "status" else max(len(printable(cell)) for cell in (column, *cells))
            right: JustifyMethod = "right" if column in RIGHT else "left"
            table.add_column(column, justify=right, no_wrap=True, overflow="ellipsis", min_width=whole)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        parts += [table if rows else Text(missing, style="dim"), Text()]
    parts.append(Text("Ctrl-C to quit", style="dim"))
    return Group(*parts)


def _some(row: Sequence[str], indices: Sequence[int]) -> list[str]:
    return [row[index] for index in indices]
