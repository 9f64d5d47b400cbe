"""A parameter server's state of one shard, and of its batches and pulls in progress (pure).

All of it is used on the event loop's thread only, except where a field says otherwise, so there are no locks: a batch
belongs to its apply thread from the instruction that hands it over until the event that reports it done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import Any

from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.buffers import Changing, State, Values
from adamctl.roles.ps.core.exactly_once import Client, ClientKey, ClientMemory, MemoryRecord
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.push import Awaiting, Place, Token, Update
from adamctl.roles.ps.core.replicas import ShardReplicas
from adamctl.roles.ps.core.shard_vectors import ShardVectors
from adamctl.roles.ps.core.sync_steps import ShardSteps, StepPart
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PulledPart, PushResult

PASSED_ON_WIRE_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class Image:
    """A shard's whole state at one version; values and state are held until `release`.

    `shard`: a `Shard`, or the `HeldShard` of a copy.
    """

    shard: Any
    epoch: int
    counter: int
    pushes: int
    memory: MemoryRecord
    values: Values
    state: State

    def release(self) -> None:
        self.values.release()
        self.state.release()


class BucketState:
    """A bucket whose primary is this server; `dropped` once it no longer is."""

    __slots__ = ("dropped", "epoch", "index")

    def __init__(self, index: int, epoch: int) -> None:
        self.index = index
        self.epoch = epoch
        self.dropped = False


class Shard:
    """One shard at its current version, and what waits for the next.

    Attributes:
        counter: batches applied; (bucket.epoch, counter) is the version.
        pushes: pushes applied since the job began.
        memory: the clients' numbers; belongs to values and state.
        thread: the apply thread that owns it.
        home: the apply thread in whose memory values and state are, None at first; used by the batch's thread only.
        batch: the batch being applied, at most one at a time; None when idle.
        queue: accepted updates that are not yet in a batch, in order.
        waiting: pulls that wait for a batch that is being applied in place.
        image_takers: each is given the shard's image when the batch ends, once.
        spare: an unused buffer of the shard's size, or None.
        entry: its entry in the store's log, None without a store.
        replica: its copies on other servers, None if it should have none.
        given: its initial values come with its first push; without that push, later ones are worthless.
        steps: held parts of incomplete steps, None before the first step.
        vectors: a batch algorithm's scratch; None if the job's rule takes updates.
    """

    __slots__ = (
        "__weakref__",
        "batch",
        "bucket",
        "counter",
        "entry",
        "given",
        "home",
        "image_takers",
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
        "vectors",
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
        self.batch: Changing | None = None
        self.entry: Entry | None = None
        self.given = False
        self.replica: ShardReplicas | None = None
        self.queue: list[Update] = []
        self.steps: ShardSteps | None = None
        self.vectors: ShardVectors | None = None
        self.waiting: list[tuple[Pull, int]] = []
        self.image_takers: list[Callable[[Image], None]] = []

    @property
    def initial_values_volatile(self) -> bool:
        """Whether a restart might find no initial values: this server or an in-sync copy has not yet saved a state that
        contains them.

        This also applies to a bucket that was taken over: the former primary wrote to its own disk.
        """
        if not self.given or self.entry is None:
            return False
        return not self.entry.version[2] or (self.replica is not None and not self.replica.founded)

    def image(self) -> Image:
        """Holds the whole state at the current version; call it only while no batch is in progress."""
        self.values.readers += 1
        self.state.readers += 1
        memory = self.memory.record()
        return Image(self, self.bucket.epoch, self.counter, self.pushes, memory, self.values, self.state)

    def advance(self, batch: Batch) -> None:
        """Makes a batch's result the new version."""
        self.counter += 1
        if batch.new_state is not None:
            self.state = State(batch.new_state)
        if not batch.in_place:
            assert batch.target is not None
            old, self.values = self.values, Values(batch.target, self)
            if not old.readers and self.spare is None and not batch.moved:
                self.spare = old.array

    def passed(self, update: Update) -> tuple[int, int]:
        """Returns how many pushes were applied since an update's base: those of other clients, and all."""
        since = self.pushes - update.base_pushes
        others = since - (update.sequence - 1 - update.base_sequence)
        return min(max(others, 0), PASSED_ON_WIRE_MAX), min(max(since, 0), PASSED_ON_WIRE_MAX)

    def result(self, code: int, message: str) -> PushResult:
        """Returns the result for a part of a push that is not applied now."""
        return PushResult(self.index, code, self.bucket.epoch, self.counter, 0, message)

    def hold_back(self, push: Awaiting, durable: bool) -> None:
        """Makes an answer wait until this shard's current state is durable, in copies, or both, as needed."""
        initial_values_volatile = self.initial_values_volatile
        if self.entry is not None and (durable or initial_values_volatile):
            push.stored.append((self.entry, self.entry.changes))
        if self.replica is not None and (self.replica.group.awaits or initial_values_volatile):
            if push.copies is None:
                push.copies = []
            push.copies.append((self.replica, self.counter))

    def take_part(self, update: StepPart, place: Place, problem: tuple[int, str] | None) -> list[Update]:
        """Takes in a part of a step; returns what to apply or settle now. `problem`: why the part is refused."""
        if problem is not None:
            update.code, update.message = problem
        if self.steps is None:
            self.steps = ShardSteps(self.memory.step)
        return self.steps.take(update, place)

    def steps_done(self, batch: Batch) -> None:
        """Notes the last step that a batch has applied, in the shard's memory."""
        if self.steps is not None:
            done = [update.step for update in batch.updates if isinstance(update, StepPart)]
            self.memory.step = max(self.memory.step, *(step for step in done if step <= self.steps.begun), 0)

    def find_queued(self, client: Client, sequence: int) -> Update:
        """Returns the accepted update with a number that is not done yet: it is queued or held for a step."""
        under_way: list[Update] = self.batch.updates if self.batch is not None else []
        held = self.steps.held if self.steps is not None else []
        waiting = (*under_way, *self.queue, *held)
        return next(update for update in waiting if update.client is client and update.sequence == sequence)


