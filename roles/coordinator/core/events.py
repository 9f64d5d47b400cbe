"""What a run is, and what goes into its state machine; what comes out is in `instructions`.

A `token` is the shell's handle on a waiting request. Clock readings are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from adamctl.model.metric import TOP_1, Metric
from adamctl.model.partition.plan import PartitionPlan
from adamctl.roles.coordinator.core.batch_job import BatchJob, BatchSnapshot
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.wire.messages import GroupDropRequest, GroupWatchRequest, NextTaskRequest, RunStepRequest

# --- what a run is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPlan:
    """The part of an experiment that the core uses, and its deadlines.

    Attributes:
        connections: multiply-accumulates of one example's forward pass (Adam 4.3.1).
        silent_after_s: a worker that sends no request for this long is declared dead; one with a parked request is not.
            With replicas in step or bounded staleness, so is a worker that others wait for and that makes no step
            (later for slow models: `adamctl.roles.coordinator.core.hanging`).
        no_worker_s: a run fails after this long without any worker.
        tended: the program that started the coordinator also starts workers, so users need no advice to do so.
        finish_wait_s: at the end of the run, how long to wait for the next report of an outstanding range.
        last_checkpoint_s: how long to retry the last checkpoint when it cannot be written, since disk space may be
            freed.
        stop_wait_s: after a stop request, how long workers may take to report their ranges.
        in_step: replicas go in step, one update for all of them.
        max_staleness: steps that a replica may be ahead of the slowest; None: no bound.
        keep_best: a checkpoint follows every evaluation that is better than all before.
        patience: the run ends after this many evaluations in a row without improvement; None: never.
        gather_s: with replicas in step, how long the first one waits for the others to join.
        workers: replicas. Each is one worker, or a group of as many workers as the model has partitions.
        partitions: of the model; with one, every worker is a replica.
        plan_hash: of how the model is cut, "" if it is not known here.
        cuts: that plan.
        has_own_parameters: of the only replica, which are lost with it.
        group_ready_s: how long a new group may take until its lead asks for ranges: all compile, and reach each other.
        metric: what evaluations measure besides the loss, by which they are compared.
        unanswered_batches: for each thread of a worker, batches that are computed and whose range it does not report
            before servers have answered their gradients.
    """

    job: str
    passes: int
    batch: int
    range_batches: int
    pass_fraction: float
    warmstart_steps: int
    evaluate_every: float
    evaluate_on: str
    target: float | None
    checkpoint_every: float
    workers: int
    connections: int
    silent_after_s: float = 120.0
    no_worker_s: float = 60.0
    finish_wait_s: float = 60.0
    last_checkpoint_s: float = 300.0
    stop_wait_s: float = 5.0
    in_step: bool = False
    max_staleness: int | None = None
    gather_s: float = 30.0
    keep_best: bool = False
    patience: int | None = None
    tended: bool = False
    partitions: int = 1
    plan_hash: str = ""
    cuts: PartitionPlan | None = None
    has_own_parameters: bool = False
    group_ready_s: float = 600.0
    metric: Metric = TOP_1
    unanswered_batches: int = 0


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs to be resumed. `passes`: (pass, frontier, done intervals) of the passes with something left.

    `evaluation_due` is the mark, in passes, of an evaluation that was ordered and has no result yet. `evaluated`: the
    last of `evaluations` is of these parameters (or of slightly earlier ones, with several free-running replicas).
    `batch`: of a batch algorithm, whose passes are evaluations of the whole batch.
    """

    passes: list[tuple[int, int, list[tuple[int, int]]]]
    pass_examples: int
    examples: int = 0
    duplicates: int = 0
    skipped: int = 0
    steps: int = 0
    updates: int = 0
    train_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    staleness: list[int] = []
    gradient_ages: list[int] = []
    evaluations: list[EvaluationResult] = []
    evaluation_due: float | None = None
    checkpoint: int = 0
    evaluated: bool = False
    batch: BatchSnapshot | None = None


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """Servers and data are ready: the run may begin, or resume from a snapshot.

    `batch`: the program of a batch algorithm, whose batch has `train_examples`. The core reads it and never changes it.
    """

    train_examples: int
    evaluation_examples: int
    snapshot: RunSnapshot | None = None
    batch: BatchJob | None = None


@dataclass(frozen=True, slots=True)
class Renamed:
    """Another run took the job's name before it was created, so the job is called `job` from now on."""

    job: str


@dataclass(frozen=True, slots=True)
class WorkerJoins:
    token: int
    node: str
    incarnation: int
    threads: int
    host: str = ""
    addresses: tuple[str, ...] = ()
    wait_s: float = 0.0
    plan_hash: str = ""
    implementation: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupWatched:
    """A member of a group waits for news of it."""

    token: int
    request: GroupWatchRequest


@dataclass(frozen=True, slots=True)
class GroupDropWanted:
    """A member of a group wants it dissolved."""

    token: int
    request: GroupDropRequest


@dataclass(frozen=True, slots=True)
class TasksWanted:
    token: int
    request: NextTaskRequest


@dataclass(frozen=True, slots=True)
class StepWanted:
    """A replica reports how far it is, and may ask when it may begin its next step."""

    token: int
    request: RunStepRequest


@dataclass(frozen=True, slots=True)
class BatchMoved:
    """A batch algorithm has begun or finished a commit, or has stopped."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker disconnected without leaving, or its node key is gone."""

    node: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Something that the run needs is lost; `cause` is the first cause."""

    cause: str


@dataclass(frozen=True, slots=True)
class StopWanted:
    reason: str
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """A client wants a checkpoint of the run's present state, and an answer when it is finished."""

    token: int


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    number: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    number: int
    cause: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The time `RunState.wakeup_s` has come."""


Event: TypeAlias = (
    Ready
    | Renamed
    | WorkerJoins
    | TasksWanted
    | StepWanted
    | GroupWatched
    | GroupDropWanted
    | BatchMoved
    | WorkerLost
    | Failed
    | StopWanted
    | CheckpointWanted
    | CheckpointWritten
    | CheckpointFailed
    | Tick
)
