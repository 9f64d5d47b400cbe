"""Typed headers of the coordinator: joining a run, tasks and reports, progress."""

from __future__ import annotations

from typing import Any

from adamctl.wire.messages.common import Count, Message


class RunJoinRequest(Message, frozen=True):
    """A worker offers itself.

    Where a replica has several partitions, the worker says where they reach it: `host` is equal for processes of one
    machine, `addresses` are those of its record. It waits in the lobby for up to `wait_s`. `plan_hash`: of the
    partition plan that it knows from before, "" if it knows none. `implementation`: what decides the last bits of its
    gradients (`adamctl.kernels.implementation`), told to runs of a batch algorithm.
    """

    node: str
    incarnation: int
    threads: int
    host: str = ""
    addresses: tuple[str, ...] = ()
    wait_s: float = 0.0
    plan_hash: str = ""
    implementation: dict[str, str] = {}


class RunJoinReply(Message, frozen=True):
    """Body: MessagePack of `adamctl.roles.coordinator.client.JoinBody`: experiment, data servers, the group's members.

    With `partitions` above 1, `group_epoch` above 0 says that the worker holds `partition` of the replica. If it is 0,
    the worker has no group yet: `lobby` says why, and the worker asks again. `plan_hash`: of the run's partition plan,
    "" if the run has none.
    """

    job: str
    layout_hash: str
    servers_expected: int
    replica: int
    dataset: str
    classes: int
    partitions: int = 1
    group_epoch: int = 0
    partition: int = 0
    plan_hash: str = ""
    lobby: str = ""


class GroupMember(Message, frozen=True):
    """One process of a group; members stand in the order of their partitions. `host`, `addresses`: as it has told."""

    node: str
    incarnation: int
    host: str
    addresses: tuple[str, ...]


class GroupWatchRequest(Message, frozen=True):
    """A member of a group waits for news of it; answered when there is any or after `wait_s`. Its sign of life.

    `plan_hash`: of the partition plan that the member has derived, "" as long as it has none. `state`: what it does, in
    a word, for people. `leaving`: the member leaves, so its group is dissolved.
    """

    node: str
    incarnation: int
    group_epoch: int
    wait_s: float
    plan_hash: str = ""
    state: str = ""
    leaving: bool = False


class GroupWatchReply(Message, frozen=True):
    """`cause` says why, with partition and node.

    `state`: `alive`, no news; `dissolved`, join again, which counts against nobody; `dropped`, the group is dissolved
    because of this member, which may join again; `ended`, the run is over.
    """

    state: str
    cause: str = ""


class GroupDropRequest(Message, frozen=True):
    """A member wants its group dissolved, and partition number `partition` dropped as the cause of it; -1: nobody.

    `fault`: `unreachable`, the two have not found each other since the group was formed; `unfit`, the sender itself
    derives another plan or layout than the run; "" for everything else.
    """

    node: str
    incarnation: int
    group_epoch: int
    partition: int
    cause: str
    fault: str = ""


class TrainTask(Message, frozen=True):
    """Examples [start, stop) of a pass. `progress` is the share of the whole run done at `start`, for schedules.

    `step` above 0, if replicas go in step: the batches of this task are part number `part` of this step and the
    following ones. `batches` gives the number of batches of each part, in order of the parts, never rising: step
    number step + i has as many parts as there are numbers above i.
    """

    id: int
    pass_number: int
    start: int
    stop: int
    progress_start: float
    progress_stop: float
    step: int = 0
    part: int = 0
    batches: tuple[int, ...] = ()


class EvaluateTask(Message, frozen=True):
    """Examples [start, stop) of a split, with parameters pulled after this task was received, once per `evaluation`."""

    id: int
    evaluation: int
    split: str
    start: int
    stop: int


class TaskReport(Message, frozen=True):
    """A worker's report of one finished task. Sums, not means; `wait_s` is the time that compute waited for data.

    `skipped`: further examples of the task, which are damaged and were left out. `sums`: of an evaluation, what the
    loss adds up for its metric.
    """

    id: int
    examples: Count
    loss_sum: float
    correct: Count
    steps: Count = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    skipped: Count = 0
    sums: tuple[float, ...] = ()


class NextTaskRequest(Message, frozen=True):
    """Reports finished tasks and asks for up to `wanted` more; answered when there is news or after `wait_s`.

    `staleness` counts pushes by staleness (index = staleness, last = that or more) since the last request, `updates`
    the parameter updates they carried; `gradient_ages` counts them by age. `leaving`: the worker leaves; its unreported
    tasks go to others. `group_epoch`: of the group whose lead asks, 0 where replicas have one partition.
    """

    node: str
    incarnation: int
    reports: tuple[TaskReport, ...]
    wanted: int
    wait_s: float
    updates: Count = 0
    staleness: tuple[Count, ...] = ()
    status: dict[str, Any] = {}
    leaving: bool = False
    gradient_ages: tuple[Count, ...] = ()
    group_epoch: int = 0


class NextTaskReply(Message, frozen=True):
    """`drain`: finish and report present tasks, push everything accrued. `ended`: the run is over, detach."""

    train: tuple[TrainTask, ...] = ()
    evaluate: tuple[EvaluateTask, ...] = ()
    drain: bool = False
    ended: bool = False
    reason: str = ""


class RunStepRequest(Message, frozen=True):
    """A replica reports how many steps it has done, and, with `wait_s`, waits until it may start step `wanted`.

    `group_epoch`: as in `NextTaskRequest`.
    """

    node: str
    incarnation: int
    done: int
    wanted: int = 0
    wait_s: float = 0.0
    group_epoch: int = 0


class RunStepReply(Message, frozen=True):
    """`limit`: the highest step that the replica may start now; below `wanted` if `wait_s` ran out."""

    limit: int


class RunStatusRequest(Message, frozen=True):
    """Answered at once, or, with `wait_s`, when the run's state changes."""

    after_state: str = ""
    wait_s: float = 0.0


class RunStatusReply(Message, frozen=True):
    """Body: JSON object, the run's progress as in `adamctl.roles.coordinator.client.RunProgress`."""

    state: str


class RunCheckpointRequest(Message, frozen=True):
    """Writes a checkpoint now, while training continues; answered when it is finished."""


class RunCheckpointReply(Message, frozen=True):
    """`folder` is its path on the coordinator's machine."""

    number: int
    folder: str


class RunStopRequest(Message, frozen=True):
    """Ends the run early, with a last checkpoint if training had begun and `checkpoint` is set."""

    reason: str
    checkpoint: bool = True
