"""Finds the stuck buckets of a job from records, live servers, and what those servers report that they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adamctl.cli.cluster.state import ClusterReader
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.ps.core.job_records import JobKeys
from adamctl.roles.ps.replication.core.job_buckets import VersionedRecord
from adamctl.roles.ps.replication.core.node_keys import NodeKeys
from adamctl.roles.ps.replication.core.recovery import Finding, Kept, examine_all
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry


async def look(reader: ClusterReader, job: str, buckets: Sequence[int] = (), chosen: str = "") -> list[Finding]:
    """Returns what to do about the buckets of a job, or about some of them.

    Raises:
        ConfigurationError: there is no such job, or it has no such bucket.
    """
    _, entries = await reader.store.read("/jobs/")
    _, node_entries = await reader.store.read("/nodes/")
    servers = servers_of(node_entries)
    records = [view.record for view in servers.nodes.values()]
    statuses = dict(zip(servers.nodes, await reader.statuses(records), strict=True))
    found = findings(job, entries, servers, statuses, chosen)
    unknown = sorted(set(buckets) - {one.bucket for one in found})
    if unknown:
        raise ConfigurationError(f"--bucket: job {job!r} has buckets 0 to {len(found) - 1}; found {unknown[0]}")
    return [one for one in found if not buckets or one.bucket in buckets]


def servers_of(entries: Iterable[ConfigEntry]) -> NodeKeys:
    """Returns the live parameter servers, from all entries under `/nodes/`."""
    servers = NodeKeys()
    servers.take_nodes(Changes(0, tuple(entries), (), True))
    return servers


def findings(
    job: str,
    entries: Iterable[ConfigEntry],
    servers: NodeKeys,
    statuses: Mapping[str, Mapping[str, Any]],
    chosen: str = "",
) -> list[Finding]:
    """Returns what to do about each bucket of a job.

    Args:
        entries: everything under `/jobs/`.
        statuses: the servers' statuses; without `incarnation` if a server does not answer.
        chosen: see `examine`.

    Raises:
        ConfigurationError: there is no such job.
        DamagedDataError: its records cannot be read.
    """
    keys = JobKeys()
    keys.take(Changes(0, tuple(entries), (), True))
    view = keys.view(job)
    if job in keys.problems:
        raise DamagedDataError(keys.problems[job])
    if view is None:
        running = ", ".join(sorted(name for name in keys.jobs if keys.view(name) is not None)) or "none"
        raise ConfigurationError(f"JOB: expected a running job; found {job!r} (running: {running})")
    known = {index: VersionedRecord(record, view.bucket_revisions[index]) for index, record in view.buckets.items()}
    told = {
        node: _told(statuses.get(node, {}), job, one.record.incarnation) for node, one in sorted(servers.nodes.items())
    }
    return examine_all(job, known, servers.nodes, told, chosen)


def _told(status: Mapping[str, Any], job: str, incarnation: int) -> dict[int, Kept] | None:
    """Returns what a server reports about its buckets; None if it does not, or another process answers in its name."""
    if status.get("incarnation") != incarnation:
        return None
    try:
        kept = status.get("replication", {}).get("jobs", {}).get(job, {}).get("kept", {})
        return {int(bucket): Kept.of_values(values) for bucket, values in kept.items()}
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None  # the server has another version, or lies
