"""Replicas that ask to begin their next step, and wait until they may (pure)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from adamctl.roles.coordinator.core.instructions import AnswerStep, Instruction, Refuse
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import RunStepReply, RunStepRequest


class Waiting(NamedTuple):
    """A request that is answered when step `wanted` may begin, or at `until_s` at the latest."""

    token: int
    wanted: int
    since_s: float
    until_s: float


class StepBarrier:
    """At most one waiting request per replica.

    Attributes:
        waits, wait_s: how often replicas had to wait, and the total time.
    """

    def __init__(self, limit: Callable[[WorkerKey], int]) -> None:
        """`limit` returns the last step that a replica may begin now."""
        self._limit = limit
        self._waiting: dict[WorkerKey, Waiting] = {}
        self.waits = 0
        self.wait_s = 0.0

    def ask(self, replica: WorkerKey, token: int, request: RunStepRequest, now_s: float) -> list[Instruction]:
        """Takes a request; if it has to wait, it replaces an earlier one that waits."""
        limit = self._limit(replica)
        if request.wanted <= limit or request.wait_s <= 0:
            return [AnswerStep(token, RunStepReply(limit))]
        answered = self._answer(replica, now_s)
        self.waits += 1
        self._waiting[replica] = Waiting(token, request.wanted, now_s, now_s + request.wait_s)
        return answered

    def look(self, now_s: float) -> list[Instruction]:
        """Answers the replicas that may continue, and those whose waiting time is over."""
        out: list[Instruction] = []
        for replica, waiting in list(self._waiting.items()):
            if waiting.wanted <= self._limit(replica) or now_s >= waiting.until_s:
                out.extend(self._answer(replica, now_s))
        return out

    def end(self, now_s: float) -> list[Instruction]:
        """Answers all of them: the run is over, as the next answer to a request for tasks says."""
        return [answer for replica in list(self._waiting) for answer in self._answer(replica, now_s)]

    def leave(self, replica: WorkerKey, code: int, message: str) -> list[Instruction]:
        waiting = self._waiting.pop(replica, None)
        return [] if waiting is None else [Refuse(waiting.token, code, message)]

    def wakeup_s(self) -> float:
        return min((waiting.until_s for waiting in self._waiting.values()), default=inf)

    def _answer(self, replica: WorkerKey, now_s: float) -> list[Instruction]:
        waiting = self._waiting.pop(replica, None)
        if waiting is None:
            return []
        self.wait_s += now_s - waiting.since_s
        return [AnswerStep(waiting.token, RunStepReply(self._limit(replica)))]
