"""Typed headers of bundles: what workers do of an evaluation of a whole batch (DistBelief 4.2, docs/decisions/0033)."""

from __future__ import annotations

from adamctl.wire.messages.common import Message


class BundleName(Message, frozen=True):
    """A bundle as it was handed out: `attempt` counts how often shards have lost what they had of an evaluation."""

    evaluation: int
    attempt: int
    bundle: int


class BundleTask(Message, frozen=True):
    """Examples [start, stop) of the batch, whose gradient is that of their mean, pushed with `weight` to every server.

    Parameters are those that servers have as the vector `at` of the evaluation, pulled once for it.
    """

    name: BundleName
    start: int
    stop: int
    weight: float
    at: str


class BundleReport(Message, frozen=True):
    """A bundle that a worker has done with.

    `code`: OK if every shard has it; NOT_FINITE or OUT_OF_RANGE if one refused its gradient; ABANDONED if the worker
    gave it up, as it was told to, or since `lost_buckets` of the request have not what it needs. `loss_sum` over its
    examples. `wait_s`: time in which it waited for data, parameters or pushes.
    """

    name: BundleName
    code: int
    loss_sum: float = 0.0
    examples: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0


class NextBundlesRequest(Message, frozen=True):
    """A worker reports, and asks for `wanted` more bundles; answered when there are any, or news, or after `wait_s`.

    A worker's next request has the one that waits answered at once. A worker keeps one waiting even if it wants no
    bundle, to hear of those that were cancelled.
    `lost_buckets`: those that have answered that they do not have the evaluation, or its vector; it is the one of the
    ABANDONED bundles among the `reports`, where several, the newest. `group_epoch`: of the group that the worker leads,
    where replicas are groups.
    """

    node: str
    incarnation: int
    wanted: int
    wait_s: float
    reports: tuple[BundleReport, ...] = ()
    lost_buckets: tuple[int, ...] = ()
    leaving: bool = False
    group_epoch: int = 0


class NextBundlesReply(Message, frozen=True):
    """`cancelled`: bundles of this worker that others have done. `ahead`: [start, stop) of examples that it will
    probably be given in the next evaluation, to read them before it begins. `drain`: take nothing more."""

    tasks: tuple[BundleTask, ...] = ()
    cancelled: tuple[BundleName, ...] = ()
    ahead: tuple[tuple[int, int], ...] = ()
    drain: bool = False
    ended: bool = False
    reason: str = ""
