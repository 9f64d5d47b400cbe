"""What a parameter server's core tells its shell to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.shard import Batch, Image, Values
from adamctl.wire.messages import AttachReply, PullReply, PushReply


class Instruction:
    """Something for the shell to do; instructions about copies are in `replication/core/instructions.py`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Apply(Instruction):
    """Hand batches of one job to an apply thread; call `ServerCore.completed` afterwards."""

    job: Job
    thread: int
    batches: list[Batch]


@dataclass(frozen=True, slots=True)
class AnswerAttach(Instruction):
    """Answer an attach. `known`: (shard, last number) of shards that remember the client."""

    token: Token
    message: AttachReply
    known: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AnswerPush(Instruction):
    """Answer a push. `queued`: its body was kept and is no longer needed."""

    token: Token
    message: PushReply
    queued: bool


@dataclass(frozen=True, slots=True)
class Keep(Instruction):
    """Keep the request's body until its answer."""

    token: Token


@dataclass(frozen=True, slots=True)
class Free(Instruction):
    """Free the request's body, although its answer is still to come."""

    token: Token


@dataclass(frozen=True, slots=True)
class AnswerPull(Instruction):
    """Send the arrays after the header; call `Values.release` of each when sent or when the connection is lost.

    They are sent as `dtype`; rounding makes a copy, so then they may be released before it is sent.
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
    """Read the job's keys again: a client knows a newer epoch than this server."""

    job: str


@dataclass(frozen=True, slots=True)
class GiveImage(Instruction):
    """Call `take` with the image that was asked for while a batch was in progress."""

    take: Callable[[Image], None]
    image: Image


@dataclass(frozen=True, slots=True)
class Recover(Instruction):
    """End this process and write nothing more: memory is damaged, the store's log is not. `why`: an error text."""

    why: str
