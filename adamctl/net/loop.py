"""Starts the event loop of a process: uvloop's if installed, else asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns a fresh loop, for this thread or another one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(
    main: Coroutine[Any, Any, Result],
    *,
    debug: bool | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
) -> Result:
    """Runs a coroutine on a new loop and returns its result; a Ctrl-C cancels it first, as in asyncio.run."""
    with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
        return runner.run(main)
