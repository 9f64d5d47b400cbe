"""What a parameter server keeps of one shard, of one push and of one pull while they are under way (pure).

All of it is touched on the event loop's thread only, except where a field says otherwise, so there are no locks: a
batch belongs to its apply thread from the instruction that hands it over until the event that says it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, TypeAlias

from adamctl.kernels.numeric.convert import Narrow
from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.exactly_once import Client, ClientKey, ClientMemory
from adamctl.roles.ps.core.flush import Entry
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PulledPart, PushResult, PushSource

if TYPE_CHECKING:
    from adamctl.roles.ps.core.sync_steps import Place, ShardSteps
    from adamctl.roles.ps.replication.core.bucket_group import ShardReplica

PASSED_ON_WIRE_MAX = 1 << 31

Token: TypeAlias = Any
"""Whatever the shell needs to answer a request; the core only hands it back."""


class Values:
    """One buffer of a shard's values. While `readers` > 0 (sends or snapshots in flight) nobody writes to it."""

    __slots__ = ("array", "readers", "shard")

    def __init__(self, array: Array, shard: Shard) -> None:
        self.array = array
        self.readers = 0
        self.shard = shard

    def release(self) -> None:
        """One reader is done; a buffer that is no longer current is kept for the next version."""
        self.readers -= 1
        if not self.readers and self is not self.shard.values and self.shard.spare is None:
            self.shard.spare = self.array


class State:
    """A rule's state arrays of a shard. While `readers` > 0 a batch works on copies."""

    __slots__ = ("arrays", "readers")

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays
        self.readers = 0

    def release(self) -> None:
        self.readers -= 1


class BucketState:
    """A bucket whose primary we are; `dropped` when we no longer are."""

    __slots__ = ("dropped", "epoch", "index")

    def __init__(self, index: int, epoch: int) -> None:
        self.index = index
        self.epoch = epoch
        self.dropped = False


class Shard:
    """One shard at its present version, and who waits for its next.

    Attributes:
        counter: batches applied; (bucket.epoch, counter) is the version.
        pushes: pushes applied since the job began.
        memory: the clients' numbers; belongs to values and state.
        thread: the apply thread that owns it.
        home: the apply thread whose memory values and state lie in, None before any's; belongs to the batch's thread.
        batch: what that thread is doing with it; None when idle. Only one at a time.
        queue: accepted updates in order, not yet in a batch.
        waiting: pulls that wait for a batch which is being applied in place.
        images: snapshots that wait for the batch to end.
        spare: a buffer of the shard's size that nobody uses, or None.
        entry: its place in the store's log, None without a store.
        replica: what other servers have of it, None if nobody is to have any.
        given: its initial values come with its first push, without which what is pushed later is worth nothing.
        steps: parts of steps that are not complete, None before the first.
    """

    __slots__ = (
        "batch",
        "bucket",
        "counter",
        "entry",
        "given",
        "home",
        "images",
        "index",
        "memory",
        "pushes",
        "queue",
        "replica",
        "row_size",
        "row_start",
        "row_stop",
        "size",
        "spare",
        "state",
        "steps",
        "tensor",
        "thread",
        "values",
        "waiting",
    )

    def __init__(self, index: int, tensor: int, row_start: int, row_stop: int, bucket: BucketState) -> None:
        self.index, self.tensor = index, tensor
        self.row_start, self.row_stop = row_start, row_stop
        self.bucket = bucket
        self.size = self.row_size = 0
        self.values: Values
        self.state: State
        self.spare: Array | None = None
        self.memory = ClientMemory()
        self.counter = self.pushes = self.thread = 0
        self.home: int | None = None
        self.batch: Batch | None = None
        self.entry: Entry | None = None
        self.given = False
        self.replica: ShardReplica | None = None
        self.queue: list[Update] = []
        self.steps: ShardSteps | None = None
        self.waiting: list[tuple[Pull, int]] = []
        self.images: list[Token] = []

    @property
    def unfounded(self) -> bool:
        """Says whether a restart might find no initial values: here, or at a copy that counts, no state with those that
        were given is on disk yet.

        Also of a bucket that was taken over: whoever had it before wrote on a disk of its own.
        """
        if not self.given or self.entry is None:
            return False
        return not self.entry.version[2] or (self.replica is not None and not self.replica.founded)

    def advance(self, batch: Batch) -> None:
        """Makes a batch's outcome the new version."""
        self.counter += 1
        if batch.new_state is not None:
            self.state = State(batch.new_state)
        if not batch.in_place:
            assert batch.target is not None
            old, self.values = self.values, Values(batch.target, self)
            if not old.readers and self.spare is None and not batch.moved:
                self.spare = old.array

    def passed(self, update: Update) -> tuple[int, int]:
        """Returns how many pushes were applied since an update's base: those of others, and all of them."""
        since = self.pushes - update.base_pushes
        others = since - (update.sequence - 1 - update.base_sequence)
        return min(max(others, 0), PASSED_ON_WIRE_MAX), min(max(since, 0), PASSED_ON_WIRE_MAX)

    def result(self, code: int, message: str) -> PushResult:
        """Returns what is answered about a part of a push that is not applied now."""
        return PushResult(self.index, code, self.bucket.epoch, self.counter, 0, message)


