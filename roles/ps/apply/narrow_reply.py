"""Rounds pulled values to 16 bits before they are sent; large pulls in threads, so that other requests do not wait.

The rounded values are a copy, so the shard is free as soon as the copy is made, and the next batch is applied in place
even while the copy is being sent. Copies use pooled buffers of limited total size; if there is no room, a pull waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from adamctl.kernels.numeric.convert import NARROW, narrowed_within_range
from adamctl.kernels.operation import Array
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES
from adamctl.net.pool import BufferPool, PooledBuffer
from adamctl.net.transport import Request
from adamctl.roles.ps.core.instructions import AnswerPull
from adamctl.wire.constants import BODY_BYTES_MAX, ErrorCode

HERE_ELEMENTS_MAX = 1 << 17  # takes less time than waking a thread and being woken by it
QUOTA_BYTES = 256 << 20

log = logging.getLogger(__name__)


class PullConverter:
    """Answers 16-bit pulls. Used on the event loop only."""

    def __init__(self, threads: int, quota_bytes: int = QUOTA_BYTES) -> None:
        """With 0 threads everything is rounded on the event loop, for clusters inside one thread."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="round") if threads else None
        self._loop = asyncio.get_running_loop()
        self._pool = BufferPool(max(quota_bytes, BODY_BYTES_MAX))
        self._waiting: deque[AnswerPull] = deque()

    def answer(self, instruction: AnswerPull) -> None:
        """Rounds and sends values, at once or when there is room; refuses what does not fit into a frame."""
        size_bytes = _size_bytes(instruction)
        if size_bytes > BODY_BYTES_MAX:
            text = f"expected at most {BODY_BYTES_MAX} bytes of values; found {size_bytes}; ask for fewer shards"
            instruction.token.fail(ErrorCode.WRONG_LENGTH, text)
            _release(instruction)
            return
        self._waiting.append(instruction)
        if len(self._waiting) == 1:
            self._round_waiting()

    def close(self) -> None:
        """Ends the threads after their current work."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        while self._waiting:
            _release(self._waiting.popleft())

    def _round_waiting(self) -> None:
        while self._waiting:
            size_bytes = _size_bytes(self._waiting[0])
            buffer = self._pool.try_allocate(size_bytes)
            if buffer is None:
                self._pool.when_released(self._resume)
                return
            self._round(self._waiting.popleft(), buffer)

    def _resume(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._round_waiting)
        except RuntimeError:  # the loop is closed: nothing waits for this any more
            return

    def _round(self, instruction: AnswerPull, buffer: PooledBuffer) -> None:
        arrays = [values.array for values in instruction.values]
        if self._threads is None or sum(array.size for array in arrays) <= HERE_ELEMENTS_MAX:
            _rounded(arrays, instruction.dtype, buffer.view)
            self._send(instruction, buffer)
            return
        work = self._loop.run_in_executor(self._threads, _rounded, arrays, instruction.dtype, buffer.view)
        work.add_done_callback(lambda done: self._rounded(instruction, buffer, done))

    def _rounded(self, instruction: AnswerPull, buffer: PooledBuffer, done: asyncio.Future[None]) -> None:
        request: Request = instruction.token
        if not done.cancelled() and done.exception() is None:
            self._send(instruction, buffer)
            return
        _release(instruction)
        buffer.release()
        if done.cancelled():
            request.fail(ErrorCode.SHUTTING_DOWN, "the server is closing")
        else:
            log.error("values could not be rounded", exc_info=done.exception())
            request.fail(ErrorCode.INTERNAL, "the server failed while rounding values; see its log")

    def _send(self, instruction: AnswerPull, buffer: PooledBuffer) -> None:
        _release(instruction)
        try:
            instruction.token.reply(instruction.message, [buffer.view], buffer.release)
        except ValueError as error:  # too many parts for a frame's header
            buffer.release()
            instruction.token.fail(ErrorCode.WRONG_LENGTH, f"{error}; ask for fewer shards")


def _size_bytes(instruction: AnswerPull) -> int:
    return sum(values.array.size for values in instruction.values) * WIRE_ELEMENT_BYTES[instruction.dtype]


def _release(instruction: AnswerPull) -> None:
    for values in instruction.values:
        values.release()


def _rounded(arrays: Sequence[Array], dtype: str, out: memoryview) -> None:
    """Writes the arrays one after another, rounded."""
    rounded = np.frombuffer(out, NARROW[dtype])
    start = 0
    for array in arrays:
        narrowed_within_range(array, rounded[start : start + array.size])
        start += array.size
