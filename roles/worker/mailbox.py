"""Collects reports of compute threads, so that the event loop wakes once for several batches.

Waking the loop costs more than the report itself, and the loop, once awake, competes for the interpreter lock that the
threads need. So a report stays here until an urgent one comes (a push or fetch to start, an evaluation, the last batch
of a task, a failure), or for DELAY_S.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable

from adamctl.roles.worker.compute import BatchDone

DELAY_S = 0.05  # too short for a person to notice


class Siblings:
    """Counts the finished batches of one task. Thread-safe."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self._numbers = itertools.count(1)  # its next() is atomic in the interpreter, so no number comes twice

    def finish(self) -> bool:
        """Counts one; returns True for the last one."""
        return next(self._numbers) == self.batches


class Mailbox:
    """Reports of compute threads on their way to the event loop, in order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[BatchDone], None]) -> None:
        """`take` is called on the loop for every report."""
        self._loop, self._take = loop, take
        self._reports: deque[BatchDone] = deque()
        self._called = False
        self._taken_s = 0.0

    def put(self, done: BatchDone) -> None:
        """Leaves a report, from any thread. Drops it if the loop is closed: the session is over."""
        self._reports.append(done)
        last = done.batch.siblings is None or done.batch.siblings.finish()
        actions = done.actions
        urgent = last or done.failure is not None or actions is None or actions.push is not None or actions.fetch
        if not self._called and (urgent or time.monotonic() - self._taken_s > DELAY_S):
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                return

    def _deliver(self) -> None:
        # Cleared first: a report that finds it set is in the queue before the last check below.
        self._called, self._taken_s = False, time.monotonic()
        while self._reports:
            self._take(self._reports.popleft())
