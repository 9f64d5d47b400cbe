"""`adamctl shards`: which server holds which buckets of which job, since when and why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from adamctl.cli import options
from adamctl.cli.output import EXIT_DEGRADED, echo, print_json, table

if TYPE_CHECKING:
    from adamctl.cli.cluster.copies import Holding

COLUMNS = ("job", "bucket", "shards", "size", "epoch", "primary", "others in sync", "learners", "for", "why")


@click.command("shards")
@click.option("--job", default="", metavar="NAME", help="Only this job's buckets.")
@click.option("--node", default="", metavar="NODE", help="Only buckets that this server holds a copy of.")
@click.option("--check", is_flag=True, help="Exit with code 4 if a bucket lacks copies or its primary.")
@options.controller_option
@options.token_option
@options.json_option
def command(job: str, node: str, check: bool, controller: tuple[str, ...], token: str, as_json: bool) -> int:
    """Show which parameter servers hold the buckets of the running jobs.

    A bucket is a group of shards that are placed and copied together. Its primary takes pushes and pulls; the others in
    sync hold every acknowledged update; learners are still receiving a copy.
    """
    addresses = options.addresses(controller)
    from adamctl.net import loop

    found, members, shared = loop.run(_read(addresses, token, job))
    if node:
        found = [one for one in found if node in (*one.record.in_sync, *one.record.learners)]
    if node and not found and node not in members:
        echo(f"no live parameter server is called {node!r}; live ones: {', '.join(members) or 'none'}", err=True)
    degraded = [one for one in found if one.problem]
    if as_json:
        print_json({"buckets": [one.values() for one in found], "degraded": len(degraded), "sharing": shared})
    elif not found:
        echo("no buckets")
    else:
        echo(table(COLUMNS, rows(found, time.time()), right=(1, 2, 3, 4)))
        echo()
        echo("\n".join((summary(found), *shared)))
    return EXIT_DEGRADED if check and degraded else 0


def rows(found: Sequence[Holding], now_unix_s: float) -> list[tuple[str, ...]]:
    """Returns one row per bucket."""
    from adamctl.live.units import duration, size

    return [
        (
            one.job,
            str(one.bucket),
            str(one.shards),
            size(one.size_bytes),
            str(one.record.epoch),
            one.record.primary,
            " ".join(node for node in one.record.in_sync if node != one.record.primary) or "-",
            " ".join(one.record.learners) or "-",
            duration(max(now_unix_s - one.record.since_unix_s, 0.0)) if one.record.since_unix_s else "-",
            "; ".join(text for text in (one.problem, one.record.why) if text) or "-",
        )
        for one in found
    ]


def summary(found: Sequence[Holding]) -> str:
    """Returns how many buckets there are, and how many of them lack something."""
    degraded = sum(bool(one.problem) for one in found)
    learning = sum(bool(one.record.learners) for one in found)
    copied = f", {learning} being copied" if learning else ""
    state = f"{degraded} of them without all copies" if degraded else "each with its primary and all copies"
    return f"{len(found)} buckets, {state}{copied}"


async def _read(addresses: tuple[str, ...], token: str, job: str) -> tuple[list[Holding], list[str], list[str]]:
    """Returns buckets, the names of the live parameter servers, and which jobs' copies share failure domains."""
    from adamctl.cli.cluster.access import ClusterAccess, running_job
    from adamctl.cli.cluster.copies import holdings, sharing
    from adamctl.roles.configuration import nodes_of

    async with ClusterAccess(addresses, token) as cluster:
        if job:
            await running_job(cluster.store, job, "--job")
        _, nodes = await cluster.store.read("/nodes/")
        _, entries = await cluster.store.read("/jobs/")
        members = nodes_of(nodes, "ps")
        shared = sharing([entry for entry in entries if not job or entry.key == f"/jobs/{job}"], members)
        return holdings(entries, nodes, job), sorted(record.node for record in members), shared
