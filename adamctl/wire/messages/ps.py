"""Typed headers of the parameter server: attach, push, pull, checkpoint."""

from __future__ import annotations

from adamctl.wire.messages.base import Message


class AttachRequest(Message, frozen=True):
    """A client binds to a job before it pushes or pulls; refused with LAYOUT_MISMATCH or NOT_READY.

    Body: int64 pairs (shard, number) where the client has pushed before: it was told what became of every number up to
    this one. A server that was restarted and remembers less of it goes on from there.
    """

    job: str
    layout_hash: str


class AttachReply(Message, frozen=True):
    """`epochs` maps the buckets this server serves to their epochs.

    Body: int64 pairs (shard, last number of this client that is known there), for the shards that know the client.
    `rolled_back` counts numbers of this client, over all shards, that were acknowledged, are in no values that this
    process has found, and were passed over by it so far.
    """

    epochs: dict[int, int]
    rolled_back: int = 0


class PushSource(Message, frozen=True):
    """Bytes in the body that one or more shards of a tensor draw from.

    GRADIENT and DELTA: float32 [row_stop - row_start, row size] at `offset`.
    FACTORS: errors float32 [examples, row_stop - row_start] at `offset`, activations float32 [examples, row size] at
    `activations_offset`; the gradient is errors.T @ activations.
    """

    kind: int
    tensor: int
    row_start: int
    row_stop: int
    offset: int
    examples: int = 0
    activations_offset: int = 0
    dtype: str = "float32"


class PushPart(Message, frozen=True):
    """One shard of a push. The base is what the pull said that the gradient was computed from (staleness)."""

    shard: int
    sequence: int
    source: int
    base_pushes: int = 0
    base_sequence: int = 0


class PushRequest(Message, frozen=True):
    """An envelope to one server. `epochs` maps each bucket touched to the epoch the client believes in.

    `step` above 0: its gradients are part number `step_part` (from 0) of the `step_parts` of that step. A server holds
    the parts for a shard until all are there, adds them up in the order of their numbers and applies the sum at once.

    `region` other than 0: there is no body; sources lie in this region of the client's memory, which it leaves
    unchanged until it has the answer (MEMORY_REGISTER). Their dtype may be any; our clients show float32 alone.
    """

    job: str
    epochs: dict[int, int]
    learning_rate: float
    steps: int
    examples: int
    sources: tuple[PushSource, ...]
    parts: tuple[PushPart, ...]
    step: int = 0
    step_part: int = 0
    step_parts: int = 0
    region: int = 0


class PushResult(Message, frozen=True):
    """What became of one shard: `code` OK and its new version, or why nothing was applied to it.

    `staleness` counts the pushes of others that were applied between the part's base and itself, `age` all of them.
    """

    shard: int
    code: int
    epoch: int
    version: int
    staleness: int
    message: str = ""
    age: int = 0


class ServerLoad(Message, frozen=True):
    """What a server's apply threads do: the share of the last moments that they worked, 0 to 1, and what all of them
    together can do per second: multiply-adds of factors, elements of gradients. 0.0: not measured yet.
    """

    busy: float
    products_per_s: float
    adds_per_s: float


class PushReply(Message, frozen=True):
    """One result per part, in order. `routing` maps buckets to newer epochs where the request's were old.

    `load` is the server's, None before it was measured.
    """

    results: tuple[PushResult, ...]
    routing: dict[int, int] = {}
    load: ServerLoad | None = None


class PullRequest(Message, frozen=True):
    """Asks for the values of some shards, with the epochs of their buckets as the client knows them.

    `region` other than 0: the answer has no body; values are written into this region of the client's memory as
    float32, each shard's at the byte that `offsets` says, in the order of the shards (MEMORY_REGISTER).
    """

    job: str
    epochs: dict[int, int]
    shards: tuple[int, ...]
    dtype: str = "float32"
    region: int = 0
    offsets: tuple[int, ...] = ()


class PulledPart(Message, frozen=True):
    """One shard at one version: `pushes` applied so far in all, `sequence` the last of the caller's own it contains."""

    shard: int
    code: int
    epoch: int
    version: int
    pushes: int
    sequence: int
    offset: int
    size: int
    message: str = ""


class PullReply(Message, frozen=True):
    """Body: the shards' values, one after another in the order asked for, without padding.

    Each part says at which byte its own start and how many elements they are.
    """

    parts: tuple[PulledPart, ...]
    routing: dict[int, int] = {}


class CheckpointRequest(Message, frozen=True):
    """Asks a server to write its shards of a job into `folder` under temporary names; the coordinator renames them."""

    job: str
    folder: str


class CheckpointFile(Message, frozen=True):
    """One written file: final name, name it has now, length and BLAKE2b-128 of its bytes, and the shards in it."""

    name: str
    temporary_name: str
    size_bytes: int
    checksum: str
    shards: tuple[int, ...]


class CheckpointReply(Message, frozen=True):
    """The files a server has written, under temporary names."""

    files: tuple[CheckpointFile, ...]
