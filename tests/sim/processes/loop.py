"""An event loop for the shells of one simulated process: its clock and its turns are the simulator's.

Tasks, timers and futures are asyncio's own. What is ready runs at once, in its order; what blocks in a thread is done
at a time of its own, and its outcome comes later still.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.processes.process import RunView

SOON_S = 1e-6
TURNS_MAX = 10_000
CLOSES_MAX = 20


class SimLoop(asyncio.AbstractEventLoop):
    """See the module.

    Attributes:
        stepped: called when nothing is ready any more.
        failed: called with what a callback let out.
        took_s: what a thread is doing adds to it how much longer it takes.
        work_s_max: how long a thread takes at most to begin.
    """

    def __init__(
        self, view: RunView, stepped: Callable[[], None], failed: Callable[[BaseException, str], None]
    ) -> None:
        self.view, self.clock = view, view.process.clock
        self.stepped, self.failed = stepped, failed
        self.took_s, self.work_s_max = 0.0, 0.002
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self._wakes_s = float("inf")
        self._running = self._soon = False

    # --- turns ------------------------------------------------------------------------------------------------------

    def do(self, action: Callable[[], None]) -> None:
        """Does something on the loop, and then all that follows from it at once."""
        if self._running:
            action()
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._running = True
        try:
            action()
            self._run()
        finally:
            self._running = False
            asyncio._set_running_loop(before)
        if self.view.current:
            self.stepped()
            self._schedule()

    def _run(self) -> None:
        ready, turns = self._ready, 0
        self._take_timers()
        while ready and self.view.current:
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
            turns += 1
            if turns > TURNS_MAX:
                raise AssertionError(f"{self.view.process.name} does not come to rest: {handle}")

    def _take_timers(self) -> None:
        now, timers = self.clock.now(), self._timers
        while timers and (timers[0][0] <= now or timers[0][2].cancelled()):
            self._ready.append(heapq.heappop(timers)[2])

    def _schedule(self) -> None:
        if not self._timers:
            return
        world = self.view.world
        due_s = world.now_s + self.clock.true_delay_s(self._timers[0][0]) + SOON_S
        if due_s < self._wakes_s - 1e-9 or self._wakes_s <= world.now_s:
            self._wakes_s = due_s
            self.view.after(due_s - world.now_s, lambda: self._wake(due_s))

    def _wake(self, due_s: float) -> None:
        if self._wakes_s == due_s:
            self._wakes_s = float("inf")
            self.do(lambda: None)

    def bury(self) -> None:
        """Ends what was under way when the process ended; none of it comes to anything."""
        tasks = asyncio.all_tasks(self)  # what is ready, and timers, may be all that holds on to some of them
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for task in tasks:
                _close(task.get_coro())
        finally:
            asyncio._set_running_loop(before)
        self._ready.clear()
        self._timers.clear()

    # --- what asyncio asks of a loop --------------------------------------------------------------------------------

    def time(self) -> float:
        return self.clock.now()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._running and not self._soon:
            self._soon = True
            self.view.after(0.0, self._come)
        return handle

    def _come(self) -> None:
        self._soon = False
        self.do(lambda: None)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, timer))
        if not self._running:
            self._schedule()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left out when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:  # type: ignore[override]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """A thread does it after a moment; its outcome comes when that is done, which may take longer."""
        future = self.create_future()

        def work() -> None:
            self.took_s = 0.0
            error: BaseException | None = None
            result: Any = None
            try:
                result = func(*args)
            except BaseException as raised:
                error = raised
            self.view.after(self.took_s, lambda: self.do(lambda: tell(result, error)))

        def tell(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.view.after(self.view.random.random() * self.work_s_max, work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and self.view.current:
            self.failed(error, str(context.get("message")))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return not self.view.current


def _close(work: Any) -> None:
    """Ends a coroutine and those that it waits for, the innermost first; each may wait for more when it is told to."""
    for _ in range(CLOSES_MAX):
        inner = getattr(work, "cr_await", None)
        if hasattr(inner, "close"):
            _close(inner)
        try:
            work.close()
        except RuntimeError:
            continue
        except Exception:  # it has ended by itself, and nobody is there to hear of it
            pass
        return
    raise AssertionError(f"{work} does not end")


class Abandoned:
    """Awaits a coroutine that would wait for more if it were closed, as it is where a process ends without a word."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work

    def __await__(self) -> Abandoned:
        return self

    def __iter__(self) -> Abandoned:
        return self

    def __next__(self) -> Any:
        return self._work.send(None)

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        _close(self._work)


def start(loop: SimLoop, work: Coroutine[Any, Any, Any]) -> None:
    """Begins a coroutine on a loop."""
    loop.do(lambda: loop.create_task(work) and None)
