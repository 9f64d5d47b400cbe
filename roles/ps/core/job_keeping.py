"""What a parameter server does with its jobs: it adds them, makes or resumes their buckets, or frees them (pure).

A job's keys and what this server holds decide what happens to the job:

    its keys                held here       what happens
    are missing, or cannot  the job         it is kept: whoever does not know it may be wrong
    be read
    say that it has ended,  the job         it is freed
    or name a later one
    name a job              nothing         it is added
    name a job with copies  the job         the replication core keeps it (`replication/core/job_buckets.py`)

For a job with a single copy of each bucket, this happens to the buckets that are placed here but are not in memory:

    placed on               condition       what happens
    this process                            they begin as the job began: from its seed, or from a checkpoint
    an earlier process of   all are in the  they are read back, under new epochs
    this name               store
    an earlier process      none was ever   they begin as the job began, under new epochs
                            served
    an earlier process      otherwise       they are lost: the job is given up here

Until new epochs are agreed on, the job is resuming and nobody may attach to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adamctl.config.records import bucket_key, encode, node_key, served_key
from adamctl.errors import AdamctlError, DamagedDataError
from adamctl.roles.ps.core.instructions import Instruction, Refresh
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.job_records import Fate, JobKeys, JobView
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges

# --- what is known --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stock:
    """What this server has of a job besides what it serves.

    Attributes:
        stored: bucket -> epoch of what the store holds of this very job; None: the store holds nothing of it.
        copied: the replication core keeps the job.
    """

    stored: Mapping[int, int] | None = None
    copied: bool = False


# --- what is to be done ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepUnknown(Instruction):
    """Log the text. A job that is unknown, or whose keys cannot be read, stays as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class FreeJob(Instruction):
    """Remove a job from memory and from disk; then `JobKeeping.freed`."""

    job: str


@dataclass(frozen=True, slots=True)
class AddJob(Instruction):
    """Add a job of which nothing is held; then as `LookAt`."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class LookAt(Instruction):
    """Find out what this server has of a job; then `JobKeeping.looked`."""

    job: Job
    view: JobView


@dataclass(frozen=True, slots=True)
class GiveUp(Instruction):
    """Log why this server serves nothing of a job; the job has the reason."""

    job: Job
    text: str


@dataclass(frozen=True, slots=True)
class FreeFull(Instruction):
    """Free buckets in the store that are not placed here and that have all their copies elsewhere."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class Replicate(Instruction):
    """Hand a job's records to the replication core."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class TakeUp(Instruction):
    """Keep what the store holds of a job until the job is freed: its buckets begin with that."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class RaiseEpochs(Instruction):
    """Log the text; then give our buckets new epochs if nothing has changed meanwhile; then `JobKeeping.raised`."""

    job: str
    changes: ConfigChanges
    text: str


@dataclass(frozen=True, slots=True)
class Make(Instruction):
    """Find out whether buckets fit into memory; then `JobKeeping.measured`."""

    job: Job
    view: JobView
    buckets: Sequence[int]


