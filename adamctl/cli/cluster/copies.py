"""Which servers hold the buckets of a cluster's jobs, since when and why, read from the configuration service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adamctl.config.records import BucketChange, BucketRecord, JobRecord, NodeRecord
from adamctl.errors import DamagedDataError
from adamctl.roles.configuration import nodes_of, readable
from adamctl.roles.ps.core.job_records import JobKeys
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry

TOGETHER_S = 2.0
"""Buckets that go through the same change for the same reason within this many seconds share one line."""


@dataclass(frozen=True)
class Holding:
    """One bucket: its record, what it is part of, and what is wrong with it (empty if nothing)."""

    job: str
    bucket: int
    size_bytes: int
    shards: int
    record: BucketRecord
    problem: str

    def values(self) -> dict[str, Any]:
        """Plain values, for programs."""
        record = self.record
        return {
            "job": self.job,
            "bucket": self.bucket,
            "shards": self.shards,
            "bytes": self.size_bytes,
            "epoch": record.epoch,
            "primary": record.primary,
            "in_sync": list(record.in_sync),
            "learners": list(record.learners),
            "since_unix_s": record.since_unix_s,
            "why": record.why,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Event:
    """A change that several buckets of a job went through together."""

    unix_s: float
    job: str
    buckets: tuple[int, ...]
    epoch: int
    what: str
    why: str

    def values(self) -> dict[str, Any]:
        return {
            "unix_s": self.unix_s,
            "job": self.job,
            "buckets": list(self.buckets),
            "epoch": self.epoch,
            "what": self.what,
            "why": self.why,
        }


def holdings(entries: Sequence[ConfigEntry], nodes: Sequence[ConfigEntry], job: str = "") -> list[Holding]:
    """Returns the buckets of all running jobs, or of one, from all entries under `/jobs/` and `/nodes/`.

    Raises:
        DamagedDataError: the records of a job cannot be read.
    """
    living = {record.node: record for record in nodes_of(nodes)}
    keys = JobKeys()
    keys.take(Changes(0, tuple(entries), (), True))
    found: list[Holding] = []
    for name in sorted({job} & keys.jobs if job else keys.jobs):
        view = keys.view(name)
        if name in keys.problems:
            raise DamagedDataError(keys.problems[name])
        if view is None:
            continue
        for bucket in view.layout.buckets:
            record, shards = view.buckets[bucket.index], bucket.shard_stop - bucket.shard_start
            problem = _problem(view.record, record, living)
            found.append(Holding(name, bucket.index, bucket.size_bytes, shards, record, problem))
    return found


def _problem(job: JobRecord, record: BucketRecord, living: Mapping[str, NodeRecord]) -> str:
    if record.primary not in living:
        return f"its primary {record.primary} is gone"
    copies = sum(node in living for node in record.in_sync)
    if copies < job.replication:
        return f"{copies} of {job.replication} copies"
    return ""


def sharing(entries: Sequence[ConfigEntry], members: Sequence[NodeRecord]) -> list[str]:
    """Returns one line for each running job whose copies have to share failure domains, as there are too few.

    `entries`: all under `/jobs/`; `members`: the live nodes.
    """
    domains = {record.fails_with for record in members if record.role == "ps"}
    lines = []
    for entry in entries:
        record = readable(entry, JobRecord) if entry.key.count("/") == 2 else None
        if record is not None and record.state == "running" and 0 < len(domains) < record.replication:
            job = entry.key.rpartition("/")[2]
            lines.append(
                f"job {job}: {len(domains)} failure domain{'s' * (len(domains) > 1)} for {record.replication} copies, "
                "so copies share one and are lost with it; start parameter servers on other machines"
            )
    return lines


def events(entries: Sequence[ConfigEntry], job: str = "") -> list[Event]:
    """Returns the changes that the records of all buckets keep, oldest first."""
    changes: list[tuple[float, str, int, BucketChange]] = []
    for entry in entries:
        name, _, rest = entry.key.removeprefix("/jobs/").partition("/buckets/")
        record = readable(entry, BucketRecord) if rest.isdecimal() and (not job or name == job) else None
        if record is not None:
            changes += [(change.unix_s, name, int(rest), change) for change in record.history]
    changes.sort(key=lambda found: (found[0], found[1], found[2]))
    together: dict[tuple[str, str, str], Event] = {}
    found: list[Event] = []
    for unix_s, name, bucket, change in changes:
        key = (name, change.what, change.why)
        event = together.get(key)
        if event is not None and unix_s - event.unix_s <= TOGETHER_S and bucket not in event.buckets:
            grown = Event(event.unix_s, name, (*event.buckets, bucket), change.epoch, *key[1:])
            found[found.index(event)] = grown
        else:
            grown = Event(unix_s, name, (bucket,), change.epoch, *key[1:])
            found.append(grown)
        together[key] = grown
    return found
