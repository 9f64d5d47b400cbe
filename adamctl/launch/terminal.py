"""What a process does when its terminal closes: it ends cleanly and discards further output."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType


def ending_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that end a process cleanly: SIGINT, SIGTERM, and SIGHUP unless it is ignored (`nohup`)."""
    hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


@contextmanager
def handlers_given_back() -> Iterator[None]:
    """Gives the handlers of the ending signals back after the block, but of one that it has the system ignore."""
    former = {number: signal.getsignal(number) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in former.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler or signal.SIG_DFL)


def change_nothing(number: int, frame: FrameType | None) -> None:
    """A signal's handler: unlike SIG_IGN, processes that are started meanwhile do not inherit it."""


def terminals() -> tuple[int, ...]:
    """Returns which of standard output and error are terminals; call it before they close, since then none is."""
    return tuple(descriptor for descriptor in (1, 2) if _is_terminal(descriptor))


def leave(descriptors: Sequence[int]) -> None:
    """Discards further output to these descriptors: a closed terminal refuses it."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for descriptor in descriptors:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
