"""How workers and front ends talk to the coordinator of a run.

A worker joins, then requests tasks before it needs them and reports finished ones in the same message. A front end
reads `RunProgress`, at once or when the run's state changes, and may stop the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from adamctl.config.experiment import Experiment
from adamctl.config.neighbours import experiment_for_neighbours
from adamctl.errors import DamagedDataError, RemoteError, UnreachableError
from adamctl.model.custom.registry import source_hashes
from adamctl.net.transport import Connection, Reply, Transport
from adamctl.roles.coordinator.core.progress import EvaluationResult, RoleRow, RunProgress
from adamctl.wire.messages import (
    GroupDropRequest,
    GroupMember,
    GroupWatchReply,
    GroupWatchRequest,
    Hello,
    NextBundlesReply,
    NextBundlesRequest,
    NextTaskReply,
    NextTaskRequest,
    RunCheckpointReply,
    RunCheckpointRequest,
    RunJoinReply,
    RunJoinRequest,
    RunStatusRequest,
    RunStepReply,
    RunStepRequest,
    RunStopRequest,
    TaskReport,
)
from adamctl.wire.unreadable import UNREADABLE

__all__ = [
    "CoordinatorClient",
    "EvaluationResult",
    "JoinBody",
    "Joined",
    "RoleRow",
    "RunProgress",
    "encode_join_body",
]

REPLY_MARGIN_S = 10.0  # how much longer than its wait_s a long poll may take


@dataclass(frozen=True)
class Joined:
    """What a worker knows after joining: the reply, the resolved experiment, and the names of the data servers.

    `members`: of its group, in the order of partitions; empty where replicas have one partition, and in the lobby.
    `sources`: path -> hash of the module, of layers of the user's own, as the coordinator has them.
    """

    reply: RunJoinReply
    experiment: Experiment
    data_servers: tuple[str, ...]
    members: tuple[GroupMember, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_lobby(self) -> bool:
        """Whether the worker has no group yet, and is to ask again."""
        return self.reply.partitions > 1 and not self.reply.group_epoch


class JoinBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a `RunJoinReply`: what may be too large for a typed header. Fields are only ever appended.

    Keys of the experiment that the version before does not know are left out where they have their defaults.
    """

    experiment: Experiment
    data_servers: tuple[str, ...]
    members: tuple[GroupMember, ...] = ()
    sources: dict[str, str] = {}


def encode_join_body(experiment: Experiment, data_servers: Sequence[str], members: Sequence[GroupMember] = ()) -> bytes:
    sources = source_hashes(experiment.model)
    plain = experiment_for_neighbours(msgspec.to_builtins(experiment))
    return msgspec.msgpack.encode((plain, tuple(data_servers), tuple(members), sources))


