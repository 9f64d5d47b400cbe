"""Typed headers of the parameter server: attach, push, pull, checkpoint."""

from __future__ import annotations

from adamctl.wire.messages.common import Message


class AttachRequest(Message, frozen=True):
    """Attaches a client to a job before it pushes or pulls; refused with LAYOUT_MISMATCH or NOT_READY.

    Body: int64 pairs (shard, number) for shards to which the client has pushed: it knows the outcome of every number up
    to this one. A restarted server that remembers fewer continues from there.
    """

    job: str
    layout_hash: str


class AttachReply(Message, frozen=True):
    """`epochs` maps the buckets this server serves to their epochs.

    Body: int64 pairs (shard, last known number of this client), for the shards that know the client.
    `rolled_back` counts this client's numbers, over all shards, that were acknowledged but are missing from the values
    that this process found, as far as it has skipped them.
    """

    epochs: dict[int, int]
    rolled_back: int = 0


class PushSource(Message, frozen=True):
    """Bytes in the body that one or more shards of a tensor use.

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
    """One shard of a push. The base is the pulled version that the gradient was computed from (for staleness)."""

    shard: int
    sequence: int
    source: int
    base_pushes: int = 0
    base_sequence: int = 0


class PushRequest(Message, frozen=True):
    """An envelope to one server. `epochs` maps each bucket touched to the epoch the client believes in.

    `step` above 0: its gradients are part number `step_part` (from 0) of the `step_parts` of that step. A server holds
    the parts for a shard until all have arrived, adds them in the order of their numbers and applies the sum at once.

    `region` other than 0: there is no body; sources lie in this region of the client's memory, which it leaves
    unchanged until it has the answer (MEMORY_REGISTER). Any dtype is possible; our clients share only float32.
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
    """The outcome for one shard: `code` OK and its new version, or why nothing was applied to it.

    STALE_EPOCH with a version above 0: it was applied here; whether the bucket's new primary has it is not known.

    `staleness` counts other clients' pushes applied between the part's base and the part itself, `age` all pushes.
    """

    shard: int
    code: int
    epoch: int
    version: int
    staleness: int
    message: str = ""
    age: int = 0


class ServerLoad(Message, frozen=True):
    """The load of a server's apply threads: their busy share of the last moments, 0 to 1, and their total capacity per
    second: multiply-adds of factors, elements of gradients. 0.0: not measured yet.
    """

    busy: float
    products_per_s: float
    adds_per_s: float


class PushReply(Message, frozen=True):
    """One result per part, in order. `routing` maps buckets to newer epochs if the request's were old.

    `load` is the server's load, None before it was measured.
    """

    results: tuple[PushResult, ...]
    routing: dict[int, int] = {}
    load: ServerLoad | None = None


class PullRequest(Message, frozen=True):
    """Asks for the values of some shards, with the epochs of their buckets as the client knows them.

    `region` other than 0: the answer has no body; values are written into this region of the client's memory as
    float32, each shard's at its byte in `offsets`, in the order of the shards (MEMORY_REGISTER).

    `vector` other than "": asks for this vector of a batch algorithm, at which `evaluation` was opened.
    """

    job: str
    epochs: dict[int, int]
    shards: tuple[int, ...]
    dtype: str = "float32"
    region: int = 0
    offsets: tuple[int, ...] = ()
    vector: str = ""
    evaluation: int = 0


class PulledPart(Message, frozen=True):
    """One shard at one version: `pushes` is the total applied so far, `sequence` the caller's last one contained."""

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
    """Body: the shards' values in the requested order, without padding.

    Each part says at which byte its values start and how many elements they have.
    """

    parts: tuple[PulledPart, ...]
    routing: dict[int, int] = {}


class CheckpointRequest(Message, frozen=True):
    """Asks a server to write its shards of a job into `folder` under temporary names; the coordinator renames them.

    `commit`: of a batch algorithm, which all shards must be at; else SEQUENCE_GAP, and no file is left. -1: any.
    `nonce`: what the coordinator wrote into `folder`; a server that cannot read it there holds its file ready to be
    fetched by PS_CHECKPOINT_PART instead. Empty: the server creates the folder and writes.
    """

    job: str
    folder: str
    commit: int = -1
    nonce: str = ""


class CheckpointFile(Message, frozen=True):
    """One written file: final name, present name, length and BLAKE2b-128 of its bytes, and the shards in it."""

    name: str
    temporary_name: str
    size_bytes: int
    checksum: str
    shards: tuple[int, ...]


class CheckpointReply(Message, frozen=True):
    """The files a server has written, under temporary names; or, above 0, the number of a stream to be fetched."""

    files: tuple[CheckpointFile, ...]
    stream: int = 0


class CheckpointPartRequest(Message, frozen=True):
    """Asks for the next part of the file that a server streams, over the connection that asked for the checkpoint.

    `offset`: how many bytes the requester has.
    """

    job: str
    stream: int
    offset: int


class CheckpointReadRequest(Message, frozen=True):
    """A server that cannot read the folder of the checkpoint that a job begins from asks for a piece of a file.

    `name`: the manifest, or a file that it lists; `size`: at most so many bytes from `offset`.
    """

    job: str
    name: str
    offset: int
    size: int


class CheckpointReadReply(Message, frozen=True):
    """The body holds the piece, shorter only where the file ends; `file_bytes`: its length; `checksum`: CRC-32."""

    file_bytes: int
    checksum: int


class CheckpointPartReply(Message, frozen=True):
    """The body holds the part; `checksum` is its CRC-32. `last`: the file ends with it, and `files` describes it."""

    checksum: int
    last: bool = False
    files: tuple[CheckpointFile, ...] = ()
