"""`adamctl bench figures`: figures of the papers, measured at the sizes that fit here, and planned beyond."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.output import echo, print_json, table
from adamctl.cli.path_types import Picture

_OLD_REPORT = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("figures")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "lists", is_flag=True, help="Only list the figures, and how long each takes.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="figures",
    show_default=True,
    help="Where each figure keeps its finished rounds, its picture and its report. One that was interrupted goes on.",
)
@click.option(
    "--from", "found", multiple=True, type=_OLD_REPORT, metavar="FILE",
    help="Take the rounds of this report of --json: draw its figures again, or go on with them; repeatable.",
)  # fmt: skip
@click.option("--output", type=Picture(), metavar="FILE", help="Write the picture here, too: .svg, .png, .pdf.")
@click.option(
    "--search", "searches", is_flag=True,
    help="Choose rates again, on a validation part: of distbelief-4, distbelief-5 and adam-table-1.",
)  # fmt: skip
@click.option("--quick", "is_quick", is_flag=True, help="A tiny size, for trying: the numbers mean nothing.")
@options.data_option
@options.json_option
def figures(
    names: tuple[str, ...], lists: bool, folder: Path, found: tuple[Path, ...], output: Path | None, searches: bool,
    is_quick: bool, data: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Repeat figures of the papers: what is measured here, what is planned beyond, and what the paper's text says.

    A figure takes up to an hour. Machines are emulated, as processes with shares of a core, and some with links of
    their own; the words below each picture say how. A bar that is missed is told, and is no failure of the command.
    """
    if lists:
        _list(as_json)
        return
    from adamctl.bench import namespaces
    from adamctl.bench.figures.figures import Asked, NotInsideError, run_figures
    from adamctl.bench.figures.session import FigureSettings
    from adamctl.config.load import data_folders

    settings = FigureSettings((*data, *data_folders(os.environ)), is_quick, searches)
    asked = Asked(names, folder, settings, found, output)
    try:
        report = run_figures(asked, lambda line: echo(line, err=True))
    except NotInsideError:
        namespaces.go_inside(sys.argv[1:])
    if as_json:
        print_json(report)
        return
    for one in report["results"]:
        _print(one)


def _list(as_json: bool) -> None:
    from adamctl.bench.figures.parts import PARTS

    if as_json:
        rows = {name: {"title": part.title, "minutes": part.minutes} for name, part in PARTS.items()}
        print_json({"figures": rows})
        return
    shown = [(name, f"{part.minutes:g}", part.title) for name, part in PARTS.items()]
    echo(table(["figure", "minutes", "what it shows"], shown, right=[1]))


def _print(one: dict[str, Any]) -> None:
    """Prints a figure's tables, bars and sentences."""
    from adamctl.bench.figures.figure import Judged, Table
    from adamctl.bench.figures.picture import QUICK, said_of_bar, text_of

    echo(f"{one['name']}: {one['title']}")
    for shown in one["tables"]:
        echo(f"\n{shown['title']}" if shown["title"] else "")
        echo(text_of(Table(tuple(shown["columns"]), tuple(map(tuple, shown["rows"])))))
    echo()
    for bar in one["bars"]:
        echo(said_of_bar(Judged(**bar)))
    for sentence in (*([f"{QUICK}."] if one["quick"] else []), *one["sentences"]):
        echo(sentence)
    echo()
