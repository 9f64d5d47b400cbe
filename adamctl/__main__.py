"""`adamctl` and `python -m adamctl`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from adamctl.importing import importing


def main() -> None:
    """Runs the command line of this process and exits with its code.

    A SIGTERM, or the end of its terminal, ends a command as Ctrl-C does, so that nothing it has started or written for
    a while stays behind; runs and roles, which have more to do, take their signals themselves.
    """
    ended_by = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended_by
        ended_by = number
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in the background of a script
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    try:
        signal.signal(signal.SIGTERM, end)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, end)
        with importing():
            from adamctl.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while still importing
        code = 130
    sys.exit(128 + ended_by if ended_by else code)


if __name__ == "__main__":
    main()
