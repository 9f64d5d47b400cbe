"""How workers and front ends speak to the coordinator of a run.

A worker joins, then asks for tasks ahead of need and reports finished ones in the same message. A front end
reads `RunProgress`, at once or when the run's state changes, and may stop the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from adamctl.config.experiment import Experiment
from adamctl.errors import DamagedDataError, RemoteError, UnreachableError
from adamctl.net.transport import Connection, Reply, Transport
from adamctl.wire.messages import (
    Hello,
    NextTaskReply,
    NextTaskRequest,
    RunJoinReply,
    RunJoinRequest,
    RunStatusRequest,
    RunStopRequest,
    TaskReport,
)

State: TypeAlias = Literal[
    "starting", "warmstart", "training", "evaluating", "finishing", "ended", "failed", "stopped"
]
FINAL_STATES: frozenset[str] = frozenset({"ended", "failed", "stopped"})
REPLY_MARGIN_S = 10.0  # how much longer than its wait_s a long poll may take


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a held-out split. `passes` (in JSON: `pass`): how many passes had been handed out, e.g. 0.25."""

    passes: float = msgspec.field(name="pass")
    progress: float
    train_seconds: float
    split: str
    top1: float
    loss: float


class RoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run, for a table of roles."""

    role: str
    node: str
    state: str
    detail: str = ""


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is doing, whole.

    Attributes:
        state: see `State`; `ended`, `failed` and `stopped` are final.
        pass_number, pass_share: the pass being handed out, from 0, and the share of it that is processed.
        progress: share of the whole run's examples handed out, 0 to 1 (what learning-rate schedules follow).
        examples, examples_total: processed so far, one processed twice counting once; in the whole run.
        train_seconds: time that at least one training range was with a worker; evaluation alone adds none.
        elapsed_seconds: since the coordinator began, waiting included.
        images_per_s, connections_per_s: over the training clock (connections x examples / s, Adam 4.3.1).
        updates, updates_per_s: parameter updates pushed.
        loss: mean training loss of the most recent ranges; None before the first report.
        top1, best_top1: latest and best evaluation; None before the first.
        staleness_p50, staleness_p99: in pushes of others; None before the first push.
        waiting_share: share of compute threads' time that went into waiting for data.
        eta_seconds: estimate of the training seconds left; None while there is nothing to estimate from.
        duplicates: examples processed twice because a worker was taken for dead.
        messages: whom the run waits for and other news, latest last.
        failure: the first cause, if the state is `failed`; the reason, if `stopped`.
        result: "Numbers programs read" of the interface, once the state is final.
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
    waiting_share: float = 0.0
    eta_seconds: float | None = None
    duplicates: int = 0
    roles: tuple[RoleRow, ...] = ()
    messages: tuple[str, ...] = ()
    failure: str = ""
    result: dict[str, Any] | None = None

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class Joined:
    """What a worker knows after joining: the reply, the resolved experiment, the names of the data servers."""

    reply: RunJoinReply
    experiment: Experiment
    data_servers: tuple[str, ...]


class JoinBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a `RunJoinReply`: what may grow beyond a typed header. Fields are only ever appended."""

    experiment: Experiment
    data_servers: tuple[str, ...]


def encode_join_body(experiment: Experiment, data_servers: Sequence[str]) -> bytes:
    return msgspec.msgpack.encode(JoinBody(experiment, tuple(data_servers)))


class CoordinatorClient:
    """One connection to a coordinator. Calls may run side by side; a long poll holds up nothing else.

    Every call raises UnreachableError or DeadlineError if the coordinator is gone, RemoteError if it refuses.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    async def connect(
        cls, transport: Transport, addresses: Sequence[str], hello: Hello, *, deadline_s: float = 5.0
    ) -> CoordinatorClient:
        """Connects to the first address that answers.

        Raises:
            UnreachableError: none does; the message lists each with its reason.
        """
        reasons: list[str] = []
        for address in addresses:
            try:
                return cls(await transport.connect(address, hello, deadline_s=deadline_s))
            except UnreachableError as error:
                reasons.append(f"{address}: {error}")
        raise UnreachableError(
            f"no address of the coordinator answered: {'; '.join(reasons) or 'none is known'}"
        )

    async def join(self, node: str, incarnation: int, threads: int, *, deadline_s: float = 10.0) -> Joined:
        """Offers a worker to the run.

        Raises:
            RemoteError: OVER_QUOTA, the run has the workers it asked for; RUN_ENDED; NOT_READY, try again.
        """
        reply = await self.connection.request(
            RunJoinRequest(node, incarnation, threads), deadline_s=deadline_s
        )
        message = reply.message
        assert isinstance(message, RunJoinReply)
        try:
            body = msgspec.msgpack.decode(_take_body(reply), type=JoinBody)
        except msgspec.DecodeError as error:
            raise DamagedDataError(
                f"the coordinator of {message.job} sent an experiment that does not parse: {error}"
            ) from error
        return Joined(message, body.experiment, body.data_servers)

    async def next_tasks(self, request: NextTaskRequest) -> NextTaskReply:
        """Reports finished tasks and asks for up to `request.wanted` further ones.

        Answered the moment there is a task, a drain or the end; after `request.wait_s` at the latest, then empty.

        Raises:
            RemoteError: STALE_INCARNATION, the coordinator took this worker for dead; join again.
        """
        reply = await self.connection.request(request, deadline_s=request.wait_s + REPLY_MARGIN_S)
        _take_body(reply)
        assert isinstance(reply.message, NextTaskReply)
        return reply.message

    async def leave(self, node: str, incarnation: int, reports: Sequence[TaskReport] = ()) -> None:
        """Reports what is done and gives the rest back; others get it at once."""
        await self.next_tasks(
            NextTaskRequest(node, incarnation, tuple(reports), wanted=0, wait_s=0.0, leaving=True)
        )

    async def status(self, after_state: str = "", wait_s: float = 0.0) -> RunProgress:
        """Returns the run's progress: at once, or when its state is not `after_state` or `wait_s` has passed."""
        request = RunStatusRequest(after_state, wait_s)
        reply = await self.connection.request(request, deadline_s=wait_s + REPLY_MARGIN_S)
        return msgspec.json.decode(_take_body(reply), type=RunProgress)

    async def stop(self, reason: str, checkpoint: bool = True, *, deadline_s: float = 10.0) -> None:
        """Asks the run to end early; returns when the coordinator has taken note. Poll `status` for its end."""
        try:
            _take_body(
                await self.connection.request(RunStopRequest(reason, checkpoint), deadline_s=deadline_s)
            )
        except RemoteError as error:
            raise RemoteError(error.code, f"the run cannot be stopped: {error}", error.details) from error

    @property
    def closed(self) -> bool:
        return self.connection.closed

    async def close(self) -> None:
        await self.connection.close()


def _take_body(reply: Reply) -> bytes:
    """Copies a small body and gives its buffer back."""
    try:
        return bytes(reply.body)
    finally:
        if len(reply.body):
            reply.release()