@dataclass(frozen=True, slots=True)
class ForgetFound(Instruction):
    """Free what the store holds of a job that begins again from its start."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class BuildBuckets(Instruction):
    """Make the contents of buckets; then `JobKeeping.built` or `not_built`.

    `stored`: shards with a record in the store begin with that record, all others as the job began.
    """

    job: Job
    view: JobView
    buckets: Sequence[int]
    stored: bool


@dataclass(frozen=True, slots=True)
class WriteHolding(Instruction):
    """Write to disk that we hold buckets (-> epoch), before any of their shards."""

    job: Job
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TellServed(Instruction):
    """Record in the configuration that we have served buckets of a job; then `JobKeeping.told`."""

    job: Job
    view: JobView


@dataclass(frozen=True, slots=True)
class Serve(Instruction):
    """Start to serve buckets with their contents."""

    job: Job
    view: JobView
    buckets: Sequence[int]


# --- what is decided ------------------------------------------------------------------------------------------------


class JobKeeping:
    """All jobs of one server.

    Attributes:
        registered_revision: of our node key; buckets placed before it were placed on earlier processes of our name.
    """

    def __init__(self, node: str, core: ServerCore, keys: JobKeys, keeps_store: bool) -> None:
        self.node, self.registered_revision = node, 0
        self._core, self._keys, self._keeps_store = core, keys, keeps_store
        self._raising: set[str] = set()
        self._resumed: dict[str, Job] = {}

    # --- whole jobs -------------------------------------------------------------------------------------------------

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
            out.append(AddJob(name, view) if job is None else LookAt(job, view))
        return out

    def freed(self, name: str) -> None:
        """A job was removed from memory and disk."""
        self._resumed.pop(name, None)

    def give_up(self, job: Job, code: ErrorCode, text: str) -> list[Instruction]:
        """Nothing of a job can be served, for this reason."""
        job.failed = (code, text)
        return [GiveUp(job, text)]

    def looked(self, job: Job, view: JobView, stock: Stock) -> list[Instruction]:
        """It is known what this server has of a job."""
        out = self._check_store(job, view)
        if self._keeps_store:
            out.append(FreeFull(job.name, view))
        if stock.copied:
            return [*out, Replicate(job.name, view)]
        return out + self._keep_single(job, view, stock.stored)

    def _check_store(self, job: Job, view: JobView) -> list[Instruction]:
        """Gives a job up that was placed here and needs a store, if this server has none."""
        ours = any(bucket.primary == self.node for bucket in view.buckets.values())
        if not job.durable or self._keeps_store or not ours or job.failed is not None:
            return []
        text = f"job {job.name!r} asks for acks = durable, but {self.node} keeps no store; start it with --store"
        return self.give_up(job, ErrorCode.BAD_CONFIGURATION, text)

    # --- single copies ----------------------------------------------------------------------------------------------

    def _keep_single(self, job: Job, view: JobView, stored: Mapping[int, int] | None) -> list[Instruction]:
        """Serves exactly the buckets that are placed here."""
        out: list[Instruction] = []
        alone = self._alone(job, view)
        lost = self._lost(job, view, alone)
        if lost and job.failed is None:
            whole = self._whole(lost, stored)
            if whole:
                self._resumed[job.name] = job
                out.append(TakeUp(job.name, view))
            if whole or self._never_served(view):
                return out + self._resume(job, view, lost, stored if whole else None)
            text = f"{self.node} was restarted and no longer has {len(lost)} buckets of job {job.name!r}"
            out += self.give_up(job, ErrorCode.INTERNAL, f"{text}; resume the run from its last checkpoint")
        job.resuming = False
        wanted = job.configure(
            {i: (one.epoch, one.primary == self.node and i in alone) for i, one in view.buckets.items()}
        )
        out += self._core.forget_left(job)
        if wanted and job.failed is None:
            out.append(Make(job, view, wanted))
        return out

    def _alone(self, job: Job, view: JobView) -> Collection[int]:
        """Returns the buckets of which no other server can have a valid copy."""
        return view.held_alone(self.node) | job.buckets.keys()

    def _lost(self, job: Job, view: JobView, alone: Collection[int]) -> list[int]:
        """Returns the buckets that only an earlier process of our name had."""
        lost = view.lost_by(self.node, self.registered_revision)
        return [bucket for bucket in lost if bucket in alone and not job.holds(bucket)]

    def _whole(self, lost: Sequence[int], stored: Mapping[int, int] | None) -> bool:
        """Says whether the store has all lost buckets."""
        return stored is not None and all(bucket in stored for bucket in lost)

    def _never_served(self, view: JobView) -> bool:
        """Says whether no process of our name has ever served a bucket of the job, so that nothing is lost."""
        return self.node not in view.served

    def _resume(
        self, job: Job, view: JobView, lost: Sequence[int], stored: Mapping[int, int] | None
    ) -> list[Instruction]:
        """Takes lost buckets back: our store has them, or nobody has ever served them."""
        job.resuming = True
        if job.name in self._raising:
            return []
        self._raising.add(job.name)
        how = "making %d buckets anew" if stored is None else "taking %d buckets up again from the store"
        changes = self._new_epochs(job.name, view, lost, stored)
        return [RaiseEpochs(job.name, changes, f"job {job.name}: {how % len(lost)}")]

    def _new_epochs(
        self, name: str, view: JobView, lost: Sequence[int], stored: Mapping[int, int] | None
    ) -> ConfigChanges:
        """Returns changes to epochs higher than any known one; they apply only if nothing has changed meanwhile."""
        conditions = {bucket_key(name, index): view.bucket_revisions[index] for index in lost}
        conditions[node_key(self.node)] = self.registered_revision  # who counts as dead changes nothing
        if stored is None:
            conditions[served_key(name, self.node)] = 0
        puts = {}
        for index in lost:
            record = view.buckets[index]
            epoch = max(record.epoch, stored[index] if stored is not None else 0) + 1
            puts[bucket_key(name, index)] = encode(msgspec.structs.replace(record, epoch=epoch))
        return ConfigChanges(conditions, puts)

    def raised(self, name: str) -> list[Instruction]:
        """The change of epochs has ended; the keys tell whether it was made."""
        self._raising.discard(name)
        return [Refresh(name)]

    # --- making buckets ---------------------------------------------------------------------------------------------

    def measured(self, job: Job, view: JobView, buckets: Sequence[int], problem: str | None) -> list[Instruction]:
        """It is known whether buckets fit into memory; `problem` says why not."""
        if problem is not None:
            return self.give_up(job, ErrorCode.OVER_QUOTA, problem)
        stored = self._resumed.get(job.name) is job
        build = BuildBuckets(job, view, buckets, stored)
        if stored or not self._keeps_store:
            return [build]
        return [ForgetFound(job.name, view), build]  # of a job that looked the same, under another controller

    def built(self, job: Job, view: JobView, buckets: Sequence[int]) -> list[Instruction]:
        """Buckets have their contents; before they are served, disk and configuration must say so."""
        out: list[Instruction] = []
        if self._keeps_store and self.wanted(job):
            out.append(WriteHolding(job, {bucket: job.building.get(bucket, 0) for bucket in buckets}))
        return [*out, TellServed(job, view)]

    def untold(self, job: Job, view: JobView) -> bool:
        """Says whether the configuration does not yet say that we serve buckets of a job."""
        return self.node not in view.served and self._core.jobs.get(job.name) is job

    def told(self, job: Job, view: JobView, buckets: Sequence[int]) -> list[Instruction]:
        """Buckets may be served; some of them may have moved meanwhile."""
        if not self.wanted(job):
            return []
        return [Serve(job, view, [bucket for bucket in buckets if bucket in job.building])]

    def wanted(self, job: Job) -> bool:
        """Says whether a job has neither ended nor failed meanwhile."""
        return self._core.jobs.get(job.name) is job and job.failed is None

    def not_built(self, job: Job, error: Exception, what: str = "buckets") -> list[Instruction]:
        """Contents could not be made, or were incomplete."""
        if isinstance(error, (AdamctlError, OSError)):
            code = ErrorCode.DAMAGED_DATA if isinstance(error, DamagedDataError) else ErrorCode.INTERNAL
            return self.give_up(job, code, str(error))
        why = "there is not enough memory" if isinstance(error, MemoryError) else "see its log"
        return self.give_up(job, ErrorCode.INTERNAL, f"{self.node} could not make its {what}; {why}")


def identity_of(view: JobView) -> tuple[Any, ...]:
    """Returns what tells a job from another that was given the same name."""
    record = view.record
    return (view.revision, record.layout_hash, record.rule, record.seed, record.restore)
