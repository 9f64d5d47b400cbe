"""Keeps a replica from running too far ahead: its threads ask before each step, its event loop asks the coordinator.

The coordinator grants steps up to a number (`adamctl.roles.coordinator.core.pace`); every finished step is reported to
it, so that others may continue. A replica that had nothing to do asks again before its next step.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from adamctl.roles.worker.core.grants import Stand
from adamctl.wire.messages import RunStepRequest

POLL_S = 5.0


class Gate(Protocol):
    """What lets the steps of a replica begin: `StepGate`, or `FlightGrants` where it has several partitions."""

    waits: int
    wait_s: float

    def allow(self, limit: int, rests: int) -> None: ...
    def rest(self) -> None: ...
    def stand(self) -> Stand: ...


AnyGate = TypeVar("AnyGate", bound=Gate)


class StepGate:
    """The steps of all threads of one replica, counted together. Thread-safe.

    Attributes:
        waits, wait_s: how often a thread had to wait before a step, and the total time.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called, on any thread, when there is something to report to the coordinator."""
        self._changed = changed
        self._room = threading.Condition()
        self._begun = self._done = self._limit = self._waiting = self._rests = 0
        self._stopping = False
        self.waits = 0
        self.wait_s = 0.0

    def begin(self) -> bool:
        """Waits until the next step may begin; False if the replica is stopping."""
        with self._room:
            if self._begun >= self._limit and not self._stopping:
                self._wait()
            if self._stopping:
                return False
            self._begun += 1
            return True

    def _wait(self) -> None:
        began_s = time.perf_counter()
        self.waits += 1
        self._waiting += 1
        self._changed()
        while self._begun >= self._limit and not self._stopping:
            self._room.wait()
        self._waiting -= 1
        self.wait_s += time.perf_counter() - began_s

    def finish(self) -> None:
        """Notes that a step is done."""
        with self._room:
            self._done += 1
        self._changed()

    def allow(self, limit: int, rests: int) -> None:
        """Allows steps up to `limit`, if the replica has not rested since `rests` was read."""
        with self._room:
            if rests == self._rests and limit > self._limit:
                self._limit = limit
                self._room.notify_all()

    def rest(self) -> None:
        """There is nothing to do: granted steps become void. Do not call it while a thread is in a step."""
        with self._room:
            self._limit = self._begun
            self._rests += 1

    def stand(self) -> Stand:
        with self._room:
            return Stand(self._done, self._begun + 1 if self._waiting else 0, self._rests)

    def stop(self) -> None:
        with self._room:
            self._stopping = True
            self._room.notify_all()


class Pacer(Generic[AnyGate]):
    """Tells the coordinator how far the replica is, and the threads how far they may go. Runs on the event loop.

    At most one request reports, and one waits, at a time: the coordinator answers a waiting one when the next arrives.
    """

    def __init__(
        self,
        node: str,
        incarnation: int,
        ask: Callable[[RunStepRequest], Awaitable[int]],
        make_gate: Callable[[Callable[[], None]], AnyGate],
        group_epoch: int = 0,
    ) -> None:
        """Args:
        ask: sends a request to the coordinator and returns the last step that may begin.
        make_gate: takes what is to be called, on any thread, when there is something to report to the coordinator.
        group_epoch: of the group of workers, if the replica is one.
        """
        self._node, self._incarnation, self._ask, self._group_epoch = node, incarnation, ask, group_epoch
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._called = False
        self._waiting: asyncio.Task[None] | None = None
        self.gate = make_gate(self._wake)

    def _wake(self) -> None:
        if not self._called:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:  # the loop is closed: the session is over
                return

    async def run(self) -> None:
        """Runs until it is cancelled; raises what asking raises."""
        told = Stand(-1, 0, 0)
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._called = False
                if self._waiting is not None and self._waiting.done():
                    self._waiting.result()
                    self._waiting, told = None, Stand(-1, 0, 0)
                stand = self.gate.stand()
                if stand == told:
                    continue
                told = stand
                if stand.wanted:
                    self._waiting = asyncio.create_task(self._tell(stand, POLL_S))
                    self._waiting.add_done_callback(self._answered)
                else:
                    await self._tell(stand, 0.0)
        finally:
            if self._waiting is not None:
                self._waiting.cancel()

    def _answered(self, waiting: asyncio.Task[None]) -> None:
        if waiting is self._waiting:
            self._changed.set()
        elif not waiting.cancelled():
            waiting.exception()  # a later request raises the same

    async def _tell(self, stand: Stand, wait_s: float) -> None:
        request = RunStepRequest(self._node, self._incarnation, stand.done, stand.wanted, wait_s, self._group_epoch)
        self.gate.allow(await self._ask(request), stand.rests)
