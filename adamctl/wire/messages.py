"""The typed headers: one struct per request and reply, encoded by msgspec as MessagePack arrays.

Fields are only ever appended, with a default, so that both neighbours of a version understand each other. Lengths and
offsets are bytes, counts are elements, durations end in their unit. What may grow beyond 64 KiB travels in the body.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from adamctl.wire.constants import Opcode


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of every typed header."""


# --- every role -----------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First frame of a connection, from the one who connects."""

    version_lowest: int
    version_highest: int
    features: tuple[str, ...]
    role: str
    node: str
    incarnation: int
    token: str = ""


class HelloReply(Message, frozen=True):
    """The answer: the version both speak, the common features, and how many body bytes may be in flight."""

    version: int
    features: tuple[str, ...]
    role: str
    node: str
    incarnation: int
    credit_bytes: int


class ErrorReply(Message, frozen=True):
    """Typed header of a reply with the ERROR flag. `code` is an `ErrorCode`; `details` is for programs."""

    code: int
    message: str
    details: dict[str, Any] = {}


class StatusRequest(Message, frozen=True):
    """Asks any role how it is."""


class StatusReply(Message, frozen=True):
    """Plain values for people and programs; always has `role`, `node`, `incarnation`, `uptime_s`."""

    status: dict[str, Any]


class ShutdownRequest(Message, frozen=True):
    """Asks a role to leave and exit 0."""

    reason: str


class Empty(Message, frozen=True):
    """An answer that says only that the request was carried out."""


class CreditGrant(Message, frozen=True):
    """One-way: the receiver of bodies has freed this many bytes of the credit in `HelloReply`."""

    released_bytes: int


# --- controller -----------------------------------------------------------------------------------------------------


class ConfigEntry(Message, frozen=True):
    """One key. `revision` is the one of its last change, 0 for a key that does not exist."""

    key: str
    value: bytes
    revision: int


class ConfigReadRequest(Message, frozen=True):
    """Linearizable read of all keys with a prefix (a whole key is the prefix of itself)."""

    prefix: str


class ConfigReadReply(Message, frozen=True):
    """Body: MessagePack list of `ConfigEntry`, sorted by key."""

    revision: int


class ConfigCompareAndSetRequest(Message, frozen=True):
    """If each key's revision is as in `conditions`, makes all changes at one new revision, else none.

    Body: MessagePack of `ConfigChanges`. (session, sequence) make a retried request be applied once.
    """

    session: str
    sequence: int


class ConfigChanges(Message, frozen=True):
    """`conditions` maps key -> revision that must hold (0: must not exist)."""

    conditions: dict[str, int]
    puts: dict[str, bytes]
    deletes: tuple[str, ...] = ()


class ConfigCompareAndSetReply(Message, frozen=True):
    """`conflicts` names the keys whose condition did not hold; empty means that it was done."""

    revision: int
    conflicts: tuple[str, ...]


class ConfigWatchRequest(Message, frozen=True):
    """Answers when a key with the prefix has changed after a revision, or after `wait_s` with nothing."""

    prefix: str
    after_revision: int
    wait_s: float


class ConfigWatchReply(Message, frozen=True):
    """Body: MessagePack list of the changed `ConfigEntry`. `reset`: history is gone, the entries are all there are."""

    revision: int
    deleted: tuple[str, ...] = ()
    reset: bool = False


class NodeRegisterRequest(Message, frozen=True):
    """A process announces itself and is given an incarnation. Addresses as in `adamctl.net.address`."""

    node: str
    role: str
    addresses: tuple[str, ...]
    host: str
    pid: int
    capacity_bytes: int = 0


class NodeRegisterReply(Message, frozen=True):
    incarnation: int
    beacon_interval_s: float
    lost_after_s: float


class NodeBeaconRequest(Message, frozen=True):
    """Sent every beacon interval; refused with STALE_INCARNATION when a newer process has taken the name."""

    node: str
    incarnation: int


class NodeLeaveRequest(Message, frozen=True):
    node: str
    incarnation: int


# --- parameter server -----------------------------------------------------------------------------------------------


class AttachRequest(Message, frozen=True):
    """A client binds to a job before it pushes or pulls; refused with LAYOUT_MISMATCH or NOT_READY."""

    job: str
    layout_hash: str


class AttachReply(Message, frozen=True):
    """`epochs` maps the buckets this server serves to their epochs."""

    epochs: dict[int, int]


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
    """An envelope to one server. `epochs` maps each bucket touched to the epoch the client believes in."""

    job: str
    epochs: dict[int, int]
    learning_rate: float
    steps: int
    examples: int
    sources: tuple[PushSource, ...]
    parts: tuple[PushPart, ...]


class PushResult(Message, frozen=True):
    """What became of one shard: `code` OK and its new version, or why nothing was applied to it."""

    shard: int
    code: int
    epoch: int
    version: int
    staleness: int
    message: str = ""


class PushReply(Message, frozen=True):
    """One result per part, in order. `routing` maps buckets to newer epochs where the request's were old."""

    results: tuple[PushResult, ...]
    routing: dict[int, int] = {}


class PullRequest(Message, frozen=True):
    job: str
    epochs: dict[int, int]
    shards: tuple[int, ...]
    dtype: str = "float32"


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
    """Body: the shards' values; each part says at which byte its own start and how many elements they are."""

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
    files: tuple[CheckpointFile, ...]


# --- data server ----------------------------------------------------------------------------------------------------


