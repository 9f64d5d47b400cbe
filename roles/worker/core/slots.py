"""The state of a replica's gradients: accruing, being pushed, or still to be re-applied (pure).

Downpour (DistBelief 4.1, appendix in essence) keeps an accrued gradient, pushes it every n_push steps and fetches
parameters every n_fetch steps, all three weakly synchronised. Here every thread accrues into a slot of its own, so that
no gradient is lost to a race. A pushed slot is kept as long as parameters without it may arrive: they would erase the
replica's own work, so what they lack is applied to them again. A fetch that starts after a push was acknowledged
contains it, so a slot is kept at most until the fetch that was under way at that time is installed.

    FREE -> FILLING -> PUSHING -> FREE, or, acknowledged during a fetch, -> ACKNOWLEDGED -> FREE when that is installed
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.roles.worker.core.following import Following

Sequences: TypeAlias = NDArray[np.int64]
"""One number per shard of the layout."""


class SlotState(Enum):
    FREE = auto()
    FILLING = auto()
    PUSHING = auto()
    ACKNOWLEDGED = auto()


@dataclass(frozen=True)
class Base:
    """The pushes contained in the parameters that a gradient was computed from; staleness is counted from it.

    Attributes:
        pushes: per shard, the applied pushes of all replicas.
        sequences: per shard, the last of this replica's own pushes applied.
    """

    pushes: Sequences
    sequences: Sequences


@dataclass(slots=True)
class Slot:
    """One accrued gradient.

    Attributes:
        sequences: the sequence numbers of its push, None before that.
        number: counts up with every slot that is begun.
        meets: pushes that reached the weights soon after it began: its thread's last one, if the round trip is short.
    """

    index: int
    thread: int
    state: SlotState = SlotState.FREE
    steps: int = 0
    examples: int = 0
    learning_rate: float = 0.0
    local_learning_rate: float = 0.0
    base: Base | None = None
    sequences: Sequences | None = None
    begun_s: float = 0.0
    number: int = 0
    meets: int = 0


@dataclass(slots=True)
class Trip:
    """A push of a thread on its way into the thread's weights.

    Attributes:
        slot: what was pushed; None once the push is answered.
        pushed_s: when it was pushed.
        fetch: the number of the fetch that will contain it; 0 until the push is answered.
    """

    slot: Slot | None
    pushed_s: float
    fetch: int = 0


class StepActions(NamedTuple):
    """What to start in the background after a step."""

    push: Slot | None
    fetch: bool


@dataclass(frozen=True)
class Reapply:
    """A slot that arrived parameters lack. `shards` masks the shards that lack it; None means all of them."""

    slot: Slot
    shards: NDArray[np.bool_] | None


def _others_pushed(before: Base, now: Base) -> bool:
    """Whether pushes of other replicas were applied in between."""
    return bool((now.pushes - before.pushes > now.sequences - before.sequences).any())


@dataclass(slots=True)
class SlotCore:
    """The slots of all threads of one replica.

    Attributes:
        threads: how many threads accrue.
        slots_per_thread: bound on gradients of a thread that are accruing, being pushed, or not yet contained.
        n_push, n_fetch: steps of a thread between pushes and between fetches.
        keeps: whether gradients are applied locally, and so must be kept until a pull contains them.
        following: decides whether a thread waits until its weights contain what it has pushed. If it is given, a fetch
            follows each push once it is answered, regardless of `n_fetch`.
        begun: the number of the newest slot.
        fetches, contained: how many fetches have begun, and the last of them that was installed.
    """

    threads: int
    slots_per_thread: int
    n_push: int
    n_fetch: int
    keeps: bool
    following: Following | None = None
    base: Base | None = None
    fetching: bool = False
    slots: list[Slot] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    filling: list[Slot | None] = field(default_factory=list)
    begun: int = 0
    fetches: int = 0
    contained: int = 0
    trips: list[Trip | None] = field(default_factory=list)
    _arrived: Base | None = None

    def __post_init__(self) -> None:
        self.slots = [
            Slot(index, index // self.slots_per_thread) for index in range(self.threads * self.slots_per_thread)
        ]
        self.steps = [0] * self.threads
        self.filling = [None] * self.threads
        self.trips = [None] * self.threads

    def begin_step(self, thread: int, local_learning_rate: float = 0.0, now: float = 0.0) -> Slot | None:
        """Returns the slot to accrue into, or None while the thread must wait.

        It waits while all of its slots are in use, or until its last push is in the weights.
        """
        slot = self.filling[thread]
        if slot is not None:
            return slot
        if self.following is not None and self.trips[thread] is not None and self.following.waits:
            return None
        for slot in self.slots_of(thread):
            if slot.state is SlotState.FREE:
                break
        else:
            return None
        slot.state, slot.base, slot.sequences = SlotState.FILLING, self.base, None
        slot.steps = slot.examples = 0
        slot.local_learning_rate = local_learning_rate
        slot.begun_s, slot.meets = now, self._pushes_soon(thread)
        self.begun += 1
        slot.number = self.begun
        self.filling[thread] = slot
        return slot

    def steps_until_actions(self, thread: int) -> int:
        """Returns how many steps a thread makes until a push or fetch has to start."""
        slot = self.filling[thread]
        until_push = self.n_push - (slot.steps if slot is not None else 0)
        if self.following is not None:
            return until_push
        return min(until_push, self.n_fetch - self.steps[thread] % self.n_fetch)

    def end_step(
        self,
        thread: int,
        examples: int,
        learning_rate: float,
        local_learning_rate: float,
        steps: int = 1,
        now: float = 0.0,
    ) -> StepActions:
        """Counts one step of a thread, or up to `steps_until_actions` of them, and returns what to start."""
        slot = self.filling[thread]
        if slot is None:
            raise RuntimeError(f"thread {thread} ended a step that it had not begun")
        slot.steps += steps
        slot.examples += examples
        slot.learning_rate, slot.local_learning_rate = learning_rate, local_learning_rate
        self.steps[thread] += steps
        push = slot if slot.steps >= self.n_push else None
        if push is not None:
            self._hand_over(push)
            if self.following is not None:
                self.following.stepped(now - push.begun_s)
                if self.trips[thread] is None or self.following.waits:
                    self.trips[thread] = Trip(push, now)
        return StepActions(push, self.following is None and self.steps[thread] % self.n_fetch == 0)

    def flush(self) -> list[Slot]:
        """Returns the slots that hold accrued steps, to be pushed now. Call it only while no thread is in a step."""
        filled = [slot for slot in self.filling if slot is not None and slot.steps > 0]
        for slot in filled:
            self._hand_over(slot)
        return filled

    def acknowledged(self, slot: Slot) -> None:
        """The servers have answered the push of a slot, with success or refusal: its numbers are used up either way."""
        trip = self.trips[slot.thread]
        if trip is not None and trip.slot is slot:
            trip.slot, trip.fetch = None, self.fetches + 1
        if slot.state is SlotState.PUSHING:
            slot.state = SlotState.ACKNOWLEDGED if self.keeps and self.fetching else SlotState.FREE

    def fetch_started(self) -> None:
        """A fetch has begun; at most one is under way."""
        self.fetching = True
        self.fetches += 1

    def fetched(self, base: Base, begun: Collection[int] = ()) -> list[Reapply]:
        """Parameters have arrived: returns the slots that they lack, to be applied to them before `installed`.

        `begun` are the indices of slots that already hold steps which have not been counted yet.
        """
        self._arrived = base
        if not self.keeps:
            return []
        lacking: list[Reapply] = []
        for slot in self.slots:
            is_empty = slot.steps == 0 and slot.index not in begun
            if slot.state is SlotState.FREE or (slot.state is SlotState.FILLING and is_empty):
                continue
            missing = None if slot.sequences is None else base.sequences < slot.sequences
            if missing is None or missing.all():
                lacking.append(Reapply(slot, None))
            elif missing.any():
                lacking.append(Reapply(slot, missing))
        return lacking

    def installed(self, now: float = 0.0) -> None:
        """The completed parameters are in use: no later fetch can lack what is acknowledged by now."""
        self.fetching = False
        if self.following is not None and self.base is not None and self._arrived is not None:
            applied = float(np.mean(self._arrived.pushes))
            self.following.fetched(_others_pushed(self.base, self._arrived), applied)
        self.base, self.contained = self._arrived, self.fetches
        for thread, trip in enumerate(self.trips):
            if trip is not None and trip.fetch and trip.fetch <= self.contained:
                self.trips[thread] = None
                if self.following is not None:
                    self.following.came_back(now - trip.pushed_s)
        for slot in self.slots:
            if slot.state is SlotState.ACKNOWLEDGED:
                slot.state = SlotState.FREE

    @property
    def unacknowledged(self) -> int:
        return sum(slot.state is SlotState.PUSHING for slot in self.slots)

    @property
    def oldest_unanswered(self) -> int:
        """The number of the oldest slot whose steps servers have not answered; one more than `begun` without one."""
        open_states = (SlotState.FILLING, SlotState.PUSHING)
        return min((one.number for one in self.slots if one.steps and one.state in open_states), default=self.begun + 1)

    def slots_of(self, thread: int) -> list[Slot]:
        start = thread * self.slots_per_thread
        return self.slots[start : start + self.slots_per_thread]

    def _pushes_soon(self, thread: int) -> int:
        return int(self.following is not None and self.following.is_near and self.trips[thread] is not None)

    def _hand_over(self, slot: Slot) -> None:
        slot.state = SlotState.PUSHING
        self.filling[slot.thread] = None
