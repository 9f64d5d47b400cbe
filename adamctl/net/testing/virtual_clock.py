"""An event loop whose clock jumps: when nothing is ready, time moves at once to the next timer.

A whole cluster over the in-memory network runs through minutes of protocol in milliseconds, and, since nothing depends
on the machine's speed, the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")


class NothingToWaitForError(RuntimeError):
    """Every task waits, and neither a timer nor a thread will wake any: a deadlock, detected at once."""


class _JumpingSelector(selectors.BaseSelector):
    """Asks the real selector without waiting; adds the time it would have waited to the loop's clock."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.loop: VirtualTimeLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self.loop
        assert loop is not None
        if loop.outside_work:
            return self._real.select(timeout if timeout == 0 else None)
        ready = self._real.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise NothingToWaitForError(
                "every task waits and no timer is set; work in threads must run inside VirtualTimeLoop.outside()"
            )
        loop.now_s += timeout
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module. `now_s` starts at 0; `outside_work` counts threads that the clock waits for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.outside_work = 0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now_s

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Inside this context, the clock stands still and the loop really waits for threads that will call back."""
        self.outside_work += 1
        try:
            yield
        finally:
            self.outside_work -= 1

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        """As asyncio's; the clock stands still until the function returns."""
        future = super().run_in_executor(executor, func, *args)
        self.outside_work += 1

        def done(_: asyncio.Future[Result]) -> None:
            self.outside_work -= 1

        future.add_done_callback(done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """As asyncio's, which waits for a thread."""
        with self.outside():
            await super().shutdown_default_executor()


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine to its end in virtual time and returns its result.

    Raises:
        NothingToWaitForError: the coroutine can never end.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
