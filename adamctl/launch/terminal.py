"""What a process does when the terminal it was started from goes away: it ends in order, and writes nowhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress


def ending_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that end a process in order: SIGINT, SIGTERM, and SIGHUP unless it is ignored (`nohup`)."""
    hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


def terminals() -> tuple[int, ...]:
    """Returns which of standard output and error are a terminal; ask before it is gone, for then none is."""
    return tuple(descriptor for descriptor in (1, 2) if _is_terminal(descriptor))


def leave(descriptors: Sequence[int]) -> None:
    """Sends what is written to these from now on to nowhere: a terminal that is gone refuses it."""
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
