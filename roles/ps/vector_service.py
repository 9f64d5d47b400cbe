"""Passes a batch algorithm's requests on its vectors to the core, and sends the answers (docs/decisions/0032)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from adamctl.net.transport import Request
from adamctl.roles.ps.core.instructions import AnswerAccumulate, AnswerVectors, Instruction, Refuse
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.vector_core import VectorCore
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AccumulateRequest, CommitRequest, EvaluateRequest, RoundRequest

VectorMessage: TypeAlias = AccumulateRequest | EvaluateRequest | RoundRequest | CommitRequest


class VectorService:
    """Used on the event loop only.

    Attributes:
        core: makes the decisions.
    """

    def __init__(self, core: ServerCore, coordinator: Callable[[str], str]) -> None:
        """`coordinator`: returns a job's coordinator, "" if none."""
        self.core = VectorCore(core)
        self._coordinator = coordinator

    def requested(self, request: Request, message: VectorMessage, now: float) -> list[Instruction]:
        """Handles one request. Only a job's own coordinator commands."""
        connection = request.connection_id
        if isinstance(message, AccumulateRequest):
            body = request.region(message.region) if message.region else request.body
            return self.core.accumulate(request, connection, message, body, now)
        coordinator = self._coordinator(message.job)
        if coordinator != request.peer.node:
            text = f"job {message.job!r} is coordinated by {coordinator or 'nobody'}, not by {request.peer.node}"
            return [Refuse(request, ErrorCode.NOT_ALLOWED, text)]
        if isinstance(message, EvaluateRequest):
            return self.core.evaluate(request, connection, message, now)
        if isinstance(message, RoundRequest):
            return self.core.round(request, connection, message, request.body, now)
        return self.core.commit(request, connection, message, request.body, now)

    def answer(self, instruction: AnswerVectors) -> None:
        """Answers a request of the coordinator."""
        body = [np.asarray(instruction.numbers, "<f8")] if instruction.numbers else []
        instruction.token.reply(instruction.message, body)

    def answer_accumulate(self, instruction: AnswerAccumulate) -> None:
        """Answers a worker, and frees the body."""
        request = instruction.token
        try:
            request.reply(instruction.message)
        finally:
            if instruction.queued:
                request.lease.release()