class Batch:
    """The queued updates of a shard, to be applied in order by its apply thread, which owns the batch until done.

    Factors that were accepted before the shard's first step get a batch of their own: parts of a step are summed first.

    Attributes:
        in_place: the values are overwritten; otherwise results go to `target` (made by the thread if None).
        copy_state: the state is being read, so the thread works on a copy and leaves it in `new_state`.
        moved: set by the thread: values and state are now in its own memory, so the old ones are no use as a spare.
        applied: set by the thread: how many updates changed the values.
        begun: set by the thread: something may have been written.
        damaged: set by the thread: it failed while overwriting values or state, which are unusable now.
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
        """Refuses all updates after the thread failed; what was written to copies is discarded."""
        for update in self.updates:
            if not update.code:
                update.code, update.message = code, message
        writes_over = self.in_place or (not self.copy_state and bool(self.shard.state.arrays))
        self.damaged = self.begun and writes_over
        self.applied, self.new_state = 0, None

    def bring_home(self, thread: int) -> None:
        """Makes the batch write into memory allocated by the calling thread if the shard is in another thread's memory.

        So the shard moves to this thread's NUMA node (Adam 3.3.1), once after it was made or given to another thread.
        Pulls meanwhile see the old values, which are not written any more.
        """
        if self.shard.home != thread:
            self.shard.home = thread
            self.target, self.in_place, self.copy_state, self.moved = None, False, True, True

    def spoil(self) -> None:
        """Overwrites what was damaged with NaN, in case it is still read."""
        for array in (
            *((self.shard.values.array,) if self.in_place else ()),
            *(() if self.copy_state else self.shard.state.arrays),
        ):
            array.fill(nan)


def _one_by_one(queue: list[Update]) -> int:
    """Returns where the parts of steps start if factors precede them, else the queue's length."""
    first = next((place for place, update in enumerate(queue) if update.push.place is not None), 0)
    factors = any(u.source is not None and u.source.header.kind == UpdateKind.FACTORS for u in queue[:first])
    return first if factors else len(queue)


@dataclass(slots=True)
class Pull:
    """A pull in progress; `missing` of its shards are still to come. Both lists are in the order of the request.

    `dtype`: the number type in which values are sent.
    """

    token: Token
    client: ClientKey
    parts: list[PulledPart | None]
    values: list[Values | None]
    missing: int = 0
    dtype: str = "float32"
    routing: dict[int, int] = field(default_factory=dict)