class DataOpenRequest(Message, frozen=True):
    """Body: MessagePack of `adamctl.config.experiment.DataConfig`. Opening twice gives the same answer."""

    input_shape: tuple[int, ...]
    seed: int


class DataOpenReply(Message, frozen=True):
    """`dataset` names it in reads; `examples` maps train, validation and test to their counts."""

    dataset: str
    examples: dict[str, int]
    classes: tuple[str, ...]


class DataReadRequest(Message, frozen=True):
    """Examples [start, stop) of a split in the order of a pass; pass -1 is the order of the files."""

    dataset: str
    split: str
    pass_number: int
    start: int
    stop: int


class DataReadReply(Message, frozen=True):
    """Body: float32 [examples, *input shape], then, at `labels_offset`, int32 [examples]."""

    examples: int
    labels_offset: int


# --- coordinator ----------------------------------------------------------------------------------------------------


class RunJoinRequest(Message, frozen=True):
    """A worker offers itself."""

    node: str
    incarnation: int
    threads: int


class RunJoinReply(Message, frozen=True):
    """Body: MessagePack of `adamctl.roles.coordinator.client.JoinBody`: the resolved experiment, data servers."""

    job: str
    layout_hash: str
    servers_expected: int
    replica: int
    dataset: str
    classes: int


class TrainTask(Message, frozen=True):
    """Examples [start, stop) of a pass. `progress` is the share of the whole run done at `start`, for schedules."""

    id: int
    pass_number: int
    start: int
    stop: int
    progress_start: float
    progress_stop: float


class EvaluateTask(Message, frozen=True):
    """Examples [start, stop) of a split, with parameters pulled after this task was received, once per `evaluation`."""

    id: int
    evaluation: int
    split: str
    start: int
    stop: int


class TaskReport(Message, frozen=True):
    """What a worker says of one finished task. Sums, not means; `wait_s` is time that compute waited for data."""

    id: int
    examples: int
    loss_sum: float
    correct: int
    steps: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0


class NextTaskRequest(Message, frozen=True):
    """Reports what was finished and asks for up to `wanted` further tasks; answered when there is news or after wait_s.

    `staleness` counts pushes by staleness (index = staleness, last = that or more) since the last request, `updates`
    the parameter updates they carried. `leaving`: the worker goes; what it was given and did not report goes to others.
    """

    node: str
    incarnation: int
    reports: tuple[TaskReport, ...]
    wanted: int
    wait_s: float
    updates: int = 0
    staleness: tuple[int, ...] = ()
    status: dict[str, Any] = {}
    leaving: bool = False


class NextTaskReply(Message, frozen=True):
    """`drain`: finish and report what is there, push everything accrued. `ended`: the run is over, detach."""

    train: tuple[TrainTask, ...] = ()
    evaluate: tuple[EvaluateTask, ...] = ()
    drain: bool = False
    ended: bool = False
    reason: str = ""


class RunStatusRequest(Message, frozen=True):
    """Answered at once, or, with `wait_s`, when the run's state changes."""

    after_state: str = ""
    wait_s: float = 0.0


class RunStatusReply(Message, frozen=True):
    """Body: JSON object, the run's progress as in `adamctl.roles.coordinator.client.RunProgress`."""

    state: str


class RunStopRequest(Message, frozen=True):
    """Ends the run early, with a last checkpoint if training had begun and `checkpoint` is set."""

    reason: str
    checkpoint: bool = True


class BenchBlockRequest(Message, frozen=True):
    """A block that is received into a pooled buffer and dropped; `acknowledge` asks for an answer."""

    number: int
    acknowledge: bool = False


Pair: TypeAlias = tuple[type[Message], type[Message]]

MESSAGES: dict[Opcode, Pair] = {
    Opcode.HELLO: (Hello, HelloReply),
    Opcode.STATUS: (StatusRequest, StatusReply),
    Opcode.CREDIT: (CreditGrant, Empty),
    Opcode.SHUTDOWN: (ShutdownRequest, Empty),
    Opcode.CONFIG_READ: (ConfigReadRequest, ConfigReadReply),
    Opcode.CONFIG_COMPARE_AND_SET: (ConfigCompareAndSetRequest, ConfigCompareAndSetReply),
    Opcode.CONFIG_WATCH: (ConfigWatchRequest, ConfigWatchReply),
    Opcode.NODE_REGISTER: (NodeRegisterRequest, NodeRegisterReply),
    Opcode.NODE_BEACON: (NodeBeaconRequest, Empty),
    Opcode.NODE_LEAVE: (NodeLeaveRequest, Empty),
    Opcode.PS_ATTACH: (AttachRequest, AttachReply),
    Opcode.PS_PUSH: (PushRequest, PushReply),
    Opcode.PS_PULL: (PullRequest, PullReply),
    Opcode.PS_CHECKPOINT: (CheckpointRequest, CheckpointReply),
    Opcode.DATA_OPEN: (DataOpenRequest, DataOpenReply),
    Opcode.DATA_READ: (DataReadRequest, DataReadReply),
    Opcode.RUN_JOIN: (RunJoinRequest, RunJoinReply),
    Opcode.RUN_NEXT_TASK: (NextTaskRequest, NextTaskReply),
    Opcode.RUN_STATUS: (RunStatusRequest, RunStatusReply),
    Opcode.RUN_STOP: (RunStopRequest, Empty),
    Opcode.BENCH_BLOCK: (BenchBlockRequest, Empty),
}

OPCODE_OF_REQUEST: dict[type[Message], Opcode] = {pair[0]: opcode for opcode, pair in MESSAGES.items()}
