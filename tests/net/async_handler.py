"""A tool of the transport tests: turns a coroutine function into a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from adamctl.net.handler import report_failure
from adamctl.net.transport import Handler, Request
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message

Answer = Message | tuple[Message, Any] | None
"""What the coroutine returns: a reply, a reply with its body, or None if it has already answered."""


def async_handler(function: Callable[[Request], Awaitable[Answer]]) -> Handler:
    """Returns a handler that runs a coroutine per request, as a task of the running loop.

    The server bounds how many requests a connection may have outstanding, and so the number of tasks. An exception is
    answered as in a plain handler; a cancelled task answers SHUTTING_DOWN.
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
