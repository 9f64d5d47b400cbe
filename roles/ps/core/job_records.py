"""The cluster's jobs, built from the keys of the configuration service (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    bucket_key,
    decode,
    job_key,
    layout_key,
    served_key,
)
from adamctl.model.layout import ParameterLayout
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry
from adamctl.wire.unreadable import UNREADABLE

JOBS_PREFIX = "/jobs/"


@dataclass(frozen=True)
class JobView:
    """A running job, all of whose keys are present.

    Attributes:
        revision: of the layout's key, which is written once: it distinguishes a job from a later one of the same name.
        bucket_revisions: of the buckets' keys: when each was last placed.
        served: nodes that have served buckets of the job, or were about to.
    """

    record: JobRecord
    layout: ParameterLayout
    buckets: dict[int, BucketRecord]
    revision: int
    bucket_revisions: dict[int, int]
    served: frozenset[str] = frozenset()

    def never_served(self, *members: str) -> bool:
        """Returns whether nobody can have pushed to a bucket, given its members: none was ever about to serve it.

        Whoever is to serve a bucket is in `served` before. With a single copy, only its holder matters. With several,
        any member may once have got the bucket from a server that is no member any more.
        """
        if self.record.replication == 1 and len(members) == 1:
            return members[0] not in self.served
        return not self.served


class Fate(Enum):
    """What the configuration service says about a job held by a server; an unknown job may still be needed."""

    RUNNING = auto()
    ENDED = auto()
    UNKNOWN = auto()


class Unknown:
    """Jobs that the configuration service does not know, and since when a majority confirms that (pure).

    It may be the wrong service, or may have lost its data; so their data on disk is freed only after `delay_s`.
    """

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._since_s: dict[tuple[str, int], float] = {}

    def look(self, name: str, born: int, fate: Fate, now: float) -> bool:
        """Notes the result of a confirmed read; returns whether the job has been unknown for at least `delay_s`."""
        if fate is not Fate.UNKNOWN:
            self._since_s.pop((name, born), None)
            return False
        return now - self._since_s.setdefault((name, born), now) >= self.delay_s


class JobKeys:
    """Everything under `/jobs/`, kept up to date from changes. `problems`: jobs that cannot be read -> why."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self._entries: dict[str, dict[str, ConfigEntry]] = {}
        self._layouts: dict[str, tuple[bytes, ParameterLayout]] = {}
        self._coordinators: dict[str, tuple[bytes, str]] = {}
        self._watched = 0  # the revision that the watch has reached
        self._read: dict[str, int] = {}  # job -> the revision at which its keys were last read directly

    @property
    def jobs(self) -> set[str]:
        return set(self._entries)

    def take(self, changes: Changes) -> set[str]:
        """Takes in changes and returns the jobs they touch."""
        touched: set[str] = set()
        self._watched = changes.revision
        if changes.reset:
            touched |= self.jobs
            self._entries.clear()
            self._read.clear()
        for entry in changes.entries:
            name = _job_of(entry.key)
            touched.add(name)
            if self._read.get(name, -1) <= changes.revision:  # else the direct read is newer than the watch
                self._entries.setdefault(name, {})[entry.key] = entry
        for key in changes.deleted:
            name = _job_of(key)
            touched.add(name)
            if self._read.get(name, -1) > changes.revision:
                continue
            entries = self._entries.get(name, {})
            entries.pop(key, None)
            if not entries:
                self._entries.pop(name, None)
        for known in (self._layouts, self._coordinators):
            for name in known.keys() - self._entries.keys():
                del known[name]
        return touched

    def take_job(self, name: str, entries: list[ConfigEntry], revision: int) -> None:
        """Takes in all keys of one job, read directly at a revision.

        A read older than what is known is ignored: the watch would not report the newer state again.
        """
        if revision < max(self._watched, self._read.get(name, -1)):
            return
        self._read[name] = revision
        found = {entry.key: entry for entry in entries if _job_of(entry.key) == name}
        if found:
            self._entries[name] = found
        else:
            self._entries.pop(name, None)

    def fate(self, name: str, born: int) -> Fate:
        """Returns the state of the job of this name whose layout was written at revision `born`."""
        entries = self._entries.get(name, {})
        if job_key(name) not in entries or layout_key(name) not in entries:
            return Fate.UNKNOWN
        revision = entries[layout_key(name)].revision
        if revision > born:
            return Fate.ENDED  # a later job has the same name
        try:
            ended = decode(entries[job_key(name)].value, JobRecord).state == "ended"
        except UNREADABLE:
            return Fate.UNKNOWN
        return Fate.UNKNOWN if revision < born else Fate.ENDED if ended else Fate.RUNNING

    def running(self) -> dict[str, JobView]:
        """Returns the running jobs that can be read, by name."""
        found = {name: self.view(name) for name in self.jobs}
        return {name: view for name, view in found.items() if view is not None}

    def view(self, name: str) -> JobView | None:
        """Returns a job, or None if it is unknown, ended, incomplete, or unreadable (then it is in `problems`)."""
        entries = self._entries.get(name, {})
        self.problems.pop(name, None)
        try:
            if job_key(name) not in entries or layout_key(name) not in entries:
                return None
            record = decode(entries[job_key(name)].value, JobRecord)
            if record.state == "ended":
                return None
            layout = self._layout(name, entries[layout_key(name)].value)
            if layout.hash != record.layout_hash:
                raise ValueError(f"the layout's hash is {layout.hash}, the job's {record.layout_hash}")
            keys = [bucket_key(name, bucket.index) for bucket in layout.buckets]
            if any(key not in entries for key in keys):
                return None
            buckets = {index: decode(entries[key].value, BucketRecord) for index, key in enumerate(keys)}
            revisions = {index: entries[key].revision for index, key in enumerate(keys)}
            prefix = served_key(name, "")
            served = frozenset(key.removeprefix(prefix) for key in entries if key.startswith(prefix))
            return JobView(record, layout, buckets, entries[layout_key(name)].revision, revisions, served)
        except UNREADABLE as error:
            self.problems[name] = f"the records of job {name!r} cannot be read: {error}"
            return None

    def coordinator(self, name: str) -> str:
        """Returns who coordinates a running job; "" if nobody, or if its record is not known or cannot be read."""
        entry = self._entries.get(name, {}).get(job_key(name))
        if entry is None:
            return ""
        known = self._coordinators.get(name)
        if known is None or known[0] != entry.value:
            try:
                record = decode(entry.value, JobRecord)
                coordinator = "" if record.state == "ended" else record.coordinator
            except UNREADABLE:
                coordinator = ""
            known = self._coordinators[name] = (entry.value, coordinator)
        return known[1]

    def _layout(self, name: str, value: bytes) -> ParameterLayout:
        known = self._layouts.get(name)
        if known is None or known[0] != value:
            known = self._layouts[name] = (value, decode(value, LayoutRecord).layout())
        return known[1]


def _job_of(key: str) -> str:
    return key.removeprefix(JOBS_PREFIX).partition("/")[0]
