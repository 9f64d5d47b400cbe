"""What a parameter server keeps of one shard, and of its batches and pulls while they are under way (pure).

All of it is touched on the event loop's thread only, except where a field says otherwise, so there are no locks: a
batch belongs to its apply thread from the instruction that hands it over until the event that says it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan

from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.exactly_once import Client, ClientKey, ClientMemory
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.push import Place, Push, Token, Update
from adamctl.roles.ps.core.replicas import ShardReplicas
from adamctl.roles.ps.core.sync_steps import ShardSteps, StepPart
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PulledPart, PushResult

PASSED_ON_WIRE_MAX = 1 << 31


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
        self.replica: ShardReplicas | None = None
        self.queue: list[Update] = []
        self.steps: ShardSteps | None = None
        self.waiting: list[tuple[Pull, int]] = []
        self.images: list[Token] = []

    @property
    def initial_values_volatile(self) -> bool:
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

    def hold_back(self, push: Push, durable: bool) -> None:
        """Makes a push's answer wait for what this holds now: to be durable, in copies, or all there is."""
        initial_values_volatile = self.initial_values_volatile
        if self.entry is not None and (durable or initial_values_volatile):
            push.stored.append((self.entry, self.entry.changes))
        if self.replica is not None and (self.replica.group.awaits or initial_values_volatile):
            if push.copies is None:
                push.copies = []
            push.copies.append((self.replica, self.counter))

    def take_part(self, update: StepPart, place: Place, problem: tuple[int, str] | None) -> list[Update]:
        """Takes in a part of a step; returns what is to be applied or settled now. `problem`: what is wrong with it."""
        if problem is not None:
            update.code, update.message = problem
        if self.steps is None:
            self.steps = ShardSteps(self.memory.step)
        return self.steps.take(update, place)

    def steps_done(self, batch: Batch) -> None:
        """Notes which steps a batch has taken it through, as part of what it remembers of its clients."""
        if self.steps is not None:
            done = [update.step for update in batch.updates if isinstance(update, StepPart)]
            self.memory.step = max(self.memory.step, *(step for step in done if step <= self.steps.begun), 0)

    def find_queued(self, client: Client, sequence: int) -> Update:
        """Returns the accepted update of a number that is not done yet: it waits for its turn or for its step."""
        under_way = self.batch.updates if self.batch is not None else []
        held = self.steps.held if self.steps is not None else []
        waiting = (*under_way, *self.queue, *held)
        return next(update for update in waiting if update.client is client and update.sequence == sequence)


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
