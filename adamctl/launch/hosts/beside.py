"""Work beside the front's own, without which its run would wait for ever: an error that it ends with ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Beside:
    """Used by the front's event loop only.

    Attributes:
        error: what the first work to fail has ended with.
    """

    def __init__(self, on_error: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts work."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # engines raise their own kinds
                self.error = self.error or error
                self._on_error()

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what still works."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
