"""Turns coroutines into handlers and exceptions into error codes, the same for every transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from adamctl.errors import (
    AdamctlError,
    BackpressureError,
    ConfigurationError,
    DamagedDataError,
    DeadlineError,
    ProtocolError,
    RemoteError,
)
from adamctl.net.transport import Handler, Request
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message

_LOG = logging.getLogger(__name__)

_CODES: tuple[tuple[type[AdamctlError], ErrorCode], ...] = (
    (ConfigurationError, ErrorCode.BAD_CONFIGURATION),
    (DamagedDataError, ErrorCode.DAMAGED_DATA),
    (BackpressureError, ErrorCode.OVER_QUOTA),
    (DeadlineError, ErrorCode.DEADLINE_PASSED),
    (ProtocolError, ErrorCode.BAD_MESSAGE),
)

Answer = Message | tuple[Message, Any] | None
"""The result of an asynchronous handler: a reply, a reply with its body, or None if it answered by itself."""


def report_failure(request: Request, error: Exception) -> None:
    """Answers a request with its handler's exception: `RemoteError` unchanged, ours by kind, others as INTERNAL."""
    if isinstance(error, RemoteError):
        request.fail(error.code, str(error), error.details)
        return
    for kind, code in _CODES:
        if isinstance(error, kind):
            request.fail(code, str(error))
            return
    name = type(request.message).__name__
    _LOG.error("the handler of %s from %s failed", name, request.peer_name, exc_info=error)
    request.fail(ErrorCode.INTERNAL, f"{name} failed: {type(error).__name__}: {error}")


def async_handler(function: Callable[[Request], Awaitable[Answer]]) -> Handler:
    """Returns a handler that runs a coroutine per request, as a task of the running loop.

    A server's limit of outstanding requests per connection bounds their number. An exception is answered as in a plain
    handler; a cancelled task answers SHUTTING_DOWN.
    """
    tasks: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly

    async def serve(request: Request) -> None:
        try:
            answer = await function(request)
        except asyncio.CancelledError:
            request.fail(ErrorCode.SHUTTING_DOWN, "the server is closing")
            raise
        except Exception as error:
            report_failure(request, error)
            return
        if answer is None:
            return
        if isinstance(answer, tuple):
            request.reply(answer[0], answer[1])
        else:
            request.reply(answer)

    def handle(request: Request) -> None:
        task = asyncio.ensure_future(serve(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return handle
