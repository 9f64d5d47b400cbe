"""Virtual time: it jumps when nothing is ready, stands still for threads, and finds deadlocks."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from adamctl.net.testing.virtual_clock import NothingToWaitForError, VirtualTimeLoop, run_virtual


def test_sleeping_takes_no_time() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times: list[float] = []

        async def nap(duration_s: float) -> None:
            await asyncio.sleep(duration_s)
            times.append(loop.time())

        await asyncio.gather(nap(86_400.0), nap(1.0), nap(3600.5))
        return times

    assert run_virtual(main()) == [1.0, 3600.5, 86_400.0]


def test_a_deadlock_is_found_at_once() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingToWaitForError, match="every task waits"):
        run_virtual(main())


def test_the_clock_stands_still_while_an_executor_works() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(0.001, lambda: None)
        await loop.run_in_executor(None, time.sleep, 0.02)
        timer.cancel()
        return loop.time()

    assert run_virtual(main()) == 0.0


def test_the_clock_stands_still_while_an_own_thread_works() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        done = asyncio.Event()
        with loop.outside():
            thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(done.set))
            timer = loop.call_later(5, done.set)
            thread.start()
            await done.wait()
            thread.join()
        timer.cancel()
        return loop.time()

    assert run_virtual(main()) == 0.0
