"""Typed headers between parameter servers that hold copies of the same buckets (docs/decisions/0015-replication.md).

`born` distinguishes a job from others of its name: the revision at which its layout was written. `receiver` is the
intended incarnation: a process started later holds nothing of what the sender assumes. States of shards are sent in
bodies in the format of `adamctl.roles.ps.core.shard_message`.
"""

from __future__ import annotations

from adamctl.wire.messages.common import Message


class ReplicaPrepareRequest(Message, frozen=True):
    """A primary's states of shards, for a copy to keep; a heartbeat if there is no body.

    `epochs` maps each bucket that the sender and the receiver share to its epoch. For buckets in `begins` the receiver
    starts an empty copy, unless its present one was started with this number or a higher one, in this epoch or a later
    one. `durable`: answer once the states are on disk; without a body, once all copies are. `serves`: the sender
    already serves the buckets and is not just taking them over.
    """

    job: str
    born: int
    receiver: int
    epochs: dict[int, int]
    begins: dict[int, int] = {}
    durable: bool = False
    serves: bool = False


class ReplicaPrepareReply(Message, frozen=True):
    """All records are kept, except those of buckets in `refused`, which says why: bucket -> `ErrorCode`.

    STALE_EPOCH: `routing` has the epoch known here. NEWER_EPOCH: the receiver reads the configuration first. NOT_READY:
    it is still making its copy. UNKNOWN_SHARD: it holds no copy. STALE_INCARNATION: it is not the intended `receiver`.
    `takes_changes`: from now on records may list only the clients that changed since a version held here.
    """

    incarnation: int
    refused: dict[int, int] = {}
    routing: dict[int, int] = {}
    takes_changes: bool = False


class ReplicaStateRequest(Message, frozen=True):
    """A new primary asks what is held of a bucket. From then on nothing of an older epoch is accepted."""

    job: str
    born: int
    receiver: int
    bucket: int
    epoch: int


class ReplicaStateReply(Message, frozen=True):
    """`code` as in `ReplicaPrepareReply`; if it is OK, `versions` has (shard, epoch, counter) of each shard.

    `stored`: this is the content of the receiver's store, not of its memory.
    """

    incarnation: int
    code: int
    epoch: int
    versions: tuple[tuple[int, int, int], ...] = ()
    stored: bool = False


class ReplicaFetchRequest(Message, frozen=True):
    """A new primary asks for the states of some shards of a bucket."""

    job: str
    born: int
    receiver: int
    bucket: int
    epoch: int
    shards: tuple[int, ...]


class ReplicaFetchReply(Message, frozen=True):
    """Body: the requested states. `code` and `epoch` as in `ReplicaStateReply`."""

    incarnation: int
    code: int
    epoch: int
