"""`adamctl` and `python -m adamctl`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from adamctl.importing import importing


def main() -> None:
    """Runs the command line of this process and exits with its code.

    SIGTERM, or closing the terminal, ends a command as Ctrl-C does, so that it leaves no process or temporary file
    behind; runs and roles, which have more to do, handle their signals themselves.
    """
    ended_by = 0

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