class CoordinatorClient:
    """One connection to a coordinator. Calls may run concurrently; a long poll does not block the others.

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
            UnreachableError: none does; the message gives the reason for each.
        """
        reasons: list[str] = []
        for address in addresses:
            try:
                connected = await transport.connect(address, hello, deadline_s=deadline_s, expects=("coordinator", ""))
                return cls(connected)
            except UnreachableError as error:
                reasons.append(f"{address}: {error}")
        raise UnreachableError(f"no address of the coordinator answered: {'; '.join(reasons) or 'none is known'}")

    async def join(
        self,
        node: str,
        incarnation: int,
        threads: int,
        *,
        host: str = "",
        addresses: Sequence[str] = (),
        wait_s: float = 0.0,
        plan_hash: str = "",
        implementation: Mapping[str, str] | None = None,
        deadline_s: float = 10.0,
    ) -> Joined:
        """Offers a worker to the run.

        Where replicas have several partitions, the worker waits in the lobby for others, for up to `wait_s`, which
        should be a few seconds at least. If it is still `in_lobby` afterwards, it asks again at once. As soon as it has
        a group it has to `watch` it.

        Args:
            host, addresses: where other members of its group reach it, as in its own record.
            plan_hash: of the partition plan that it has derived before, if it has.
            implementation: see `RunJoinRequest`.

        Raises:
            RemoteError: OVER_QUOTA, the run has all the workers it asked for; RUN_ENDED; NOT_READY, try again;
                PLAN_MISMATCH, BAD_CONFIGURATION, the run cannot use this worker; IMPLEMENTATION_MISMATCH, nor as long
                as others are in it.
        """
        request = RunJoinRequest(
            node, incarnation, threads, host, tuple(addresses), wait_s, plan_hash, dict(implementation or {})
        )
        reply = await self.connection.request(request, deadline_s=wait_s + deadline_s)
        message = reply.message
        assert isinstance(message, RunJoinReply)
        try:
            body = msgspec.msgpack.decode(_take_body(reply), type=JoinBody)
        except UNREADABLE as error:
            raise DamagedDataError(
                f"the coordinator of {message.job} sent an experiment that cannot be parsed: {error}"
            ) from error
        return Joined(message, body.experiment, body.data_servers, body.members, body.sources)

    async def next_tasks(self, request: NextTaskRequest) -> NextTaskReply:
        """Reports finished tasks and requests up to `request.wanted` more.

        Answered as soon as there is a task, a drain or the end of the run; empty after `request.wait_s` without any.

        Raises:
            RemoteError: STALE_INCARNATION, the coordinator took this worker for dead; join again.
        """
        reply = await self.connection.request(request, deadline_s=request.wait_s + REPLY_MARGIN_S)
        _take_body(reply)
        assert isinstance(reply.message, NextTaskReply)
        return reply.message

    async def next_bundles(self, request: NextBundlesRequest) -> NextBundlesReply:
        """Reports bundles of a batch algorithm and requests up to `request.wanted` more.

        Answered as soon as there are any, or news, or the end of the run; empty after `request.wait_s` without any.

        Raises:
            RemoteError: STALE_INCARNATION, the coordinator took this worker for dead; join again.
        """
        reply = await self.connection.request(request, deadline_s=request.wait_s + REPLY_MARGIN_S)
        assert isinstance(reply.message, NextBundlesReply)
        return reply.message

    async def step(self, request: RunStepRequest) -> int:
        """Reports how far a replica is. Returns the last step it may begin, once that is `wanted` or `wait_s` is over.

        Raises:
            RemoteError: STALE_INCARNATION, the coordinator took this worker for dead; join again.
        """
        reply = await self.connection.request(request, deadline_s=request.wait_s + REPLY_MARGIN_S)
        assert isinstance(reply.message, RunStepReply)
        return reply.message.limit

    async def watch(self, request: GroupWatchRequest) -> GroupWatchReply:
        """Waits up to `request.wait_s` for news of a member's group: `dissolved`, `dropped`, `ended`, else `alive`.

        A member always keeps one such request waiting; it is its sign of life.

        Raises:
            RemoteError: STALE_GROUP, the group is not known any more, join again; PLAN_MISMATCH, the run cannot use a
                worker with this plan.
        """
        reply = await self.connection.request(request, deadline_s=request.wait_s + REPLY_MARGIN_S)
        assert isinstance(reply.message, GroupWatchReply)
        return reply.message

    async def drop(
        self, node: str, incarnation: int, group_epoch: int, partition: int, cause: str, fault: str = "",
        *, deadline_s: float = 10.0,
    ) -> None:  # fmt: skip
        """Has a member's group dissolved, and `partition` dropped as the cause of it; -1: nobody is.

        `fault` as in `GroupDropRequest`.

        Raises:
            RemoteError: STALE_GROUP, the group is dissolved already; RUN_ENDED.
        """
        request = GroupDropRequest(node, incarnation, group_epoch, partition, cause, fault)
        _take_body(await self.connection.request(request, deadline_s=deadline_s))

    async def leave(
        self, node: str, incarnation: int, reports: Sequence[TaskReport] = (), *, group_epoch: int = 0
    ) -> None:
        """Reports what is done and gives the rest back, so that others can have it at once.

        The lead of a group leaves so, too; other members leave by a `watch` with `leaving`.
        """
        request = NextTaskRequest(
            node, incarnation, tuple(reports), wanted=0, wait_s=0.0, leaving=True, group_epoch=group_epoch
        )
        await self.next_tasks(request)

    async def status(self, after_state: str = "", wait_s: float = 0.0) -> RunProgress:
        """Returns the run's progress: at once, or when its state is not `after_state`, or after `wait_s`."""
        request = RunStatusRequest(after_state, wait_s)
        reply = await self.connection.request(request, deadline_s=wait_s + REPLY_MARGIN_S)
        return msgspec.json.decode(_take_body(reply), type=RunProgress)

    async def stop(self, reason: str, checkpoint: bool = True, *, deadline_s: float = 10.0) -> None:
        """Asks the run to end early; returns when the coordinator has noted it. Poll `status` for the end."""
        try:
            _take_body(await self.connection.request(RunStopRequest(reason, checkpoint), deadline_s=deadline_s))
        except RemoteError as error:
            raise RemoteError(error.code, f"the run cannot be stopped: {error}", error.details) from error

    async def checkpoint(self, *, deadline_s: float = 600.0) -> tuple[int, str]:
        """Has the run write a checkpoint now; returns its number, and its folder as seen on the coordinator's machine.

        Raises:
            RemoteError: the checkpoint could not be written, or the run is over or still starting.
        """
        reply = await self.connection.request(RunCheckpointRequest(), deadline_s=deadline_s)
        assert isinstance(reply.message, RunCheckpointReply)
        return reply.message.number, reply.message.folder

    @property
    def closed(self) -> bool:
        return self.connection.closed

    async def close(self) -> None:
        await self.connection.close()


def _take_body(reply: Reply) -> bytes:
    """Copies a small body and releases its buffer."""
    try:
        return bytes(reply.body)
    finally:
        if len(reply.body):
            reply.release()
