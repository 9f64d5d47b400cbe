"""What the scripts of `benchmarks/` share: how they end, and lists of numbers as options."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable

import click

from adamctl.cli.number_types import Counts
from adamctl.errors import EXIT_INTERRUPTED, AdamctlError

COUNT_MAX = 10_000


def run_script(main: Callable[[], None]) -> None:
    """Runs a script: what is wrong with its input, and Ctrl-C, end it with a line and the exit code of `adamctl`.

    SIGTERM ends it as Ctrl-C does, so that nothing it started is left. A shell has jobs in the background ignore
    SIGINT, and what they start, too, which is then ended by nothing else than a kill: here it does not.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        main()
    except AdamctlError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def counts(text: str) -> tuple[int, ...]:
    """Returns the different whole numbers of an option such as 1,2,4, for `type` of `argparse`.

    Raises:
        ArgumentTypeError: it is something else.
    """
    try:
        return Counts(COUNT_MAX).convert(text, None, None)
    except click.BadParameter as error:
        raise argparse.ArgumentTypeError(error.message) from error
