"""Answers pulls by writing values directly into the client's shared memory, with a single copy."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from adamctl.errors import RemoteError
from adamctl.kernels.operation import Array
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.net.transport import Request
from adamctl.roles.ps.core.instructions import AnswerPull
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import PullRequest

HERE_BYTES_MAX = 128 << 10
"""Up to this size values are copied on the event loop: it takes no longer than waking a thread."""

Copies = list[tuple[Array, Array]]
"""(target, values)."""


class DirectPulls:
    """Carries out `AnswerPull` for requests that name a region, with `threads` copying threads; 0: on the loop."""

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pull") if threads else None

    def answer(self, instruction: AnswerPull) -> None:
        """Writes the values, releases them and answers; writes nothing if an offset is outside the region."""
        try:
            copies = _copies(instruction)
        except RemoteError as error:
            _release(instruction)
            instruction.token.fail(error.code, str(error))
            return
        if self._threads is None or sum(values.nbytes for _, values in copies) <= HERE_BYTES_MAX:
            copy_all(copies)
            self._answer(instruction, None)
            return
        try:
            copying = self._threads.submit(copy_all, copies)
        except RuntimeError:  # requests still arrive while the server stops
            _release(instruction)
            instruction.token.fail(ErrorCode.SHUTTING_DOWN, "the server is closing")
            return
        copying.add_done_callback(lambda done: self._copied(instruction, done))

    def _copied(self, instruction: AnswerPull, done: Future[None]) -> None:
        """Runs in the copying thread."""
        error = UnfinishedError() if done.cancelled() else done.exception()
        with suppress(RuntimeError):  # the loop has ended: nothing waits for this any more
            self._loop.call_soon_threadsafe(self._answer, instruction, error)

    def _answer(self, instruction: AnswerPull, error: BaseException | None) -> None:
        _release(instruction)
        if error is not None:
            instruction.token.fail(ErrorCode.INTERNAL, f"values could not be written into the client's memory: {error}")
            return
        try:
            instruction.token.reply(instruction.message)
        except ValueError as problem:  # too many parts for a frame's header
            instruction.token.fail(ErrorCode.WRONG_LENGTH, f"{problem}; ask for fewer shards")

    def stop(self) -> None:
        """Waits for copies in progress and cancels the rest."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)


class UnfinishedError(Exception):
    """The server stopped before a copy started."""

    def __str__(self) -> str:
        return "the server is closing"


def copy_all(copies: Copies) -> None:
    """Copies values; releases the interpreter's lock during each copy."""
    for target, values in copies:
        np.copyto(target, values)


def _copies(instruction: AnswerPull) -> Copies:
    """Raises RemoteError if the region is unknown or a shard does not fit into it."""
    request: Request = instruction.token
    message = request.message
    assert isinstance(message, PullRequest)
    region = request.region(message.region)
    if len(message.offsets) != len(message.shards) or message.dtype != "float32":
        found = f"{len(message.offsets)} offsets for {len(message.shards)} shards of {message.dtype}"
        raise RemoteError(ErrorCode.WRONG_LENGTH, f"expected float32 and an offset for each shard; found {found}")
    parts = zip(instruction.message.parts, message.offsets, strict=True)
    offsets = [offset for part, offset in parts if not part.code]
    arrays = [values.array for values in instruction.values]
    for offset, array in zip(offsets, arrays, strict=True):
        if offset < 0 or offset % ELEMENT_BYTES or offset + array.nbytes > len(region):
            what = f"{array.nbytes} bytes at byte {offset} of a region of {len(region)}"
            raise RemoteError(ErrorCode.WRONG_LENGTH, f"expected values within the region; found {what}")
    return [
        (np.frombuffer(region, np.float32, array.size, offset), array)
        for offset, array in zip(offsets, arrays, strict=True)
    ]


def _release(instruction: AnswerPull) -> None:
    for values in instruction.values:
        values.release()
