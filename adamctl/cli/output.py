"""Output to stdout: one JSON object, or a table in plain text."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from adamctl.config.names import in_short, printable

SCHEMA_VERSION = 1
CELL_CHARACTERS_MAX = 1000
EXIT_DEGRADED = 4
"""Exit status of a checking command that found a problem."""


_printed = False


def begin() -> None:
    """Notes that a command starts and has printed nothing yet."""
    global _printed
    _printed = False


def print_error(message: str, exit_code: int) -> None:
    """Prints a failed command's final object under `--json`, unless the command has printed one already."""
    if not _printed:
        print_json({"error": message, "exit_code": exit_code})


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints text, in which all control characters but line ends are escaped: parts may come from other machines."""
    click.echo(printable(text, keep="\n"), err=err, nl=nl)


def say_which(checkpoint: object, chosen: str) -> None:
    """Prints to stderr which checkpoint of its run was chosen, unless there was no choice."""
    if chosen:
        echo(f"{checkpoint}: {chosen}", err=True)


def progress(what: str) -> Callable[[str], None]:
    """Returns a function that says on stderr what is being done, if a person watches."""
    return (lambda text: echo(f"{what} {text}", err=True)) if sys.stderr.isatty() else (lambda text: None)


def print_json(values: dict[str, Any]) -> None:
    """Prints one object; `schema_version` comes first, and NaN and infinity become null."""
    global _printed
    _printed = True
    echo(json.dumps(_plain({"schema_version": SCHEMA_VERSION} | values), indent=2))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Returns aligned columns; those whose index is in `right` are aligned to the right. A cell is one line."""
    rows = [[in_short(cell, CELL_CHARACTERS_MAX) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
