"""A run of replicas of several partitions, and what the tests of groups say to it and hear from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import (
    Answer,
    AnswerStep,
    AnswerWatch,
    Instruction,
    KeepInLobby,
    Refuse,
    Say,
    TakeSeat,
)
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.wire.messages import (
    GroupDropRequest,
    GroupWatchRequest,
    NextTaskReply,
    NextTaskRequest,
    RunStepRequest,
    TaskReport,
)
from tests.roles.coordinator.simulation import plan

InstructionT = TypeVar("InstructionT", bound=Instruction)
EXAMPLES = 400


class GroupedRun:
    """Steps a core and keeps what it answers, by token.

    Attributes:
        told: token -> the answer to that request.
        said: messages for users.
    """

    def __init__(self, partitions: int = 2, workers: int = 1, *, ready: bool = True, **changes: object) -> None:
        settings = {"evaluate_every": 0.0, "checkpoint_every": 0.0} | changes
        self.core = RunCore(plan(workers=workers, partitions=partitions, **settings), 0.0)
        self.now_s = 0.0
        self.told: dict[int, Instruction] = {}
        self.said: list[str] = []
        self._last_token = 0
        if ready:
            self.step(events.Ready(EXAMPLES, 0))

    def step(self, event: events.Event) -> list[Instruction]:
        instructions = self.core.step(event, self.now_s)
        for instruction in instructions:
            token = getattr(instruction, "token", None)
            if token is not None:
                assert token not in self.told, "a request is answered twice"
                self.told[token] = instruction
            if isinstance(instruction, Say):
                self.said.append(instruction.text)
        return instructions

    def wait(self, seconds: float) -> None:
        """Lets time pass, with a tick whenever the core wants one."""
        until_s = self.now_s + seconds
        while (wakeup_s := self.core.run.wakeup_s()) <= until_s:
            assert wakeup_s >= self.now_s, "a tick is due in the past, and will be for ever"
            self.now_s = wakeup_s
            self.step(events.Tick())
            assert self.core.run.wakeup_s() > wakeup_s, "a tick changes nothing"
        self.now_s = until_s

    def _token(self) -> int:
        self._last_token += 1
        return self._last_token

    # --- what workers say -------------------------------------------------------------------------------------------

    def join(self, node: str, incarnation: int = 1, host: str = "h1", wait_s: float = 10.0, plan_hash: str = "") -> int:
        token = self._token()
        self.step(events.WorkerJoins(token, node, incarnation, 2, host, (f"memory://{node}",), wait_s, plan_hash))
        return token

    def watch(self, node: str, epoch: int, incarnation: int = 1, wait_s: float = 5.0, **more: object) -> int:
        token = self._token()
        request = GroupWatchRequest(node, incarnation, epoch, wait_s, **more)  # type: ignore[arg-type]
        self.step(events.GroupWatched(token, request))
        return token

    def drop(
        self, node: str, epoch: int, partition: int, cause: str = "it hangs", incarnation: int = 1, fault: str = ""
    ) -> int:
        token = self._token()
        self.step(events.GroupDropWanted(token, GroupDropRequest(node, incarnation, epoch, partition, cause, fault)))
        return token

    def ask(
        self,
        node: str,
        epoch: int,
        wanted: int = 1,
        wait_s: float = 5.0,
        reports: Sequence[TaskReport] = (),
        incarnation: int = 1,
        **more: object,
    ) -> int:
        token = self._token()
        request = NextTaskRequest(node, incarnation, tuple(reports), wanted, wait_s, group_epoch=epoch, **more)  # type: ignore[arg-type]
        self.step(events.TasksWanted(token, request))
        return token

    def ask_step(self, node: str, epoch: int, done: int, wanted: int, incarnation: int = 1) -> int:
        token = self._token()
        self.step(events.StepWanted(token, RunStepRequest(node, incarnation, done, wanted, 5.0, epoch)))
        return token

    def lose(self, node: str, incarnation: int = 1, cause: str = "its connection closed") -> None:
        self.step(events.WorkerLost(node, incarnation, cause))

    # --- what they hear ---------------------------------------------------------------------------------------------

    def answer(self, token: int, kind: type[InstructionT]) -> InstructionT:
        found = self.told[token]
        assert isinstance(found, kind), found
        return found

    def waits(self, token: int) -> bool:
        return token not in self.told

    def seat(self, token: int) -> TakeSeat:
        return self.answer(token, TakeSeat)

    def nodes(self, token: int) -> list[str]:
        """The members of the group that a worker has joined, in order."""
        return [member.node for member in self.seat(token).members]

    def news(self, token: int) -> tuple[str, str]:
        """State and cause that a member is told."""
        reply = self.answer(token, AnswerWatch).reply
        return reply.state, reply.cause

    def refused(self, token: int) -> tuple[int, str]:
        found = self.answer(token, Refuse)
        return found.code, found.message

    def in_lobby(self, token: int) -> str:
        return self.answer(token, KeepInLobby).reason

    def tasks(self, token: int) -> NextTaskReply:
        return self.answer(token, Answer).reply

    def limit(self, token: int) -> int:
        return self.answer(token, AnswerStep).reply.limit

    def grouped(self, *nodes: str, host: str = "h1") -> int:
        """These workers join and become one group; returns its epoch."""
        tokens = [self.join(node, host=host) for node in nodes]
        return self.seat(tokens[-1]).group_epoch
