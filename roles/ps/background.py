"""Background tasks of one server, whose failures are counted and logged. Used on the event loop only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


class Background:
    """Background tasks of one server.

    A task must answer what others wait for itself, also when it fails; failures are counted here.

    Attributes:
        tasks: the running tasks.
        failures: how many tasks ended with an unexpected exception.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures = 0
        self._log = log

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in a task."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures += 1
            self._log.error("a background task failed", exc_info=task.exception())
