"""What goes into and out of the replication core of a parameter server (docs/decisions/0015-replication.md).

Times are seconds of one steady clock of this process that counts suspension; nothing here is compared with the clock of
another host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adamctl.config.records import NodeRecord
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.instructions import Image, Instruction
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.wire.messages import ConfigChanges, Message


@dataclass(frozen=True, slots=True)
class NodeView:
    """A living server as the configuration service has it: `revision` is of its key, when the process registered."""

    record: NodeRecord
    revision: int


@dataclass(frozen=True)
class ReplicationConfig:
    """Bounds.

    Attributes:
        lease_s: D, how long a lease lasts.
        beacon_s: of the n-th living member before it takes over, n of them pass.
        heartbeat_s: a member hears from its primary at least so often.
        member_silent_s: a member that has answered nothing for so long is removed; a secondary that has heard nothing
            of its primary for so long reads its key anew.
        retry_s: pause after an order or a change that came to nothing.
        settle_s: so long after servers came or went, nothing is moved for balance alone.
        back_off_s: so long a server that did not answer, or did not begin a copy, is given no learner by us.
        message_bytes_max: of one message with everything in it, unless one shard alone has more.
        flights_max: messages with records under way to one server for one job.
        learner_bytes_per_s: at most so much is sent to fill learners, to all of them together.
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
    """Send `message` with a body of `records` to server `peer`, at its address for replication.

    Then exactly one of `ReplicationCore.answered`, `refused` and `failed` with this `order`. `images` are released when
    the body is sent or given up; until then the records' arrays stay as they are. `deadline_s`: from now.
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
    """A compare-and-set; `ReplicationCore.proposed` afterwards. `why`: for the log."""

    order: int
    job: str
    changes: ConfigChanges
    why: str


@dataclass(frozen=True, slots=True)
class ReadNode(Instruction):
    """Read a server's key anew and call `ReplicationCore.configured` for `job`: it has been silent for long."""

    job: str
    node: str


@dataclass(frozen=True, slots=True)
class Build(Instruction):
    """Make buckets as the job began, `ReplicationCore.built` afterwards: as their primary, or as copies."""

    job: str
    buckets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Load(Instruction):
    """Find buckets in the store, `ReplicationCore.loaded` afterwards: no copy of them is left in memory anywhere."""

    job: str
    buckets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Holds(Instruction):
    """A copy of a bucket is held from now on: served (`Job.buckets`) or as another's copy (`ReplicationCore.copies`).

    The store gives those of its shards an entry that have none.
    """

    job: str
    bucket: int
    epoch: int
    serves: bool


@dataclass(frozen=True, slots=True)
class LetGo(Instruction):
    """A bucket is held no longer; its entries are in `Job.left`, to be freed by `ServerCore.forget_left`.

    `spared`: shard -> entries whose records stay on disk, as long as too few servers hold the bucket.
    """

    job: str
    bucket: int
    spared: Mapping[int, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice(Instruction):
    """Something for the log; `text` names the buckets that it is about, `bucket` is the first of them."""

    job: str
    bucket: int
    text: str
    warning: bool = False