class Push:
    """A push under way. `results` are in the order of its parts; `remaining` of them are still to come.

    `body` is read by apply threads and valid until `remaining` is 0. They note in `finite` which activations, by
    offset, size and type, were found finite. `stored` are the changes that must be durable before it is answered,
    `copies` the states of shards that copies must have, None if there are no copies.
    `place` says of which step it is a part, None of none. `held_bytes` of the body are memory of ours: none of them if
    it is the client's. `holder`: whose they are if they are held for a step, or behind one.
    """

    __slots__ = (
        "body",
        "body_bytes",
        "copies",
        "finite",
        "held_bytes",
        "holder",
        "learning_rate",
        "place",
        "queued",
        "remaining",
        "results",
        "routing",
        "stored",
        "token",
    )

    def __init__(self, token: Token, learning_rate: float, body: memoryview, parts: int) -> None:
        self.token = token
        self.learning_rate = learning_rate
        self.body = body
        self.body_bytes = len(body)
        self.held_bytes = len(body)
        self.finite: dict[tuple[int, int, str], bool] = {}
        self.results: list[PushResult | None] = [None] * parts
        self.remaining = parts
        self.routing: dict[int, int] = {}
        self.stored: list[tuple[Entry, int]] = []
        self.copies: list[tuple[ShardReplica, int]] | None = None
        self.queued = False
        self.place: Place | None = None
        self.holder: ClientKey | None = None

    def settle(self, position: int, result: PushResult) -> None:
        self.results[position] = result
        self.remaining -= 1

    def wait_for(self, shard: Shard, durable: bool) -> None:
        """Makes the answer wait for what a shard holds now: to be durable, in copies, or all there is."""
        unfounded = shard.unfounded
        if shard.entry is not None and (durable or unfounded):
            self.stored.append((shard.entry, shard.entry.changes))
        if shard.replica is not None and (shard.replica.group.awaits or unfounded):
            if self.copies is None:
                self.copies = []
            self.copies.append((shard.replica, shard.counter))


class Source:
    """A source of a push, checked: `problem` says what is wrong with it, as (code, message).

    `row_size` is its tensor's. `arrays`, `address` and `finite` are filled in and read by apply threads; two that do so
    at once compute the same.
    """

    __slots__ = ("address", "arrays", "finite", "header", "problem", "push", "row_size")

    def __init__(self, push: Push, header: PushSource, problem: tuple[int, str] | None, row_size: int) -> None:
        self.push = push
        self.row_size = row_size
        self.header = header
        self.problem = problem
        self.arrays: tuple[Array | Narrow, ...] | None = None
        self.address: int | None = None
        self.finite: bool | None = None


