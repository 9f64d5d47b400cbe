"""What a parameter server makes of its jobs: takes them up, makes or resumes their buckets, or frees them (pure).

What becomes of a job follows from its keys and from what is held here:

    its keys say            held here       what follows
    nothing, or what none   the job         it is kept: who does not know it may be wrong
    can read
    that it has ended, or   the job         it is freed
    of a later one
    a job                   nothing         it is taken up
    a job with copies       the job         the replication core keeps it (`replication/core/job_buckets.py`)

Of a job that has a single copy of each bucket, the buckets that are placed here and are not in memory

    were placed on          and             are
    this process                            made as the job began: from its seed, or from a checkpoint
    a former one of its     are all in the  read back from there, under new epochs
    name                    store
    a former one            were never      made as the job began, under new epochs
                            served
    a former one            neither         lost: the job is given up here

Until new epochs are agreed the job is resuming, and nobody may attach to it.
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
    """What there is of a job besides what is served of it.

    Attributes:
        stored: bucket -> epoch of what the store was found to hold of this very job; None: it was found to hold none.
        copied: the replication core keeps the job.
    """

    stored: Mapping[int, int] | None = None
    copied: bool = False


# --- what is to be done ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepUnknown(Instruction):
    """Leave a job as it is, though it is not known, or cannot be read; say so."""

    text: str


@dataclass(frozen=True, slots=True)
class FreeJob(Instruction):
    """Hold nothing of a job any more, in memory or on disk; `JobKeeping.freed`."""

    job: str


@dataclass(frozen=True, slots=True)
class AddJob(Instruction):
    """Make a job of which nothing is held; then as `LookAt`."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class LookAt(Instruction):
    """Find out what there is of a job; `JobKeeping.looked`."""

    job: Job
    view: JobView


@dataclass(frozen=True, slots=True)
class GiveUp(Instruction):
    """Say why nothing is served of a job, which is noted in it."""

    job: Job
    text: str


@dataclass(frozen=True, slots=True)
class FreeFull(Instruction):
    """Free what the store was found to hold of buckets that are not for us, and have all copies that they should."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class Replicate(Instruction):
    """Hand a job's records to the replication core."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class TakeUp(Instruction):
    """Keep at hand what the store was found to hold of a job, until it is freed: its buckets begin with that."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class RaiseEpochs(Instruction):
    """Make buckets ours again, if nothing has changed meanwhile; `JobKeeping.raised`. `text`: to be said before."""

    job: str
    changes: ConfigChanges
    text: str


@dataclass(frozen=True, slots=True)
class Make(Instruction):
    """Find out whether buckets fit into memory; `JobKeeping.measured`."""

    job: Job
    view: JobView
    buckets: Sequence[int]


@dataclass(frozen=True, slots=True)
class ForgetFound(Instruction):
    """Free what the store was found to hold of a job that begins anew."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class BuildBuckets(Instruction):
    """Make the contents of buckets; `JobKeeping.built`, or `not_built`.

    `stored`: shards of which the store has a record begin with it, all others as the job began.
    """

    job: Job
    view: JobView
    buckets: Sequence[int]
    stored: bool


@dataclass(frozen=True, slots=True)
class WriteHolding(Instruction):
    """Write to disk that we hold buckets (-> epoch), before any shard of theirs."""

    job: Job
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TellServed(Instruction):
    """Have everybody know that we have served buckets of a job; `JobKeeping.told`."""

    job: Job
    view: JobView


@dataclass(frozen=True, slots=True)
class Serve(Instruction):
    """Begin to serve buckets with their contents."""

    job: Job
    view: JobView
    buckets: Sequence[int]


# --- what is decided ------------------------------------------------------------------------------------------------


