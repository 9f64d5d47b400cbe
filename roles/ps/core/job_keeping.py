"""What a parameter server does with its jobs: it adds them, hands them to the replication core, or frees them (pure).

A job's keys and what this server holds decide what happens to the job:

    its keys                held here       what happens
    are missing, or cannot  the job         it is kept: whoever does not know it may be wrong
    be read
    say that it has ended,  the job         it is freed
    or name a later one
    name a job              nothing         it is added
    name a job              the job         the replication core follows its records

What becomes of its buckets, of which there may be one copy each or several, is decided in
`replication/core/job_buckets.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from adamctl.errors import AdamctlError, DamagedDataError
from adamctl.roles.ps.core.instructions import (
    AddJob,
    FreeFull,
    FreeJob,
    FreeStored,
    GiveUp,
    Instruction,
    KeepUnknown,
    Replicate,
    Unload,
)
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.job_records import Fate, JobKeys, JobView
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.wire.constants import ErrorCode


class JobKeeping:
    """All jobs of one server."""

    def __init__(self, node: str, core: ServerCore, keys: JobKeys, keeps_store: bool) -> None:
        self.node = node
        self._core, self._keys, self._keeps_store = core, keys, keeps_store

    def changed(self, name: str) -> list[Instruction]:
        """A job's keys may have changed."""
        view, job = self._keys.view(name), self._core.jobs.get(name)
        out: list[Instruction] = []
        if job is not None and (view is None or job.identity != identity_of(view)):
            fate = self._keys.fate(name, job.identity[0])
            if fate is Fate.UNKNOWN or (view is None and fate is Fate.RUNNING):
                text = self._keys.problems.get(name) or f"job {name!r} is not known any more; it is kept"
                return [KeepUnknown(text)]
            out.append(FreeJob(name))
            job = None
        if view is not None:
            out += [AddJob(name, view)] if job is None else self.added(job, view)
        return out

    def added(self, job: Job, view: JobView) -> list[Instruction]:
        """A job is held: what becomes of its buckets follows from its records."""
        out = self._check_store(job, view)
        if self._keeps_store:
            out.append(FreeFull(job.name, view))
        return [*out, Replicate(job.name, view)]

    def stored(self, jobs: Iterable[tuple[str, int]]) -> list[Instruction]:
        """The store holds these jobs (name, revision), which are not served. Those that nobody knows stay on disk."""
        out: list[Instruction] = []
        for name, born in jobs:
            fate = self._keys.fate(name, born)
            if fate is Fate.UNKNOWN:
                out.append(Unload(name, born))
            elif fate is Fate.ENDED:
                out.append(FreeStored(name, born, "it has ended"))
        return out

    def give_up(self, job: Job, code: ErrorCode, text: str) -> list[Instruction]:
        """Nothing of a job can be served, for this reason."""
        job.failed = (code, text)
        return [GiveUp(job, text)]

    def _check_store(self, job: Job, view: JobView) -> list[Instruction]:
        """Gives a job up that was placed here and needs a store, if this server has none."""
        ours = any(bucket.primary == self.node for bucket in view.buckets.values())
        if not job.durable or self._keeps_store or not ours or job.failed is not None:
            return []
        text = f"job {job.name!r} asks for acks = durable, but {self.node} keeps no store; start it with --store"
        return self.give_up(job, ErrorCode.BAD_CONFIGURATION, text)

    def wanted(self, job: Job) -> bool:
        """Says whether a job has neither ended nor failed meanwhile."""
        return self._core.jobs.get(job.name) is job and job.failed is None

    def not_made(self, job: Job, error: Exception) -> list[Instruction]:
        """Contents of buckets could not be made, or were incomplete."""
        if isinstance(error, (AdamctlError, OSError)):
            code = ErrorCode.DAMAGED_DATA if isinstance(error, DamagedDataError) else ErrorCode.INTERNAL
            return self.give_up(job, code, str(error))
        why = "there is not enough memory" if isinstance(error, MemoryError) else "see its log"
        return self.give_up(job, ErrorCode.INTERNAL, f"{self.node} could not make its buckets; {why}")


def identity_of(view: JobView) -> tuple[Any, ...]:
    """Returns what tells a job from another that was given the same name."""
    record = view.record
    return (view.revision, record.layout_hash, record.rule, record.seed, record.restore)