class Update:
    """One accepted part of a push, in its shard's queue.

    Attributes:
        position: of its result in the push.
        code, message: why it is refused; code 0 if it is to be applied. An apply thread may set them.
        waiters: other pushes that repeat it and wait for its answer, with their positions.
        moot: nothing is to be applied for it; never of those that are no parts of steps.
    """

    __slots__ = (
        "base_pushes",
        "base_sequence",
        "client",
        "code",
        "message",
        "position",
        "push",
        "sequence",
        "source",
        "waiters",
    )
    moot = False

    def __init__(
        self, push: Push, position: int, source: Source | None, client: Client, sequence: int, base: tuple[int, int]
    ) -> None:
        self.push, self.position, self.source = push, position, source
        self.client, self.sequence = client, sequence
        self.base_pushes, self.base_sequence = base
        self.code = 0
        self.message = ""
        self.waiters: list[tuple[Push, int]] | None = None

    def refuse(self, code: int, message: str) -> None:
        """Nothing of it is looked at any more."""
        self.code, self.message, self.source = code, message, None


class Batch:
    """Everything that waited for a shard, to be applied in order by its thread, which owns this until it is done.

    Only factors that were accepted before a shard was in step go by themselves: parts of a step are added up first.

    Attributes:
        in_place: the values are written over; else into `target` (made by the thread if None).
        copy_state: the state is being read, so the thread works on a copy and leaves it in `new_state`.
        moved: set by the thread: values and state went to its own memory, so the old ones are no good as a spare.
        applied: set by the thread: updates that changed the values.
        begun: set by the thread: something may have been written.
        damaged: set by the thread: it failed while it wrote over values or state, which are worth nothing now.
    """

    __slots__ = (
        "applied",
        "begun",
        "copy_state",
        "damaged",
        "in_place",
        "moved",
        "new_state",
        "shard",
        "target",
        "updates",
    )

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        stop = len(shard.queue) if shard.steps is None else _one_by_one(shard.queue)
        self.updates, shard.queue = shard.queue[:stop], shard.queue[stop:]
        self.in_place = shard.values.readers == 0
        self.target: Array | None = None
        if not self.in_place:
            self.target, shard.spare = shard.spare, None
        self.copy_state = shard.state.readers > 0
        self.new_state: list[Array] | None = None
        self.moved = self.begun = self.damaged = False
        self.applied = 0

    def failed(self, code: int, message: str) -> None:
        """Refuses all updates, after the thread failed; what was written into copies is as good as not written."""
        for update in self.updates:
            if not update.code:
                update.code, update.message = code, message
        writes_over = self.in_place or (not self.copy_state and bool(self.shard.state.arrays))
        self.damaged = self.begun and writes_over
        self.applied, self.new_state = 0, None

    def bring_home(self, thread: int) -> None:
        """Has a shard of another thread's memory written beside it, into memory that the calling thread makes.

        So it comes to lie on its node (Adam 3.3.1), once after it was made or given to another thread. Pulls that look
        meanwhile see the old values, which nobody writes any more.
        """
        if self.shard.home != thread:
            self.shard.home = thread
            self.target, self.in_place, self.copy_state, self.moved = None, False, True, True

    def spoil(self) -> None:
        """Makes what was damaged NaN, for whoever gets an image of it all the same."""
        for array in (
            *((self.shard.values.array,) if self.in_place else ()),
            *(() if self.copy_state else self.shard.state.arrays),
        ):
            array.fill(nan)


def _one_by_one(queue: list[Update]) -> int:
    """Returns where the parts of steps begin if there are factors before them, else how long a queue is."""
    first = next((place for place, update in enumerate(queue) if update.push.place is not None), 0)
    factors = any(u.source is not None and u.source.header.kind == UpdateKind.FACTORS for u in queue[:first])
    return first if factors else len(queue)


@dataclass(slots=True)
class Pull:
    """A pull under way; `missing` of its shards are still to come. Both lists are in the order of the request.

    `dtype` is what the values are to be sent as.
    """

    token: Token
    client: ClientKey
    parts: list[PulledPart | None]
    values: list[Values | None]
    missing: int = 0
    dtype: str = "float32"
    routing: dict[int, int] = field(default_factory=dict)
