"""`adamctl events`: what happened to the copies of buckets, when and why."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import options
from adamctl.cli.output import SCHEMA_VERSION, echo, print_json
from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from adamctl.cli.cluster.copies import Event

FOLLOW_S = 20.0


@click.command("events")
@click.option("--job", default="", metavar="NAME", help="Only this job's buckets.")
@click.option("-f", "--follow", is_flag=True, help="Keep showing new events until Ctrl-C.")
@options.controller_option
@options.token_option
@options.json_option
def command(job: str, follow: bool, controller: tuple[str, ...], token: str, as_json: bool) -> None:
    """Show which servers became primary or gained or lost sync, when and why: the last changes of each bucket.

    Times come from the clocks of the servers that made the changes. With --follow, --json prints one object per line.
    """
    addresses = options.addresses(controller)
    from adamctl.net import loop

    loop.run(_show(addresses, token, job, follow, as_json))


def line(event: Event) -> str:
    """Returns an event as text for people."""
    from adamctl.model.layout import bucket_ranges

    when = datetime.fromtimestamp(event.unix_s).astimezone().isoformat(" ", "milliseconds")
    return f"{when}  {event.job}, {bucket_ranges(event.buckets)}: {event.what} ({event.why})"


async def _show(addresses: tuple[str, ...], token: str, job: str, follow: bool, as_json: bool) -> None:
    from adamctl.cli.cluster.access import ClusterAccess
    from adamctl.cli.cluster.copies import events

    async with ClusterAccess(addresses, token) as cluster:
        store = cluster.store
        revision, entries = await store.read("/jobs/")
        found = events(entries, job)
        jobs = sorted({entry.key.split("/")[2] for entry in entries})
        if job and job not in jobs and not follow:
            known = ", ".join(jobs) or "none"
            raise ConfigurationError(f"--job: expected an existing job; found {job!r} (jobs: {known})")
        if not follow:
            if as_json:
                print_json({"events": [event.values() for event in found]})
            else:
                echo("\n".join(map(line, found)) if found else "nothing has happened")
            return
        told: set[tuple[str, int, int]] = set()
        _tell(found, told, as_json)
        while True:
            changes = await store.watch("/jobs/", revision, FOLLOW_S)
            revision = changes.revision
            _tell(events(changes.entries, job), told, as_json)


def _tell(found: list[Event], told: set[tuple[str, int, int]], as_json: bool) -> None:
    """Prints events that were not printed in full before; each epoch of a bucket is printed once."""
    for event in found:
        keys = {(event.job, bucket, event.epoch) for bucket in event.buckets}
        if keys <= told:
            continue
        told |= keys
        values: dict[str, Any] = {"schema_version": SCHEMA_VERSION} | event.values()
        echo(json.dumps(values) if as_json else line(event))
