"""What the shell offers for arguments when Tab is pressed: names that are cheap to find; nothing heavy is loaded.

Each function is a `shell_complete` of click: of (context, parameter, what is typed so far) to the words that fit.
Whatever goes wrong, there is nothing to offer: a shell must not show a traceback in the middle of a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
OFFERED_MAX = 500
_RUN_FILE = "experiment.toml"


def completing(words: Callable[[click.Context], Iterable[str]], kind: str = "") -> Complete:
    """Returns a completion by those `words` that begin as what is typed; `kind` `file` or `dir` adds paths."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found: dict[str, None] = {}
        with suppress(Exception):  # what was found so far is offered
            for word in words(context):
                if word.startswith(incomplete) and len(found) < OFFERED_MAX:
                    found[word] = None
        if found or not kind:
            return [CompletionItem(word) for word in found]
        return [CompletionItem(incomplete, type=kind)]

    return complete


def _values(context: click.Context, name: str, default: str) -> tuple[str, ...]:
    """Returns what an option of this command was given as so far."""
    value: Any = context.params.get(name) or default
    return tuple(map(str, value)) if isinstance(value, (tuple, list)) else (str(value),)


def _names_of_runs(context: click.Context) -> Iterator[str]:
    """Yields the names in --run-dir with their newest run, then NAME/NNN of all, and of live runs elsewhere."""
    (base,) = _values(context, "run_dir", "runs")
    named = sorted(path for path in Path(base).iterdir() if path.is_dir()) if Path(base).is_dir() else []
    runs = {path.name: [run.name for run in path.iterdir() if (run / _RUN_FILE).is_file()] for path in named}
    yield from (name for name, numbers in runs.items() if numbers)
    yield from (f"{name}/{number}" for name, numbers in runs.items() for number in sorted(numbers))
    yield from _names_of_live_runs(context)


def _names_of_live_runs(context: click.Context) -> Iterator[str]:
    yield from ("/".join(folder.parts[-2:]) for folder in _folders_of_live_runs())


def _folders_of_live_runs() -> list[Path]:
    """Returns the folders in the notes of runs in progress; one whose front was killed may be among them."""
    named = os.environ.get("ADAMCTL_STATE")
    if named:
        state = Path(named).expanduser()
    else:
        import platformdirs

        state = platformdirs.user_state_path("adamctl", appauthor=False)
    return [Path(json.loads(note.read_bytes())["folder"]) for note in sorted((state / "runs").glob("*.json"))]


def _names_of_formats(context: click.Context) -> list[str]:
    from adamctl.config.formats import formats

    return formats()


def _names_of_data_sets(context: click.Context) -> Iterator[str]:
    """Yields what lies in the folders of data, by name."""
    places = [place for place in os.environ.get("ADAMCTL_DATA", "").split(os.pathsep) if place]
    for folder in (*_values(context, "data", ""), *places):
        if folder and Path(folder).is_dir():
            yield from sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith("."))


def _names_of_sinks(context: click.Context) -> list[str]:
    from adamctl.launch.sinks import SINKS

    return SINKS.names()


def _names_of_known_data_sets(context: click.Context) -> Iterable[str]:
    from adamctl.roles.data.catalogue.catalogue import CATALOGUE

    return CATALOGUE


def _nodes(context: click.Context) -> Iterator[str]:
    """Yields the nodes of a run by its logs; asking a cluster would take too long.

    The run is the one named before, in `--run-dir`, or else all those in progress on this machine.
    """
    (base,), (named,) = _values(context, "run_dir", "runs"), _values(context, "run", "")
    folders = [Path(base) / named, *sorted((Path(base) / named).glob("*"))] if named else _folders_of_live_runs()
    yield from sorted({log.stem for folder in folders for log in (folder / "logs").glob("*.log")})


def _experiments(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers files that end in .toml; paths, as the shell does, where folders fit as well or no such file does."""
    place = Path(incomplete)
    folder, begun = (place, "") if incomplete.endswith("/") else (place.parent, place.name)
    try:
        fitting = [entry for entry in folder.iterdir() if entry.name.startswith(begun) and entry.name[0] != "."]
        found = sorted(str(entry) for entry in fitting if entry.suffix == ".toml")
        if found and not any(entry.is_dir() for entry in fitting):
            return [CompletionItem(name) for name in found[:OFFERED_MAX]]
    except OSError:
        pass
    return [CompletionItem(incomplete, type="file")]


def _resumed(context: click.Context) -> Iterator[str]:
    yield "auto"
    yield from _names_of_runs(context)


runs = completing(_names_of_runs, "dir")
live_runs = completing(_names_of_live_runs)
formats = completing(_names_of_formats)
data_sets = completing(_names_of_data_sets, "file")
experiments: Complete = _experiments
known_data_sets = completing(_names_of_known_data_sets)
resumed = completing(_resumed, "dir")
nodes = completing(_nodes)
sinks = completing(_names_of_sinks)
