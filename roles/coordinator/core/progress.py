"""The state of a run at one moment, as front ends see it. Plain structs: the core fills them, clients read them."""

from __future__ import annotations

from math import isfinite
from typing import Any, Literal, TypeAlias

import msgspec

from adamctl.model.metric import TOP_1, value_of

State: TypeAlias = Literal["starting", "warmstart", "training", "evaluating", "finishing", "ended", "failed", "stopped"]
Computed: TypeAlias = tuple[tuple[float, int], ...]
"""Of each partition of a replica: compute seconds of one thread, and the training examples that they were for."""
FINAL_STATES: frozenset[str] = frozenset({"ended", "failed", "stopped"})


def mean_loss(loss_sum: float, examples: int) -> float | None:
    """Returns the mean; None if there are no examples or it is not finite, which JSON cannot express."""
    return loss_sum / examples if examples and isfinite(loss_sum) else None


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation on a held-out split. `passes` (in JSON: `pass`): passes handed out by then, for example 0.25.

    `loss` is the mean over the split, None where it is not finite: the run has diverged. Of the split, `skipped`
    examples were damaged and left out of both. `metric_value` is that of the `metric`, by which results are compared;
    `top1` the same where this is top-1, else None. Earlier versions wrote `top1` alone.
    """

    passes: float = msgspec.field(name="pass")
    progress: float
    train_seconds: float
    split: str
    top1: float | None
    loss: float | None
    skipped: int = 0
    metric: str = TOP_1.name
    metric_value: float | None = None
    larger_is_better: bool = True

    @property
    def value(self) -> float | None:
        """The metric's value; None where it is not finite."""
        return value_of(self.metric, self.top1, self.metric_value)


class RoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run, for a table of roles."""

    role: str
    node: str
    state: str
    detail: str = ""


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a replica of several partitions.

    `flights`, `waiting_share` and `waits_for` are as its lead last told, None and empty before that.

    Attributes:
        host: its machine's name.
        flights: that are open.
        waiting_share: share of the compute threads' time with open flights in which they wait for other partitions, or
            for servers to answer pushes.
        waits_for, waits_for_share: whom it waits for most: a partition's number, or `servers`; and how much.
        slow: others wait for it most of the time.
    """

    partition: int
    node: str
    host: str
    state: str
    flights: int | None = None
    waiting_share: float | None = None
    waits_for: str = ""
    waits_for_share: float = 0.0
    slow: bool = False


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of several partitions: its members in the order of these, the lead first.

    Attributes:
        cut: of the model, in short; "" before the lead has told it.
        proposed: where one of them is slow, cuts with which all would take as long; "" if there are none.
    """

    replica: int
    group_epoch: int
    state: str
    members: tuple[MemberRow, ...]
    cut: str = ""
    proposed: str = ""


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch algorithm is (DistBelief 4.2).

    `iterations`, `loss`, `gradient_max`, `step` and `pairs_skipped` are what the program said with its last commit:
    None if it did not say.

    Attributes:
        algorithm: its name.
        iterations: accepted points after the first.
        evaluations: of the whole batch, those of a line search under way included.
        loss: with the L2 term; `gradient_max`: largest magnitude in its gradient.
        step: length of the latest displacement.
        bundles, bundles_total: done of the present evaluation, and all of it.
        pairs_skipped: displacements that were not kept, as curvature along them was not positive.
        restarts: how often the history was dropped.
        backups, backups_won: bundles that a second worker was given, and those that it did first.
        command_seconds, evaluation_seconds: in rounds and commits, and in evaluations.
        stop_reason: "" while it runs.
    """

    algorithm: str
    iterations: int | None = None
    evaluations: int = 0
    loss: float | None = None
    gradient_max: float | None = None
    step: float | None = None
    bundles: int = 0
    bundles_total: int = 0
    pairs_skipped: int | None = None
    restarts: int = 0
    backups: int = 0
    backups_won: int = 0
    command_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    stop_reason: str = ""


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The whole progress of a run.

    Attributes:
        state: see `State`; `ended`, `failed` and `stopped` are final.
        pass_number, pass_share: the pass being handed out, from 0, and the share of it that is processed.
        progress: share of the whole run's examples handed out, 0 to 1 (what learning-rate schedules follow).
        examples, examples_total: processed so far, counting one that was processed twice once; in the whole run.
        train_seconds: time during which at least one training range was with a worker; evaluation alone adds none.
        elapsed_seconds: since the coordinator began, waiting included.
        images_per_s, connections_per_s: over the training clock (connections x examples / s, Adam 4.3.1).
        updates, updates_per_s: parameter updates pushed.
        loss: mean training loss of the most recent ranges; None before the first report.
        top1, best_top1: latest and best evaluation; None before the first, and where top-1 is not the metric.
        staleness_p50, staleness_p99: in pushes of other workers; None before the first push.
        gradient_age_p50, gradient_age_p99: in pushes of everybody, the worker's own included, that were applied to a
            shard between the weights that a gradient was computed from and its own application.
        waiting_share: share of the compute threads' time spent waiting for data.
        eta_seconds: estimated training seconds left; None while there is nothing to estimate from.
        duplicates: examples processed twice because a worker was declared dead.
        skipped: training examples that were damaged and left out, in all passes (`data.on_error`).
        messages: what the run waits for and other messages, latest last.
        failure: the first cause, if the state is `failed`; the reason, if `stopped`.
        step_waits, step_wait_seconds: how often, and how long, replicas waited for others before a step.
        steps_ahead_max: the largest number of steps that a replica was seen ahead of the slowest other one; without a
            bound it is measured whenever a replica reports a range.
        train_top1: share of the training examples of the last reports that were classified correctly while training;
            None before the first, and where top-1 is not the metric.
        learning_rate: the present one, by its schedule.
        result: "Numbers programs read" of the interface, once the state is final.
        partitions: of each replica; `replicas` and `lobby` are empty where it is 1.
        computed: of all workers that are there, as they last told.
        replicas: the groups that hold one each; `lobby`: nodes that wait for a group, spares if none is missing.
        batch: of a batch algorithm, None under the rules of Downpour.
        metric, larger_is_better: what the model is judged by; `metric_value`, `best_metric_value`: in the latest and
            the best evaluation, None before the first.
    """

    state: str
    job: str
    passes_total: int
    pass_number: int = 0
    pass_share: float = 0.0
    progress: float = 0.0
    examples: int = 0
    examples_total: int = 0
    train_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    images_per_s: float = 0.0
    connections_per_s: float = 0.0
    updates: int = 0
    updates_per_s: float = 0.0
    loss: float | None = None
    evaluations: tuple[EvaluationResult, ...] = ()
    top1: float | None = None
    best_top1: float | None = None
    staleness_p50: int | None = None
    staleness_p99: int | None = None
    gradient_age_p50: int | None = None
    gradient_age_p99: int | None = None
    waiting_share: float = 0.0
    eta_seconds: float | None = None
    duplicates: int = 0
    skipped: int = 0
    roles: tuple[RoleRow, ...] = ()
    messages: tuple[str, ...] = ()
    failure: str = ""
    result: dict[str, Any] | None = None
    step_waits: int = 0
    step_wait_seconds: float = 0.0
    steps_ahead_max: int = 0
    train_top1: float | None = None
    learning_rate: float | None = None
    partitions: int = 1
    computed: Computed = ()
    replicas: tuple[ReplicaRow, ...] = ()
    lobby: tuple[str, ...] = ()
    batch: BatchProgress | None = None
    metric: str = TOP_1.name
    larger_is_better: bool = True
    metric_value: float | None = None
    best_metric_value: float | None = None

    @property
    def value(self) -> float | None:
        """The metric's latest value; coordinators of earlier versions tell `top1` alone."""
        return value_of(self.metric, self.top1, self.metric_value)

    @property
    def best_value(self) -> float | None:
        """Likewise the best."""
        return value_of(self.metric, self.best_top1, self.best_metric_value)

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES
