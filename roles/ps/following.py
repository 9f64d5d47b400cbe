"""The jobs of the cluster as the configuration service tells them, key by key (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, decode, job_key, layout_key
from adamctl.model.layout import ParameterLayout
from adamctl.roles.controller.client import Changes
from adamctl.wire.messages import ConfigEntry

JOBS_PREFIX = "/jobs/"


@dataclass(frozen=True)
class JobView:
    """A running job whose keys are all there."""

    record: JobRecord
    layout: ParameterLayout
    buckets: dict[int, BucketRecord]


class JobKeys:
    """Everything under `/jobs/`, kept up to date by changes. `problems` says which jobs cannot be read, and why."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self._values: dict[str, dict[str, bytes]] = {}
        self._layouts: dict[str, tuple[bytes, ParameterLayout]] = {}

    @property
    def jobs(self) -> set[str]:
        return set(self._values)

    def take(self, changes: Changes) -> set[str]:
        """Takes in changes and returns the jobs they touch."""
        touched: set[str] = set()
        if changes.reset:
            touched |= self.jobs
            self._values.clear()
        for entry in changes.entries:
            touched.add(self._put(entry))
        for key in changes.deleted:
            name = _job_of(key)
            touched.add(name)
            values = self._values.get(name, {})
            values.pop(key, None)
            if not values:
                self._values.pop(name, None)
        for name in tuple(self._layouts):
            if name not in self._values:
                del self._layouts[name]
        return touched

    def take_job(self, name: str, entries: list[ConfigEntry]) -> None:
        """Takes in all keys of one job, read anew."""
        self._values.pop(name, None)
        for entry in entries:
            if _job_of(entry.key) == name:
                self._put(entry)

    def _put(self, entry: ConfigEntry) -> str:
        name = _job_of(entry.key)
        self._values.setdefault(name, {})[entry.key] = entry.value
        return name

    def view(self, name: str) -> JobView | None:
        """Returns a job, or None if it is unknown, ended, not yet complete, or not readable (then in `problems`)."""
        values = self._values.get(name, {})
        self.problems.pop(name, None)
        try:
            if job_key(name) not in values or layout_key(name) not in values:
                return None
            record = decode(values[job_key(name)], JobRecord)
            if record.state == "ended":
                return None
            layout = self._layout(name, values[layout_key(name)])
            if layout.hash != record.layout_hash:
                raise ValueError(f"the layout's hash is {layout.hash}, the job's {record.layout_hash}")
            keys = [bucket_key(name, bucket.index) for bucket in layout.buckets]
            if any(key not in values for key in keys):
                return None
            buckets = {index: decode(values[key], BucketRecord) for index, key in enumerate(keys)}
            return JobView(record, layout, buckets)
        except (msgspec.MsgspecError, ValueError) as error:
            self.problems[name] = f"the records of job {name!r} cannot be read: {error}"
            return None

    def _layout(self, name: str, value: bytes) -> ParameterLayout:
        known = self._layouts.get(name)
        if known is None or known[0] != value:
            known = self._layouts[name] = (value, decode(value, LayoutRecord).layout())
        return known[1]


def _job_of(key: str) -> str:
    return key.removeprefix(JOBS_PREFIX).partition("/")[0]
