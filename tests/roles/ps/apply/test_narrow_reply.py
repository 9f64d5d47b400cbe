"""Pulls of 16 bits at the server: rounded copies in bounded memory, the shards free as soon as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adamctl.kernels.numeric import convert
from adamctl.roles.ps.apply import narrow_reply as converting
from adamctl.roles.ps.apply.narrow_reply import HERE_ELEMENTS_MAX, PullConverter
from adamctl.roles.ps.core.buffers import Values
from adamctl.roles.ps.core.instructions import AnswerPull
from adamctl.wire.constants import BODY_BYTES_MAX, ErrorCode
from adamctl.wire.messages import PullReply


class Asked:
    """A request that keeps what it is answered; `sent` is called when the test says so."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.code = 0
        self.sent: Callable[[], None]
        self.answered = asyncio.Event()

    def reply(self, message: Any, body: Any, on_sent: Callable[[], None]) -> None:
        self.body = b"".join(bytes(piece) for piece in body)
        self.sent = on_sent
        self.answered.set()

    def fail(self, code: int, message: str) -> None:
        self.code = code
        self.answered.set()


def asked(sizes: list[int], dtype: str = "bfloat16") -> tuple[Asked, AnswerPull]:
    held = []
    for seed, size in enumerate(sizes):
        array = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
        values = Values(array, None)
        values.readers = 1
        held.append(values)
    request = Asked()
    return request, AnswerPull(request, PullReply(()), held, dtype)


async def answered(request: Asked) -> None:
    async with asyncio.timeout(30):
        await request.answered.wait()


def rounded(instruction: AnswerPull) -> bytes:
    out = b""
    for values in instruction.values:
        narrow = np.empty(values.array.size, convert.NARROW[instruction.dtype])
        convert.narrowed(values.array, narrow)
        out += narrow.tobytes()
    return out


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [[], [5], [7, 1, 300], [HERE_ELEMENTS_MAX, 3]])
async def test_values_are_rounded_one_after_another_and_released_at_once(
    sizes: list[int], dtype: str, threads: int
) -> None:
    converter = PullConverter(threads)
    request, instruction = asked(sizes, dtype)
    converter.answer(instruction)
    await answered(request)
    assert request.body == rounded(instruction)
    assert [values.readers for values in instruction.values] == [0] * len(sizes)  # before it is sent
    request.sent()
    assert converter._pool.statistics().outstanding_bytes == 0
    converter.close()


async def test_values_beyond_float16_become_its_largest_number() -> None:
    converter = PullConverter(0)
    request, instruction = asked([3], "float16")
    instruction.values[0].array[:] = 1e6, -1e6, 2
    converter.answer(instruction)
    assert np.frombuffer(request.body or b"", np.float16).tolist() == [65504, -65504, 2]


@pytest.mark.parametrize("threads", [0, 1])
async def test_pulls_wait_for_room_in_turn(threads: int) -> None:
    converter = PullConverter(threads, quota_bytes=BODY_BYTES_MAX)
    size = BODY_BYTES_MAX // 4  # half of the room each
    pulls = [asked([size]) for _ in range(4)]
    for _, instruction in pulls:
        converter.answer(instruction)
    for request, _ in pulls[:2]:
        await answered(request)
    assert not any(request.answered.is_set() for request, _ in pulls[2:])
    assert pulls[2][1].values[0].readers == 1
    for number, (request, _) in enumerate(pulls[2:]):
        pulls[number][0].sent()
        await answered(request)
        assert [other.answered.is_set() for other, _ in pulls] == [True] * (3 + number) + [False] * (1 - number)
    converter.close()


async def test_what_does_not_fit_into_a_frame_is_refused() -> None:
    converter = PullConverter(0)
    request, instruction = asked([1])
    instruction.values[0].array = np.broadcast_to(np.float32(1), BODY_BYTES_MAX // 2 + 1)
    converter.answer(instruction)
    assert request.code == ErrorCode.WRONG_LENGTH and instruction.values[0].readers == 0


async def test_a_failure_is_answered_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(converting, "narrowed_within_range", fail)
    converter = PullConverter(1)
    request, instruction = asked([HERE_ELEMENTS_MAX + 1])
    converter.answer(instruction)
    await answered(request)
    assert request.code == ErrorCode.INTERNAL and instruction.values[0].readers == 0
    assert converter._pool.statistics().outstanding_bytes == 0
    converter.close()


async def test_to_close_frees_what_still_waits() -> None:
    converter = PullConverter(0, quota_bytes=BODY_BYTES_MAX)
    first, second = asked([BODY_BYTES_MAX // 2]), asked([5])
    converter.answer(first[1])
    converter.answer(second[1])
    assert second[1].values[0].readers == 1
    converter.close()
    assert second[1].values[0].readers == 0
    first[0].sent()
    await asyncio.sleep(0)
    assert not second[0].answered.is_set()
