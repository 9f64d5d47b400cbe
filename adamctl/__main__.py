"""`adamctl` and `python -m adamctl`."""

from __future__ import annotations


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    import sys

    from adamctl.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
