"""`adamctl logs RUN`: what the roles of a run wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from adamctl.cli import options
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError

_FOLLOW_INTERVAL_S = 0.2
_PIECE_BYTES = 1 << 20


@click.command("logs")
@click.argument("run")
@click.option("--role", help="Only this role (worker) or this process (worker-1).")
@click.option("--follow", "-f", is_flag=True, help="Go on printing what is added; end with Ctrl-C.")
@options.runs_option
def command(run: str, role: str | None, follow: bool, run_dir: str) -> None:
    """Print the logs of RUN: a run folder, NAME/NNN, or NAME for its newest run."""
    from adamctl.launch.run_folder import LOGS, find_run

    folder = find_run(run, Path(run_dir)) / LOGS
    files = _chosen(folder, role)
    positions = dict.fromkeys(files, 0)
    for line in _new_lines(positions, complete=not follow):
        echo(line)
    while follow:
        time.sleep(_FOLLOW_INTERVAL_S)
        for file in _chosen(folder, role):
            positions.setdefault(file, 0)
        for line in _new_lines(positions, complete=False):
            echo(line)


def _chosen(folder: Path, role: str | None) -> list[Path]:
    files = sorted(folder.glob("*.log"))
    chosen = [file for file in files if role is None or file.stem == role or file.stem.rpartition("-")[0] == role]
    if not chosen:
        names = ", ".join(file.stem for file in files) or "none"
        wanted = f"of {role!r} " if role else ""
        raise ConfigurationError(f"no log {wanted}in {folder}; there are: {names}")
    return chosen


def _new_lines(positions: dict[Path, int], *, complete: bool) -> Iterator[str]:
    """Yields `node | line` for what was added; an unfinished last line only with `complete`. Moves the positions."""
    width = max(len(file.stem) for file in positions)
    for file, position in list(positions.items()):
        with file.open("rb") as stream:
            stream.seek(position)
            rest = b""
            while piece := stream.read(_PIECE_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield f"{file.stem:<{width}} | {line.decode(errors='replace')}"
            positions[file] = stream.tell() - len(rest)
        if rest and complete:
            yield f"{file.stem:<{width}} | {rest.decode(errors='replace')}"
