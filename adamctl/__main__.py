"""`adamctl` and `python -m adamctl`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Runs the command line of this process and exits with its code.

    A SIGTERM ends a command as Ctrl-C does, so that nothing it has started or written for a while stays behind; runs
    and roles, which have more to do, take their signals themselves.
    """
    terminated = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in the background of a script
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    try:
        signal.signal(signal.SIGTERM, end)
        from adamctl.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while still importing
        code = 130
    sys.exit(EXIT_TERMINATED if terminated else code)


if __name__ == "__main__":
    main()
