"""One thread that does blocking work in order and does not delay the process's exit, even if the disk hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class WriterThread(Executor):
    """An executor with one daemon thread, which starts with the first task."""

    def __init__(self, name: str) -> None:
        self._orders: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._began = False

    def submit(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Runs a function after everything submitted before."""
        future: Future[Result] = Future()
        self._orders.put((future, lambda: function(*args, **kwargs)))
        if not self._began:
            self._began = True
            self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the thread after everything submitted."""
        self._orders.put(None)
        if wait and self._began:
            self._thread.join()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            future, function = order
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del order, future, function
