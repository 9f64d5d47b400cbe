"""Typed headers between the workers that hold the partitions of one replica (docs/partitions.md)."""

from __future__ import annotations

from typing import Any

from adamctl.wire.messages.common import Message
from adamctl.wire.messages.coordinator import EvaluateTask, TrainTask


class PartAttachRequest(Message, frozen=True):
    """A member introduces itself to another one of its group; answered when that knows the group.

    `region`: the memory that it shows, registered on this connection before; 0: it cannot. `sleeper`: the name of the
    socket that wakes its threads. `batch`, `flights`: examples and open flights that its memory is laid out for.
    """

    job: str
    group_epoch: int
    partition: int
    plan_hash: str
    batch: int
    flights: int
    region: int
    sleeper: str


class PartAttachReply(Message, frozen=True):
    """`mapped`: the member that answers reads the other one's memory. If both do, nothing is sent between them."""

    mapped: bool = True


class PartReadyRequest(Message, frozen=True):
    """A member tells the lead that it has everything compiled and allocated, and all others attached."""

    group_epoch: int
    partition: int


class PartTaskRequest(Message, frozen=True):
    """The lead hands a range to the other members: flights from `first_flight` on, one for each batch.

    Exactly one of `train` and `evaluate` has one entry. `first_flight` 0: the range is only read; steps follow.
    """

    group_epoch: int
    first_flight: int
    train: tuple[TrainTask, ...] = ()
    evaluate: tuple[EvaluateTask, ...] = ()


class FlightReport(Message, frozen=True):
    """A finished flight: summed loss and correct examples, 0 where another partition computes them; seconds.

    `wait_s`: for which threads had no flight, for want of examples. `sums`: as in `TaskReport`.
    """

    number: int
    loss_sum: float
    correct: int
    compute_s: float
    wait_s: float
    sums: tuple[float, ...] = ()


class PartDoneRequest(Message, frozen=True):
    """One-way: a member tells the lead what it has finished; counts as in `NextTaskRequest`, since its last report."""

    group_epoch: int
    partition: int
    flights: tuple[FlightReport, ...]
    updates: int = 0
    staleness: tuple[int, ...] = ()
    gradient_ages: tuple[int, ...] = ()
    status: dict[str, Any] = {}


class PartFlushRequest(Message, frozen=True):
    """The lead has all members push what they have accrued; answered when the servers have answered."""

    group_epoch: int


class PartGrantRequest(Message, frozen=True):
    """The lead says up to which flight the other members may begin, with `max_staleness`."""

    group_epoch: int
    flight: int


class PartStepRequest(Message, frozen=True):
    """The lead has the other members compute their replica's part of a step, and push what they own of it.

    Answered when servers have answered the push: the step is complete. The part is batch `number`, from 0, of the range
    `task`; its parts are flights from `first_flight` on. `fetch`: weights are fetched before; they contain all steps
    before. `channel`: of the push. `over`: ranges whose steps are all complete.
    """

    group_epoch: int
    first_flight: int
    task: TrainTask
    number: int
    channel: int
    fetch: bool
    over: tuple[int, ...] = ()


class PartExamplesRequest(Message, frozen=True):
    """Of a batch algorithm: the lead has the other members read ranges of the batch, and forget others.

    `read`, `forget`: [start, stop) of examples. A range that was read is there until it is forgotten.
    """

    group_epoch: int
    read: tuple[tuple[int, int], ...] = ()
    forget: tuple[tuple[int, int], ...] = ()


class PartPullRequest(Message, frozen=True):
    """The lead has a member pull its part of the vector `at` of an evaluation, while no portion is on its way."""

    group_epoch: int
    evaluation: int
    at: str


class PartPullReply(Message, frozen=True):
    """`lost_buckets`: of those that the member pulls, the ones that do not have the evaluation; none: it was pulled."""

    lost_buckets: tuple[int, ...] = ()


class PartPortionsRequest(Message, frozen=True):
    """The lead hands portions of a bundle to the other members: flights from `first_flight` on, one for each.

    They are examples [start, stop), counted from the bundle's first; the bundle is the `range` of the batch, which was
    to be read. `bundle`: the first flight of it, by which it is known in the group.
    """

    group_epoch: int
    bundle: int
    first_flight: int
    range: tuple[int, int]
    start: int
    stop: int


class PartBundleRequest(Message, frozen=True):
    """All members have finished the flights of a bundle: a member is to push what it owns of their sum, or forget it.

    Answered when servers have answered. `bundle`: as in `PartPortionsRequest`. `evaluation`, `number`, `weight`: what
    servers are told of it. `number` -1: it is forgotten.
    """

    group_epoch: int
    bundle: int
    evaluation: int = 0
    number: int = -1
    weight: float = 0.0


class PartBundleReply(Message, frozen=True):
    """`refused`: the code of each bucket of this member's that has not counted the bundle."""

    refused: dict[int, int] = {}


class PartStatusRequest(Message, frozen=True):
    """The lead asks a member where a flight stands with it, because no flight has been finished for long."""

    group_epoch: int
    flight: int


class PartStatusReply(Message, frozen=True):
    """Where it stands: see `adamctl.roles.worker.core.open_flights.Standing`."""

    state: str
    waits_for: tuple[int, ...]
    still_s: float


class PartEndRequest(Message, frozen=True):
    """The lead tells the others that the run is over. Whatever else ends a group, the coordinator tells its members."""

    group_epoch: int
    partition: int
    cause: str


class PartDataRequest(Message, frozen=True):
    """One-way: a block of the sender's memory, or a piece of it, for the copy that the receiver has of it.

    The body is what the receiver reads of the block, C-contiguous, cut into pieces that come in order. With the last
    one, or with none where the block has no content, the block's word becomes `flight`.

    `block`: its place in the receiver's copy, in the order of the layout (docs/formats/wire.md). `examples`: how many
    of the batch there are; 0 for blocks that have none. `offset`: where the body begins, in bytes.
    """

    group_epoch: int
    block: int
    flight: int
    examples: int = 0
    offset: int = 0
