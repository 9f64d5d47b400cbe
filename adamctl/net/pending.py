"""A client's request while it waits, and the reply that it gets."""

from __future__ import annotations

import asyncio
from typing import Any

from adamctl.net.pool import PooledBuffer
from adamctl.net.protocol import Outgoing
from adamctl.wire.messages import Message

EMPTY = memoryview(b"")


class StreamReply:
    """A reply. `received_into`: the body is in the caller's buffers; `body` is then empty unless there was just one."""

    __slots__ = ("_buffer", "body", "message", "received_into")

    def __init__(self, message: Message, body: memoryview, buffer: PooledBuffer | None, received_into: bool) -> None:
        self.message = message
        self.body = body
        self.received_into = received_into
        self._buffer = buffer

    def release(self) -> None:
        """Returns the body's buffer; does nothing for a body that is empty or the caller's own."""
        if self._buffer is not None:
            self._buffer.release()
            self._buffer = None
            self.body = EMPTY


class Pending:
    """A request from its creation on: waiting for credit, then for its turn, then for its reply."""

    __slots__ = (
        "answer",
        "deadline",
        "into",
        "into_bytes",
        "message",
        "one_way",
        "outgoing",
        "request_id",
        "size_bytes",
        "timer",
        "views",
    )

    def __init__(self, message: Message, views: list[memoryview], size_bytes: int, one_way: bool) -> None:
        self.message = message
        self.views = views
        self.size_bytes = size_bytes
        self.one_way = one_way
        self.request_id = 0
        self.into: list[memoryview] | None = None
        self.into_bytes = 0
        self.deadline = 0.0
        self.answer: asyncio.Future[Any]
        self.timer: asyncio.TimerHandle
        self.outgoing: Outgoing | None = None
