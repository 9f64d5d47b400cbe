"""What the core of a parameter server tells its shell to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adamctl.roles.ps.core.exactly_once import MemoryRecord
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.shard import Batch, State, Values
from adamctl.wire.messages import AttachReply, PullReply, PushReply


class Instruction:
    """Something for the shell to do; what is to be done about copies is in `replication/core/instructions.py`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Apply(Instruction):
    """Hand batches of one job to an apply thread; `ServerCore.completed` afterwards."""

    job: Job
    thread: int
    batches: list[Batch]


@dataclass(frozen=True, slots=True)
class AnswerAttach(Instruction):
    """`known`: (shard, last number) where the client's numbers are already remembered."""

    token: Token
    message: AttachReply
    known: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AnswerPush(Instruction):
    """Answer; the body is no longer needed if it was ever queued (`queued`)."""

    token: Token
    message: PushReply
    queued: bool


@dataclass(frozen=True, slots=True)
class Keep(Instruction):
    """The request's body is needed until its answer."""

    token: Token


@dataclass(frozen=True, slots=True)
class Free(Instruction):
    """The request's body is no longer needed, though its answer is still to come."""

    token: Token


@dataclass(frozen=True, slots=True)
class AnswerPull(Instruction):
    """Send the arrays after the header; `Values.release` of each when they are sent or the connection is gone.

    They go as `dtype`; what was rounded for that is a copy, so they may be released before it is sent.
    """

    token: Token
    message: PullReply
    values: list[Values]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Refuse(Instruction):
    """Answer the whole request with an error."""

    token: Token
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Refresh(Instruction):
    """Read the job's keys again: somebody knows a newer epoch than we do."""

    job: str


@dataclass(frozen=True, slots=True)
class Image(Instruction):
    """A shard at one version, held: `release` both when they are written.

    `shard`: a `Shard`, or the `HeldShard` of a copy.
    """

    token: Token
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


@dataclass(frozen=True, slots=True)
class Recover(Instruction):
    """End this process and write nothing more: memory is damaged, the store's log is not. `why`: for people."""

    why: str
