"""What goes into the coordinator's state machine and what comes out of it.

A `token` is the shell's handle on a waiting request; it comes back in exactly one `Answer`, `AnswerStep`, `Admit` or
`Refuse`.
Clock readings are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.wire.messages import NextTaskReply, NextTaskRequest, RunStepReply, RunStepRequest

# --- what a run is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPlan:
    """The part of an experiment that the core goes by, and its deadlines.

    Attributes:
        connections: multiply-accumulates of one example's forward pass (Adam 4.3.1).
        silent_after_s: a worker without a request for this long is taken for dead; a parked request counts as alive.
            Where replicas go in step or have a bound, also one that others wait for and that makes no step (longer for
            slow models: `adamctl.roles.coordinator.core.hanging`).
        no_worker_s: a run without any worker for this long has failed.
        tended: whoever started the coordinator starts workers, too: nobody else has to be told to.
        finish_wait_s: at the end of the run, how long to wait for the next report of what is still out.
        last_checkpoint_s: how long the last checkpoint is tried again when it cannot be written: a disk may get room.
        stop_wait_s: after a stop request, how long workers may take to report what they have.
        in_step: replicas go in step, one update for all of them.
        max_staleness: steps that a replica may be ahead of the slowest; None for any number.
        keep_best: every evaluation that is better than all before is followed by a checkpoint.
        patience: evaluations in a row that are not better than the best before, after which the run ends; None: never.
        gather_s: where replicas go in step, how long the first one waits for all that are asked for to join.
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


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs to go on later. `passes`: (pass, frontier, done intervals) of those with something left.

    `evaluation_due` is the mark, in passes, of an evaluation that was ordered and has no result yet. `evaluated`: the
    last of `evaluations` is of these parameters (of a moment before where several replicas run free).
    """

    passes: list[tuple[int, int, list[tuple[int, int]]]]
    pass_examples: int
    examples: int = 0
    duplicates: int = 0
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


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """Servers and data are there: the run may begin, or go on from a snapshot."""

    train_examples: int
    evaluation_examples: int
    snapshot: RunSnapshot | None = None


@dataclass(frozen=True, slots=True)
class Renamed:
    """Another run took the job's name before it was created: it is called `job` from now on."""

    job: str


@dataclass(frozen=True, slots=True)
class WorkerJoins:
    token: int
    node: str
    incarnation: int
    threads: int


@dataclass(frozen=True, slots=True)
class TasksWanted:
    token: int
    request: NextTaskRequest


@dataclass(frozen=True, slots=True)
class StepWanted:
    """A replica tells how far it is, and may want to know when it may begin its next step."""

    token: int
    request: RunStepRequest


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """It disconnected without saying so, or its node key is gone."""

    node: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Something the run cannot do without is lost; `cause` is the first one."""

    cause: str


@dataclass(frozen=True, slots=True)
class StopWanted:
    reason: str
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """Somebody wants a checkpoint of how the run stands now, and to be told when it is finished."""

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
    """Nothing happened, but `RunCore.wakeup_s` has come."""


Event: TypeAlias = (
    Ready
    | Renamed
    | WorkerJoins
    | TasksWanted
    | StepWanted
    | WorkerLost
    | Failed
    | StopWanted
    | CheckpointWanted
    | CheckpointWritten
    | CheckpointFailed
    | Tick
)

# --- instructions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """The worker takes part, as this replica."""

    token: int
    replica: int


@dataclass(frozen=True, slots=True)
class Answer:
    token: int
    reply: NextTaskReply


@dataclass(frozen=True, slots=True)
class AnswerStep:
    token: int
    reply: RunStepReply


@dataclass(frozen=True, slots=True)
class Refuse:
    token: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Have every server write its part, then a manifest with `snapshot`; answer with one of the two events."""

    number: int
    snapshot: RunSnapshot


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint that was wanted is finished."""

    token: int
    number: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    result: EvaluationResult


@dataclass(frozen=True, slots=True)
class Say:
    """News for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over: `ended`, `failed` or `stopped`; everybody who asks is told so."""

    state: str
    cause: str


Instruction: TypeAlias = Admit | Answer | AnswerStep | Refuse | WriteCheckpoint | Saved | Evaluated | Say | Finished
