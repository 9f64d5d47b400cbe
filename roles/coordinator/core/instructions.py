"""What the coordinator's cores tell their shells to do: those of a run (`run_core`), and of its servers (`losses`).

A `token` is the shell's handle on a waiting request; it comes back in exactly one `Answer`, `AnswerStep`, `Admit`,
`TakeSeat`, `KeepInLobby`, `AnswerWatch`, `Confirm`, `Saved` or `Refuse`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adamctl.config.records import NodeRecord
from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import GroupMember, GroupWatchReply, NextTaskReply, RunStepReply


class Instruction:
    """Something for a shell to do."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Say(Instruction):
    """A message for users."""

    text: str


# --- of a run -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit(Instruction):
    """The worker takes part, as this replica."""

    token: int
    replica: int


@dataclass(frozen=True, slots=True)
class TakeSeat(Instruction):
    """The worker holds this partition of this replica; `members` stand in the order of their partitions."""

    token: int
    replica: int
    group_epoch: int
    partition: int
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class KeepInLobby(Instruction):
    """The worker has no group yet, for the reason given; it may ask again."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerWatch(Instruction):
    token: int
    reply: GroupWatchReply


@dataclass(frozen=True, slots=True)
class Confirm(Instruction):
    """What was asked for is done."""

    token: int


@dataclass(frozen=True, slots=True)
class LeaveBatch(Instruction):
    """A worker is gone: its bundles of a batch algorithm are anybody's."""

    worker: WorkerKey


@dataclass(frozen=True, slots=True)
class Answer(Instruction):
    token: int
    reply: NextTaskReply


@dataclass(frozen=True, slots=True)
class AnswerStep(Instruction):
    token: int
    reply: RunStepReply


@dataclass(frozen=True, slots=True)
class Refuse(Instruction):
    token: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class WriteCheckpoint(Instruction):
    """Have every server write its part, then a manifest with `snapshot`; answer with one of the two events."""

    number: int
    snapshot: RunSnapshot


@dataclass(frozen=True, slots=True)
class Saved(Instruction):
    """The checkpoint that was wanted is finished."""

    token: int
    number: int


@dataclass(frozen=True, slots=True)
class Evaluated(Instruction):
    result: EvaluationResult


@dataclass(frozen=True, slots=True)
class Finished(Instruction):
    """The run is over: `ended`, `failed` or `stopped`; all requests are answered with that."""

    state: str
    cause: str


# --- of its servers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailRun(Instruction):
    cause: str


@dataclass(frozen=True, slots=True)
class LoseWorker(Instruction):
    """Step the run with `WorkerLost`: this process was none of its servers, so it may be one of its workers."""

    node: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class WatchServer(Instruction):
    """Keep a connection to this process; report its end with `ServerLost`."""

    server: NodeRecord


@dataclass(frozen=True, slots=True)
class ReadKeys(Instruction):
    """Read the keys of these nodes once; answer with `KeysRead`."""

    wait: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttachAgain(Instruction):
    """Have the run's own client attach to the servers within the given time; answer with `Attached`."""

    node: str
    deadline_s: float


# --- gathered in one step -------------------------------------------------------------------------------------------


class Outbox:
    """Gathers the instructions of one step in the order in which the shell carries them out."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []

    def __len__(self) -> int:
        return len(self._instructions)

    def put(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def extend(self, instructions: Iterable[Instruction]) -> None:
        self._instructions.extend(instructions)

    def answer(self, token: int, reply: NextTaskReply) -> None:
        self.put(Answer(token, reply))

    def refuse(self, token: int, code: int, message: str) -> None:
        self.put(Refuse(token, code, message))

    def say(self, text: str) -> None:
        self.put(Say(text))

    def take(self) -> list[Instruction]:
        """Returns everything gathered so far, and forgets it."""
        taken, self._instructions = self._instructions, []
        return taken
