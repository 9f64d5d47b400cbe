"""Writes manual pages of all commands: `python -m adamctl.cli.man_pages build/man`, then `man build/man/adamctl.1`.

Each command has a page: adamctl.1, adamctl-train.1, adamctl-run-list.1 and so on, from the same descriptions as --help.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from adamctl import __version__
from adamctl.cli.lazy import LazyGroup
from adamctl.cli.main import application
from adamctl.cli.output import echo

PROGRAM = "adamctl"


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yields a command with its context, and all below it."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from commands(found, click.Context(found, parent=context, info_name=name))


def page_name(context: click.Context) -> str:
    """Returns the name of a command's page, without its section."""
    return context.command_path.replace(" ", "-")


def page(command: click.Command, context: click.Context) -> str:
    """Returns a command's page in roff, for the macros of man(7)."""
    name, text = page_name(context), (command.help or "").strip()
    summary, _, rest = text.partition("\n\n")
    first = _joined(summary).partition(". ")[0].rstrip(".")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{_escaped(name.upper())}" "1" "" "{PROGRAM} {__version__}" "{PROGRAM}"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(first) or PROGRAM}",
        ".SH SYNOPSIS",
        f".B {_escaped(context.command_path)}",
        _escaped(usage),
        ".SH DESCRIPTION",
        *[line for part in (summary, *rest.split("\n\n")) if part.strip() for line in (".PP", _escaped(_joined(part)))],
    ]
    flags = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    records = [record for one in flags if (record := one.get_help_record(context)) is not None]
    lines += [".SH OPTIONS"] if records else []
    for names, said in records:
        lines += [".TP", f".B {_escaped(names)}", _escaped(_joined(said)) or "\\&"]
    if isinstance(command, LazyGroup):
        lines.append(".SH COMMANDS")
        for name_below, said in (pair for section in command.sections().values() for pair in section.items()):
            lines += [".TP", f".BR {_escaped(f'{name}-{name_below}')} (1)", _escaped(said)]
    if context.parent is not None:
        lines += [".SH SEE ALSO", f".BR {_escaped(page_name(context.parent))} (1)"]
    return "\n".join(lines) + "\n"


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\b", "")).strip()


def _escaped(text: str) -> str:
    """Returns text in which roff finds no commands: `\\`, `-`, and dots or quotes that begin a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def write(folder: Path) -> list[Path]:
    """Writes all pages into a folder, which is made; returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for command, context in commands(application, click.Context(application, info_name=PROGRAM)):
        path = folder / f"{page_name(context)}.1"
        path.write_text(page(command, context), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m adamctl.cli.man_pages FOLDER")
    echo(f"wrote {len(write(Path(sys.argv[1])))} pages to {sys.argv[1]}")
