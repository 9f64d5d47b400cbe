"""Child processes of a benchmark, and the pipes to them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from adamctl.errors import RunFailedError

START_S = 60.0
STOP_S = 5.0

Pipe = multiprocessing.connection.Connection


class Child:
    """A fresh interpreter that runs `target(*arguments, pipe)`; it ends at the latest with this process.

    A context manager: an error or Ctrl-C in the block ends it at once, whatever it is doing.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(target, *arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: Any) -> None:
        self._pipe.send(message)

    def receive(self, wait_s: float) -> Any:
        """Returns the next message. Raises RunFailedError if the child is gone, silent, or sent an exception."""
        try:
            if not self._pipe.poll(wait_s):
                raise RunFailedError(f"a process of the benchmark did not answer within {wait_s:g} s")
            message = self._pipe.recv()
        except EOFError:
            raise RunFailedError("a process of the benchmark ended; its output says why") from None
        if isinstance(message, Exception):
            raise message
        return message

    def has_message(self) -> bool:
        """Whether `receive` would return at once."""
        return self._pipe.poll(0)

    def ask(self, message: Any, wait_s: float) -> Any:
        self.send(message)
        return self.receive(wait_s)

    def close(self) -> None:
        """Sends None, on which every child ends, and waits; kills a child that does not end."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _run(target: Callable[..., None], *arguments: Any) -> None:
    """Runs in the child. Ctrl-C reaches it, too: it ends silently, and the parent reports the interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    target(*arguments)
