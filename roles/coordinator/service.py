"""Feeds requests and clock readings to the run's core and carries out its instructions, all on the event loop.

A parked request needs no task and no timer: the core answers it in the step that brings work, and one timer per run
wakes the core for deadlines.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from adamctl.config.experiment import Experiment
from adamctl.config.schedule import learning_rate
from adamctl.net.transport import Request
from adamctl.roles.coordinator.batch_service import BatchService
from adamctl.roles.coordinator.checkpoint.manifest import checkpoint_folder
from adamctl.roles.coordinator.checkpoint.serving import ServedCheckpoint
from adamctl.roles.coordinator.client import encode_join_body
from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import (
    Admit,
    Answer,
    AnswerStep,
    AnswerWatch,
    Confirm,
    Evaluated,
    Finished,
    Instruction,
    KeepInLobby,
    LeaveBatch,
    Refuse,
    Saved,
    Say,
    TakeSeat,
    WriteCheckpoint,
)
from adamctl.roles.coordinator.core.progress import BatchProgress, EvaluationResult, RoleRow, RunProgress
from adamctl.roles.coordinator.core.report import missing_text, run_progress
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.roles.coordinator.data_reading import DataReading
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    CheckpointReadRequest,
    Empty,
    GroupDropRequest,
    GroupMember,
    GroupWatchRequest,
    NextBundlesReply,
    NextBundlesRequest,
    NextTaskRequest,
    RunCheckpointReply,
    RunCheckpointRequest,
    RunJoinReply,
    RunJoinRequest,
    RunStatusReply,
    RunStatusRequest,
    RunStepRequest,
    RunStopRequest,
)

MESSAGES_KEPT: Final = 20
STATUS_WAITERS_MAX: Final = 64
WAIT_S_MAX: Final = 60.0


class RunService:
    """One run as other processes see it.

    Attributes:
        join_reply, data_servers: what workers are told; None until servers and data are ready.
        rows: of the processes that are not workers, for the table of roles.
        waiting_for: what the run waits for now; the last of the messages.
        checkpoints: the folder that they are written to.
        began_from: the checkpoint that the run begins from, for servers that cannot read it.
        batch: carries out a batch algorithm, from when the run is ready.
        final: set when the run is over.
        workers_told: set when, in addition, every worker has been told so or is gone.
        final_seen: set when every front end that has asked and is still connected has been told so.
    """

    def __init__(self, core: RunCore, experiment: Experiment, log: logging.Logger) -> None:
        self.core, self.experiment, self._log = core, experiment, log
        self.join_reply: RunJoinReply | None = None
        self.data_servers: tuple[str, ...] = ()
        self.rows: Sequence[RoleRow] = ()
        self.role_counts: dict[str, int] = {}
        self.data_reading: DataReading | None = None
        self.waiting_for = ""
        self.final = asyncio.Event()
        self.workers_told = asyncio.Event()
        self.final_seen = asyncio.Event()
        self._readers: set[int] = set()
        self.checkpoints = Path()
        self.began_from: ServedCheckpoint | None = None
        self.on_checkpoint: Callable[[WriteCheckpoint], None] = lambda order: None
        self.on_evaluated: Callable[[EvaluationResult], None] = lambda result: None
        self.on_finished: Callable[[RunProgress], None] = lambda progress: None
        self.batch: BatchService | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._messages: deque[str] = deque(maxlen=MESSAGES_KEPT)
        self._requests: dict[int, Request] = {}
        self._last_token = 0
        self._connection_of: dict[WorkerKey, int] = {}
        self._status_waiters: list[tuple[Request, str, asyncio.TimerHandle]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._loop = asyncio.get_running_loop()
        self._saved_s = self._loop.time()
        self._checkpoints = self._checkpoints_failed = 0

    # --- requests ---------------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> None:
        """Answers the requests of a run (RUN_...), now or when the core says so."""
        match request.message:
            case NextTaskRequest() as message:
                if not message.group_epoch:  # what a former session of a group's member sends may come late
                    self._connection_of[message.node, message.incarnation] = request.connection_id
                self.step(events.TasksWanted(self._park(request), _bounded(message)))
            case RunJoinRequest() as message:
                self._connection_of[message.node, message.incarnation] = request.connection_id
                values = msgspec.structs.asdict(_bounded(message))
                self.step(events.WorkerJoins(self._park(request), **values))
            case NextBundlesRequest() as message:
                self._answer(self._bundles(request, message))
            case RunStepRequest() as message:
                self.step(events.StepWanted(self._park(request), _bounded(message)))
            case GroupWatchRequest() as message:
                self.step(events.GroupWatched(self._park(request), _bounded(message)))
            case GroupDropRequest() as message:
                self.step(events.GroupDropWanted(self._park(request), message))
            case CheckpointReadRequest() as message:
                self._read_checkpoint(request, message)
            case RunStatusRequest() as message:
                self._status(request, message)
            case RunCheckpointRequest():
                self.step(events.CheckpointWanted(self._park(request)))
            case RunStopRequest(reason=reason, checkpoint=checkpoint):
                request.reply(Empty())
                self.say(f"told to stop by {request.peer.node}: {reason}")
                self.step(events.StopWanted(reason, checkpoint))
            case other:
                request.fail(ErrorCode.UNKNOWN_OPCODE, f"a coordinator does not serve {type(other).__name__}")

    async def _bundles(self, request: Request, message: NextBundlesRequest) -> None:
        """Answers a worker of a batch algorithm, when there are bundles for it or news.

        This begins after the request has come, and whoever was lost in between must not join the batch again.
        """
        run = self.core.run
        refused = None if run.final_state else run.refusal((message.node, message.incarnation), message.group_epoch)
        if refused is not None:
            request.fail(*refused)
        elif self.batch is None:
            request.reply(NextBundlesReply(drain=True))
        else:
            request.reply(await self.batch.next_bundles(message))

    def _read_checkpoint(self, request: Request, message: CheckpointReadRequest) -> None:
        """Gives a server a piece of the checkpoint that the run begins from."""
        if self.began_from is None or message.job != self.core.run.plan.job:
            request.fail(ErrorCode.NOT_ALLOWED, f"job {message.job[:200]!a} does not begin from a checkpoint here")
        else:
            self._answer(self.began_from.answer(request, message))

    def _answer(self, work: Coroutine[Any, Any, None]) -> None:
        answering = self._loop.create_task(work)
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    def disconnected(self, connection_id: int) -> None:
        """Notes that a connection is gone, and with it the worker that last used it."""
        for key in [key for key, used in self._connection_of.items() if used == connection_id]:
            del self._connection_of[key]
            self.step(events.WorkerLost(*key, "its connection closed"))
        self._status_waiters = [entry for entry in self._status_waiters if entry[0].connection_id != connection_id]
        self._needs_no_telling(connection_id)

    def _park(self, request: Request) -> int:
        self._last_token += 1
        self._requests[self._last_token] = request
        return self._last_token

    # --- the core ---------------------------------------------------------------------------------------------------

    def step(self, event: events.Event) -> None:
        """Steps the core and carries out what follows."""
        state = self.core.run.state
        for instruction in self.core.step(event, self._loop.time()):
            self._carry_out(instruction)
        if self.core.run.state != state:
            self._log.info("run %s: %s", self.core.run.plan.job, self.core.run.state)
            self._state_changed()
        if self.core.run.final_state and self.core.run.everybody_told:
            self.workers_told.set()
        if self.batch is not None:
            self.batch.hold(self.core.holds_batch, draining=self.core.run.ending is not None)
        self._set_timer()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Answer(token, reply) | AnswerStep(token, reply) | AnswerWatch(token, reply):
                self._requests.pop(token).reply(reply)
            case Refuse(token, code, message):
                self._requests.pop(token).fail(code, message)
            case Admit(token, replica):
                self._admit(token, replica)
            case TakeSeat(token, replica, group_epoch, partition, members):
                self._admit(token, replica, members, group_epoch=group_epoch, partition=partition)
            case KeepInLobby(token, reason):
                self._answer_join(token, lobby=reason)
            case Confirm(token):
                self._requests.pop(token).reply(Empty())
            case Say(text):
                self.say(text)
            case LeaveBatch(worker):
                if self.batch is not None:
                    self.batch.lose(worker)
            case Saved(token, number):
                folder = str(checkpoint_folder(self.checkpoints, number))
                self._requests.pop(token).reply(RunCheckpointReply(number, folder))
            case Evaluated(result):
                self.on_evaluated(result)
            case WriteCheckpoint():
                self.on_checkpoint(instruction)
            case Finished():
                self.waiting_for = ""
                self.on_finished(self.progress())
                self.final.set()

    def _admit(self, token: int, replica: int, members: Sequence[GroupMember] = (), **seat: int) -> None:
        """Answers a worker that takes part; `members` and `seat` are those of its group, if it is in one."""
        node = self._requests[token].peer.node
        self._answer_join(token, members, replica=replica, **seat)
        run = self.core.run
        self.role_counts["worker"] = max(self.role_counts.get("worker", 0), len(run.workers), len(run.groups.seats))
        place = f"partition {seat['partition']} of replica {replica}" if members else f"replica {replica}"
        self.say(f"worker {node} takes part as {place}", logging.INFO)
        self.waiting_for = ""

    def _answer_join(self, token: int, members: Sequence[GroupMember] = (), **values: Any) -> None:
        assert self.join_reply is not None, "workers are admitted only when the run is ready"
        plan = self.core.run.plan
        values |= {"partitions": plan.partitions, "plan_hash": plan.plan_hash}
        reply = msgspec.structs.replace(self.join_reply, **values)
        self._requests.pop(token).reply(reply, (encode_join_body(self.experiment, self.data_servers, members),))

    def checkpoint_ended(self, event: events.CheckpointWritten | events.CheckpointFailed) -> None:
        """Notes how writing a checkpoint ended."""
        if isinstance(event, events.CheckpointWritten):
            self._saved_s = self._loop.time()
            self._checkpoints += 1
        else:
            self._checkpoints_failed += 1
        self.step(event)

    def say(self, text: str, level: int = logging.WARNING) -> None:
        """Adds to the messages that front ends show."""
        self._log.log(level, "%s", text)
        self._messages.append(text)

    def _set_timer(self) -> None:
        """Moves the timer only if it has to fire earlier; if it fires too early, it is set again."""
        due_s = self.core.run.wakeup_s()
        if due_s >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_s = None, inf
        if self.core.run.wakeup_s() <= self._loop.time():
            self.step(events.Tick())
        else:
            self._set_timer()

    # --- status -----------------------------------------------------------------------------------------------------

    def progress(self) -> RunProgress:
        waiting_for = self.waiting_for or missing_text(self.core.run)
        messages = [*self._messages, waiting_for] if waiting_for else list(self._messages)
        read_bytes = None if self.data_reading is None else self.data_reading.total.total_bytes
        found = run_progress(self.core.as_of(self._loop.time()), self.rows, messages, self.role_counts, read_bytes)
        optimizer = self.experiment.optimizer
        if optimizer.is_batch:
            return msgspec.structs.replace(found, batch=found.batch or BatchProgress(algorithm=optimizer.type))
        rate = learning_rate(optimizer.lr, optimizer.schedule, found.progress)
        return msgspec.structs.replace(found, learning_rate=rate)

    def status(self) -> dict[str, Any]:
        """Returns the short form of the run's state for STATUS requests.

        `checkpoint_age_s`: since the last checkpoint was finished, or, before the first, since the process began.
        """
        progress = self.progress()
        names = ("state", "job", "progress", "pass_number", "images_per_s", "loss", "top1", "eta_seconds")
        waits = ("partitions", "step_waits", "step_wait_seconds", "steps_ahead_max")
        counts = ("examples", "updates", "skipped", "duplicates", "train_seconds", "staleness_p50", "staleness_p99")
        named = (*names, *waits, *counts, "waiting_share", "metric", "metric_value")
        found = {name: getattr(progress, name) for name in named}
        found["checkpoint_age_s"] = round(self._loop.time() - self._saved_s, 3)
        found["checkpoints"], found["checkpoints_failed"] = self._checkpoints, self._checkpoints_failed
        if progress.batch is not None:
            found |= msgspec.to_builtins({"passes_total": progress.passes_total, "batch": progress.batch})
        if progress.partitions > 1:
            found |= msgspec.to_builtins({"replicas": progress.replicas, "lobby": progress.lobby})
        return found

    def _status(self, request: Request, message: RunStatusRequest) -> None:
        self._readers.add(request.connection_id)
        full = len(self._status_waiters) >= STATUS_WAITERS_MAX
        if message.wait_s <= 0 or message.after_state != self.core.run.state or self.core.run.final_state or full:
            self._answer_status(request)
            return
        handle = self._loop.call_later(min(message.wait_s, WAIT_S_MAX), self._status_timed_out, request)
        self._status_waiters.append((request, message.after_state, handle))

    def _answer_status(self, request: Request) -> None:
        progress = self.progress()
        request.reply(RunStatusReply(progress.state), (msgspec.json.encode(progress),))
        if progress.final:
            self._needs_no_telling(request.connection_id)

    def _needs_no_telling(self, connection_id: int) -> None:
        self._readers.discard(connection_id)
        if self.core.run.final_state and not self._readers:
            self.final_seen.set()

    @property
    def is_watched(self) -> bool:
        """Whether a connected front end has asked and has not been told of the end."""
        return bool(self._readers)

    def _status_timed_out(self, request: Request) -> None:
        self._status_waiters = [entry for entry in self._status_waiters if entry[0] is not request]
        self._answer_status(request)

    def _state_changed(self) -> None:
        waiters, self._status_waiters = self._status_waiters, []
        for request, after_state, handle in waiters:
            if after_state == self.core.run.state:
                self._status_waiters.append((request, after_state, handle))
                continue
            handle.cancel()
            self._answer_status(request)

    def close(self) -> None:
        """Stops the timers; requests that are still parked end with their connections."""
        if self._timer is not None:
            self._timer.cancel()
        for _, _, handle in self._status_waiters:
            handle.cancel()
        for answering in self._answering:
            answering.cancel()


WaitingT = TypeVar("WaitingT", NextTaskRequest, RunJoinRequest, RunStepRequest, GroupWatchRequest)


def _bounded(message: WaitingT) -> WaitingT:
    """Returns a request with a wait that is not too long."""
    if 0 <= message.wait_s <= WAIT_S_MAX:
        return message
    return msgspec.structs.replace(message, wait_s=WAIT_S_MAX if message.wait_s > 0 else 0.0)
