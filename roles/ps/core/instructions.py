"""What a parameter server's cores tell its shells to do.

`ServerCore` answers clients, `JobKeeping` decides what becomes of jobs, and `ReplicationCore` what becomes of buckets
and their copies. Times are in seconds of a monotonic clock of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adamctl.roles.ps.core.buffers import Values
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.shard import Batch, Image
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.roles.ps.core.vector_requests import VectorBatch
from adamctl.wire.messages import (
    AccumulateReply,
    AttachReply,
    ConfigChanges,
    Message,
    PullReply,
    PushReply,
    VectorsReply,
)


class Instruction:
    """Something for a shell to do."""

    __slots__ = ()


# --- pushes and pulls -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apply(Instruction):
    """Hand batches of one job to an apply thread; call `ServerCore.completed` afterwards."""

    job: Job
    thread: int
    batches: list[Batch]


@dataclass(frozen=True, slots=True)
class AnswerAttach(Instruction):
    """Answer an attach. `known`: (shard, last number) of shards that remember the client."""

    token: Token
    message: AttachReply
    known: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AnswerPush(Instruction):
    """Answer a push. `queued`: its body was kept and is no longer needed."""

    token: Token
    message: PushReply
    queued: bool


@dataclass(frozen=True, slots=True)
class Compute(Instruction):
    """Hand work on vectors of one job to an apply thread; call `VectorCore.completed` afterwards."""

    job: Job
    thread: int
    batches: list[VectorBatch]


@dataclass(frozen=True, slots=True)
class AnswerVectors(Instruction):
    """Answer a request on vectors. `numbers`: the body, float64."""

    token: Token
    message: VectorsReply
    numbers: Sequence[float] = ()
    queued: bool = False


@dataclass(frozen=True, slots=True)
class AnswerAccumulate(Instruction):
    """Answer a bundle's gradient. `queued`: its body was kept and is no longer needed."""

    token: Token
    message: AccumulateReply
    queued: bool


@dataclass(frozen=True, slots=True)
class Keep(Instruction):
    """Keep the request's body until its answer."""

    token: Token


@dataclass(frozen=True, slots=True)
class Free(Instruction):
    """Free the request's body, although its answer is still to come."""

    token: Token


@dataclass(frozen=True, slots=True)
class AnswerPull(Instruction):
    """Send the arrays after the header; call `Values.release` of each when sent or when the connection is lost.

    They are sent as `dtype`; rounding makes a copy, so then they may be released before it is sent.
    """

    token: Token
    message: PullReply
    values: list[Values]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Refuse(Instruction):
    """Answer the whole request with an error. `details` is for programs."""

    token: Token
    code: int
    message: str
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refresh(Instruction):
    """Read the job's keys again: a client knows a newer epoch than this server."""

    job: str


@dataclass(frozen=True, slots=True)
class GiveImage(Instruction):
    """Call `take` with the image that was asked for while a batch was in progress."""

    take: Callable[[Image], None]
    image: Image


@dataclass(frozen=True, slots=True)
class Recover(Instruction):
    """End this process and write nothing more: memory is damaged, the store's log is not. `why`: an error text."""

    why: str


# --- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepUnknown(Instruction):
    """Log the text. A job that is unknown, or whose keys cannot be read, stays as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class FreeJob(Instruction):
    """Remove a job from memory and from disk."""

    job: str


@dataclass(frozen=True, slots=True)
class AddJob(Instruction):
    """Add a job of which nothing is held; then `JobKeeping.added`."""

    name: str
    view: JobView


@dataclass(frozen=True, slots=True)
class FreeStored(Instruction):
    """Free what the store holds of a job that is not served, and log why. `born`: the job's revision."""

    name: str
    born: int
    why: str


@dataclass(frozen=True, slots=True)
class Unload(Instruction):
    """Free the memory of what was read from the store of a job that may not be needed; on disk it stays."""

    name: str
    born: int


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


# --- buckets and their copies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask(Instruction):
    """Send `message` with a body of `records` to server `peer`, at its replication address.

    Then call exactly one of `ReplicationCore.answered`, `refused` and `failed` with this `order`. `images` are released
    when the body is sent or abandoned; until then the records' arrays do not change. `deadline_s`: from now.
    """

    order: int
    peer: str
    message: Message
    records: Sequence[CopyRecord]
    images: Sequence[Image]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Reply(Instruction):
    """Answer the request of another server; `records` and `images` as in `Ask`."""

    token: Token
    message: Message
    records: Sequence[CopyRecord] = ()
    images: Sequence[Image] = ()


@dataclass(frozen=True, slots=True)
class Propose(Instruction):
    """Do a compare-and-set, then call `ReplicationCore.proposed`. `why`: for the log."""

    order: int
    job: str
    changes: ConfigChanges
    why: str


@dataclass(frozen=True, slots=True)
class ReadNode(Instruction):
    """Read a server's key again, as it has been silent for long; then call `ReplicationCore.configured` for `job`."""

    job: str
    node: str


@dataclass(frozen=True, slots=True)
class Build(Instruction):
    """Build buckets with the job's initial content, as primary or as copy; then call `ReplicationCore.built`."""

    job: str
    buckets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Load(Instruction):
    """Load buckets, as no copy is left in memory anywhere; then call `ReplicationCore.loaded`.

    `initial`: nobody has ever pushed to them, so they are made with the job's initial content, at epoch 0. Otherwise
    they come from the store.
    """

    job: str
    buckets: Sequence[int]
    initial: bool = False


@dataclass(frozen=True, slots=True)
class Holds(Instruction):
    """Note that this server now holds a bucket: served (`Job.buckets`), or as a copy (`ReplicationCore.copies`).

    The store gives an entry to each of its shards that has none.
    """

    job: str
    bucket: int
    epoch: int
    serves: bool


@dataclass(frozen=True, slots=True)
class LetGo(Instruction):
    """Note that a bucket is no longer held; its entries are in `Job.left`, to be freed by `ServerCore.forget_left`.

    `spared`: shard -> entry whose records stay on disk while too few servers hold the bucket.
    """

    job: str
    bucket: int
    spared: Mapping[int, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice(Instruction):
    """Write to the log; `text` names the buckets concerned, `bucket` is the first of them."""

    job: str
    bucket: int
    text: str
    warning: bool = False
