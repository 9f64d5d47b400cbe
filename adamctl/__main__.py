"""`adamctl` and `python -m adamctl`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from adamctl.importing import importing


def open_closed_streams() -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that this process was started without.

    The next file or socket would have its number, and whatever a child prints would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is the stream's
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="backslashreplace"))


def main() -> None:
    """Runs the command line of this process and exits with its code.

    SIGTERM, or closing the terminal, ends a command as Ctrl-C does, so that it leaves no process or temporary file
    behind; runs and roles, which have more to do, handle their signals themselves.
    """
    ended_by = 0
    open_closed_streams()

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended_by
        ended_by = number
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in a script's background job
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    try:
        signal.signal(signal.SIGTERM, end)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(signal.SIGHUP, end)
        with importing():
            from adamctl.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while still importing
        code = 130
    sys.exit(128 + ended_by if ended_by else code)


if __name__ == "__main__":
    main()
