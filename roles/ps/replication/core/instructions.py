"""The replication core's configuration and instructions (docs/decisions/0015-replication.md).

Times are in seconds of a monotonic clock of this process that includes suspension. Clocks of different hosts are never
compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adamctl.config.records import NodeRecord
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.instructions import Instruction
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.shard import Image
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.wire.messages import ConfigChanges, Message


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live server in the configuration service; `revision`: of its key, from when the process registered."""

    record: NodeRecord
    revision: int


@dataclass(frozen=True)
class ReplicationConfig:
    """Bounds.

    Attributes:
        lease_s: how long a lease lasts (D).
        beacon_s: the n-th live member waits n times this before it takes over.
        heartbeat_s: a primary sends to each member at least this often.
        member_silent_s: a member that has not answered for this long is removed; a secondary that has heard nothing
            from its primary for this long reads the primary's key.
        retry_s: pause after a failed request or change.
        settle_s: nothing is moved just for balance for this long after servers came or went.
        back_off_s: this server gives no learner to a server for this long after it did not answer or refused a copy.
        message_bytes_max: size limit of one message, unless one shard alone is larger.
        flights_max: messages with records in flight to one server for one job.
        learner_bytes_per_s: rate limit for filling learners, for all of them together.
    """

    lease_s: float = 4.0
    beacon_s: float = 1.0
    heartbeat_s: float = 1.0
    member_silent_s: float = 2.0
    retry_s: float = 0.05
    settle_s: float = 10.0
    back_off_s: float = 10.0
    message_bytes_max: int = 8 << 20
    flights_max: int = 4
    learner_bytes_per_s: float = 256e6

    @classmethod
    def of_lease(cls, lease_s: float, **others: float) -> ReplicationConfig:
        """Returns the defaults for leases of another length."""
        fields: dict[str, float] = {
            "lease_s": lease_s,
            "beacon_s": lease_s / 4,
            "heartbeat_s": lease_s / 4,
            "member_silent_s": lease_s / 2,
            "settle_s": 2.5 * lease_s,
            "back_off_s": 2.5 * lease_s,
        }
        return cls(**{**fields, **others})  # type: ignore[arg-type]


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
