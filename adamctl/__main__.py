"""`adamctl` and `python -m adamctl`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    try:
        from adamctl.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while still importing
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
