"""Work beside the front's own, without which its run would wait for ever: an error that it ends with ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Beside:
    """Used by the front's event loop only."""

    def __init__(self, on_error: Callable[[], None]) -> None:
        self._error: Exception | None = None
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self) -> None:
        """Raises what the first work to fail has ended with."""
        if self._error is not None:
            raise self._error

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts work."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # engines raise their own kinds
                self._error = self._error or error
                self._on_error()

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what still works."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