class JobKeeping:
    """All jobs of one server.

    Attributes:
        registered_revision: of our node key; what was placed before was placed on former processes of our name.
    """

    def __init__(self, node: str, core: ServerCore, keys: JobKeys, keeps_store: bool) -> None:
        self.node, self.registered_revision = node, 0
        self._core, self._keys, self._keeps_store = core, keys, keeps_store
        self._raising: set[str] = set()
        self._resumed: dict[str, Job] = {}

    # --- whole jobs -------------------------------------------------------------------------------------------------

    def changed(self, name: str) -> list[Instruction]:
        """A job's keys may say something new."""
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
        """Nothing is held of a job any more."""
        self._resumed.pop(name, None)

    def give_up(self, job: Job, code: ErrorCode, text: str) -> list[Instruction]:
        """Nothing of a job can be served, for this reason."""
        job.failed = (code, text)
        return [GiveUp(job, text)]

    def looked(self, job: Job, view: JobView, stock: Stock) -> list[Instruction]:
        """What there is of a job is known."""
        out = self._check_store(job, view)
        if self._keeps_store:
            out.append(FreeFull(job.name, view))
        if stock.copied:
            return [*out, Replicate(job.name, view)]
        return out + self._keep_single(job, view, stock.stored)

    def _check_store(self, job: Job, view: JobView) -> list[Instruction]:
        """Serves nothing of a job that was placed here and needs a store; what others serve of it is not our affair."""
        ours = any(bucket.primary == self.node for bucket in view.buckets.values())
        if not job.durable or self._keeps_store or not ours or job.failed is not None:
            return []
        text = f"job {job.name!r} asks for acks = durable, but {self.node} keeps no store; start it with --store"
        return self.give_up(job, ErrorCode.BAD_CONFIGURATION, text)

    # --- single copies ----------------------------------------------------------------------------------------------

    def _keep_single(self, job: Job, view: JobView, stored: Mapping[int, int] | None) -> list[Instruction]:
        """Makes the buckets that we serve those that are placed here."""
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
        """Returns the buckets of which nobody else can have a copy that counts."""
        return view.held_alone(self.node) | job.buckets.keys()

    def _lost(self, job: Job, view: JobView, alone: Collection[int]) -> list[int]:
        """Returns the buckets that a former process of our name had alone."""
        lost = view.lost_by(self.node, self.registered_revision)
        return [bucket for bucket in lost if bucket in alone and not job.holds(bucket)]

    def _whole(self, lost: Sequence[int], stored: Mapping[int, int] | None) -> bool:
        """Says whether the store has all that was lost."""
        return stored is not None and all(bucket in stored for bucket in lost)

    def _never_served(self, view: JobView) -> bool:
        """Says whether no process of our name has served anything of a job, so that nothing is lost."""
        return self.node not in view.served

    def _resume(
        self, job: Job, view: JobView, lost: Sequence[int], stored: Mapping[int, int] | None
    ) -> list[Instruction]:
        """Makes lost buckets ours again: those that our store has, or such as nobody has ever served."""
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
        """Returns what makes epochs higher than any that was known, if nothing has changed meanwhile."""
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
        """New epochs were asked for; whether they came to be, the keys will tell, and what follows comes with them."""
        self._raising.discard(name)
        return [Refresh(name)]

    # --- making buckets ---------------------------------------------------------------------------------------------

    def measured(self, job: Job, view: JobView, buckets: Sequence[int], problem: str | None) -> list[Instruction]:
        """Whether buckets fit into memory is known; `problem` says why they do not."""
        if problem is not None:
            return self.give_up(job, ErrorCode.OVER_QUOTA, problem)
        stored = self._resumed.get(job.name) is job
        build = BuildBuckets(job, view, buckets, stored)
        if stored or not self._keeps_store:
            return [build]
        return [ForgetFound(job.name, view), build]  # of a job that looked the same, under another controller

    def built(self, job: Job, view: JobView, buckets: Sequence[int]) -> list[Instruction]:
        """Buckets have their contents; who may have to look for those later is told of them first."""
        out: list[Instruction] = []
        if self._keeps_store and self.wanted(job):
            out.append(WriteHolding(job, {bucket: job.building.get(bucket, 0) for bucket in buckets}))
        return [*out, TellServed(job, view)]

    def untold(self, job: Job, view: JobView) -> bool:
        """Says whether others have still to be told that we serve buckets of a job."""
        return self.node not in view.served and self._core.jobs.get(job.name) is job

    def told(self, job: Job, view: JobView, buckets: Sequence[int]) -> list[Instruction]:
        """All is as it must be before buckets are served; some of them may have moved meanwhile."""
        if not self.wanted(job):
            return []
        return [Serve(job, view, [bucket for bucket in buckets if bucket in job.building])]

    def wanted(self, job: Job) -> bool:
        """Says whether a job has neither ended nor failed meanwhile."""
        return self._core.jobs.get(job.name) is job and job.failed is None

    def not_built(self, job: Job, error: Exception, what: str = "buckets") -> list[Instruction]:
        """Contents could not be made, or were not to be found whole."""
        if isinstance(error, (AdamctlError, OSError)):
            code = ErrorCode.DAMAGED_DATA if isinstance(error, DamagedDataError) else ErrorCode.INTERNAL
            return self.give_up(job, code, str(error))
        why = "there is not enough memory" if isinstance(error, MemoryError) else "see its log"
        return self.give_up(job, ErrorCode.INTERNAL, f"{self.node} could not make its {what}; {why}")


def identity_of(view: JobView) -> tuple[Any, ...]:
    """Returns what tells a job from another that was given the same name."""
    record = view.record
    return (view.revision, record.layout_hash, record.rule, record.seed, record.restore)
