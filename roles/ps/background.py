"""What one server does besides answering: tasks whose end is looked at. To be used on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


class Background:
    """Tasks of one server.

    Whatever somebody waits for has to be answered by the task itself, also when it fails; that it did is counted here.

    Attributes:
        tasks: those under way.
        failures: how many have ended by an exception that nobody expected.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures = 0
        self._log = log

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work in a task."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures += 1
            self._log.error("what was done in the background has failed", exc_info=task.exception())
