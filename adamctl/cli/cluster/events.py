"""`adamctl events`: what happened to the copies of buckets, when and why, and what operators have asked for."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import options
from adamctl.cli.output import SCHEMA_VERSION, echo, print_json
from adamctl.config.names import in_short
from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from adamctl.cli.cluster.copies import Event
    from adamctl.cli.cluster.state import ClusterReader

FOLLOW_S = 20.0


@click.command("events")
@click.option("--job", default="", metavar="NAME", help="Only this job's buckets.")
@click.option("-f", "--follow", is_flag=True, help="Keep showing new events until Ctrl-C.")
@options.controller_option
@options.token_option
@options.json_option
def command(job: str, follow: bool, controller: tuple[str, ...], token: str, as_json: bool) -> None:
    """Show which servers became primary or gained or lost sync, when and why: the last changes of each bucket.

    Also shows what operators have asked of the controllers lately (drain, recover, replace and the like), and what came
    of it. Their logs have all of that; what is shown here they forget when they are started again.

    Times come from the clocks of the processes that made the changes. With --follow, --json prints one object per line.
    """
    addresses = options.addresses(controller)
    from adamctl.net import loop

    loop.run(_show(addresses, token, job, follow, as_json))


def line(event: Event) -> str:
    """Returns an event as text for people."""
    from adamctl.model.layout import bucket_ranges

    when = datetime.fromtimestamp(event.unix_s).astimezone().isoformat(" ", "milliseconds")
    return in_short(f"{when}  {event.job}, {bucket_ranges(event.buckets)}: {event.what} ({event.why})")


def administration_line(told: dict[str, Any]) -> str:
    """Returns a line of a controller's audit as text for people."""
    when = datetime.fromtimestamp(told.get("unix_s", 0.0)).astimezone().isoformat(" ", "milliseconds")
    what, named = told.get("what", ""), told.get("message", "")
    parts = what if isinstance(what, str) else " ".join(f"{key}={value}" for key, value in what.items())
    who = f"{told.get('who', '')} (by {told.get('by', '')})"
    return in_short(f"{when}  {who} asked {told.get('to', '')}: {named} {parts}: {told.get('result', '')}")


async def _administration(reader: ClusterReader, job: str) -> list[dict[str, Any]]:
    """Returns what the controllers have been asked for, in the order of their clocks; nothing if a job is asked for."""
    statuses = [] if job else await reader.controllers()
    return sorted((told for one in statuses for told in one.get("audit", ())), key=lambda told: float(told["unix_s"]))


async def _show(addresses: tuple[str, ...], token: str, job: str, follow: bool, as_json: bool) -> None:
    from adamctl.cli.cluster.copies import events
    from adamctl.cli.cluster.state import ClusterReader

    async with ClusterReader(addresses, token) as reader:
        store = reader.store
        revision, entries = await store.read("/jobs/")
        found, asked = events(entries, job), await _administration(reader, job)
        jobs = sorted({entry.key.split("/")[2] for entry in entries})
        if job and job not in jobs and not follow:
            known = ", ".join(jobs) or "none"
            raise ConfigurationError(f"--job: expected an existing job; found {job!r} (jobs: {known})")
        if not follow:
            if as_json:
                print_json({"events": [event.values() for event in found], "administration": asked})
            else:
                shown = sorted([*((one.unix_s, line(one)) for one in found), *_lines(asked)])
                echo("\n".join(text for _, text in shown) if shown else "nothing has happened")
            return
        told: set[tuple[str, int, int]] = set()
        seen: set[str] = set()
        while True:
            _tell(found, told, as_json)
            _tell_administration(asked, seen, as_json)
            changes = await store.watch("/jobs/", revision, FOLLOW_S)
            revision, found = changes.revision, events(changes.entries, job)
            asked = await _administration(reader, job)


def _lines(asked: list[dict[str, Any]]) -> list[tuple[float, str]]:
    return [(float(one["unix_s"]), administration_line(one)) for one in asked]


def _tell_administration(asked: list[dict[str, Any]], seen: set[str], as_json: bool) -> None:
    """Prints what was not printed before; `seen` becomes what the controllers still tell."""
    shown = administration_line if not as_json else lambda one: json.dumps({"schema_version": SCHEMA_VERSION} | one)
    texts = [shown(one) for one in asked]
    for text in texts:
        if text not in seen:
            echo(text)
    seen.clear()
    seen.update(texts)


def _tell(found: list[Event], told: set[tuple[str, int, int]], as_json: bool) -> None:
    """Prints events that were not printed in full before; each epoch of a bucket is printed once."""
    for event in found:
        keys = {(event.job, bucket, event.epoch) for bucket in event.buckets}
        if keys <= told:
            continue
        told |= keys
        values: dict[str, Any] = {"schema_version": SCHEMA_VERSION} | event.values()
        echo(json.dumps(values) if as_json else line(event))
