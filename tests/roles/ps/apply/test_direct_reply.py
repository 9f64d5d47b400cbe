"""Pulls written into a client's memory by threads, and what becomes of those that come while the server stops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from adamctl.roles.ps.apply.direct_reply import HERE_BYTES_MAX, DirectPulls
from adamctl.roles.ps.core.instructions import AnswerPull
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import PulledPart, PullReply, PullRequest

SIZE = HERE_BYTES_MAX // 4 + 1  # just enough to be copied by a thread


@dataclass
class FakeRequest:
    memory: bytearray
    offset: int = 0
    replies: list[object] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def message(self) -> PullRequest:
        return PullRequest("job", {0: 1}, (0,), region=1, offsets=(self.offset,))

    def region(self, number: int) -> memoryview:
        assert number == 1
        return memoryview(self.memory)

    def reply(self, message: object) -> None:
        self.replies.append(message)
        self.answered.set()

    def fail(self, code: int, message: str) -> None:
        self.errors.append(code)
        self.answered.set()


class FakeValues:
    def __init__(self) -> None:
        self.array = np.arange(SIZE, dtype=np.float32)
        self.released = 0

    def release(self) -> None:
        self.released += 1


def instruction(request: FakeRequest, values: FakeValues) -> AnswerPull:
    reply = PullReply((PulledPart(0, ErrorCode.OK, 1, 1, 1, 1, 0, SIZE),))
    return AnswerPull(request, reply, [values])  # type: ignore[list-item]


async def test_values_are_written_by_a_thread_and_released_once() -> None:
    request, values, direct = FakeRequest(bytearray(4 * SIZE + 64), 64), FakeValues(), DirectPulls(1)
    direct.answer(instruction(request, values))
    await asyncio.wait_for(request.answered.wait(), 10)
    direct.stop()
    np.testing.assert_array_equal(np.frombuffer(request.memory, np.float32, SIZE, 64), values.array)
    assert (len(request.replies), request.errors, values.released) == (1, [], 1)


async def test_a_pull_that_comes_while_the_server_stops_is_refused_and_released() -> None:
    request, values, direct = FakeRequest(bytearray(4 * SIZE)), FakeValues(), DirectPulls(1)
    direct.stop()
    direct.answer(instruction(request, values))
    assert (request.replies, request.errors, values.released) == ([], [ErrorCode.SHUTTING_DOWN], 1)
    assert not any(request.memory)


async def test_an_offset_beyond_the_region_is_refused_and_released() -> None:
    request, values, direct = FakeRequest(bytearray(4 * SIZE), 4), FakeValues(), DirectPulls(0)
    direct.answer(instruction(request, values))
    assert (request.replies, request.errors, values.released) == ([], [ErrorCode.WRONG_LENGTH], 1)
