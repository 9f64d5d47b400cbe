"""`adamctl run list|show|rm`: the runs of this machine."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo, print_json, table
from adamctl.config.names import printable

if TYPE_CHECKING:
    from adamctl.launch.known_runs import KnownRun

_COLUMNS = ("run", "state", "pass", "metric", "best", "checkpoints", "size", "began")


@click.command("list")
@options.runs_option
@options.json_option
def list_(run_dir: str, as_json: bool) -> None:
    """Show the runs in --run-dir, and those in progress elsewhere on this machine, each with its state.

    The states are those of the live view, and: ended, stopped (by a signal or by run stop), failed (with a reason) and
    crashed (ended without a report: killed, or the machine went down).
    """
    from adamctl.launch.known_runs import known_runs
    from adamctl.launch.live_runs import state_folder

    runs = known_runs(Path(run_dir), state_folder(os.environ))
    if as_json:
        print_json({"runs": [run.described() for run in runs]})
    elif not runs:
        echo(f"no runs in {run_dir}, and none in progress on this machine")
    else:
        echo(table(_COLUMNS, [_row(run, Path(run_dir)) for run in runs], right=(2, 3, 4, 5, 6)))


def _row(run: KnownRun, base: Path) -> tuple[str, ...]:
    from adamctl.live.units import measured, size

    return (
        run.name if run.folder.absolute().parents[1] == base.absolute() else str(run.folder),
        run.state,
        "-" if run.passes is None else f"{run.passes:.2f}",
        "-" if run.metric_value is None else printable(f"{run.metric} {measured(run.metric, run.metric_value)}"),
        measured(run.metric, run.best_metric_value),
        str(run.checkpoints),
        size(run.size_bytes),
        _when(run),
    )


def _when(run: KnownRun) -> str:
    return datetime.fromtimestamp(run.started_at).astimezone().isoformat(" ", "seconds")


@click.command("show")
@click.argument("run", required=False, shell_complete=completing.runs)
@options.runs_option
@options.json_option
def show(run: str | None, run_dir: str, as_json: bool) -> None:
    """Show the state of RUN, or how it ended: a run folder, NAME/NNN, or NAME for its newest run.

    Without RUN, shows the run in progress on this machine, or the newest one in --run-dir.
    """
    from adamctl.launch.finding import find_any_run
    from adamctl.launch.known_runs import look_at
    from adamctl.launch.live_runs import state_folder
    from adamctl.live.batch import batch_closing
    from adamctl.live.units import measured, size

    state = state_folder(os.environ)
    found = look_at(find_any_run(run, Path(run_dir), state), state)
    if as_json:
        print_json(found.described())
        return
    value, best = (measured(found.metric, number) for number in (found.metric_value, found.best_metric_value))
    stores = f", {size(found.stores_bytes)} of them parameter servers' stores" if found.stores_bytes else ""
    lines = [
        ("state", f"{found.state}{', in progress' if found.live else ''}"),
        ("why", found.failure),
        ("pass", "" if found.passes is None else f"{found.passes:.2f}"),
        (printable(found.metric), "" if found.metric_value is None else f"{value}, best {best}"),
        *(batch_closing(found.batch) if found.batch is not None else ()),
        ("checkpoints", str(found.checkpoints)),
        ("size", f"{size(found.size_bytes)}{stores}"),
        ("began", _when(found)),
        ("run folder", str(found.folder)),
    ]
    echo(found.name)
    for label, text in lines:
        if text:
            echo(f"  {label:<14} {text}")


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, shell_complete=completing.runs)
@click.option("--stores", is_flag=True, help="Remove only parameter servers' stores; checkpoints and records stay.")
@options.runs_option
@options.json_option
def rm(runs: tuple[str, ...], stores: bool, run_dir: str, as_json: bool) -> None:
    """Remove RUNS, each a run folder or NAME/NNN, with their checkpoints; a run in progress is refused."""
    from adamctl.launch.finding import find_exact_run
    from adamctl.launch.known_runs import remove_run
    from adamctl.launch.live_runs import state_folder
    from adamctl.live.units import size

    folders = [find_exact_run(run, Path(run_dir)) for run in runs]
    removed = {}
    for folder in folders:
        removed[str(folder)] = remove_run(folder, state_folder(os.environ), Path(run_dir), only_stores=stores)
        if not as_json:
            echo(f"removed {folder}{' (stores)' if stores else ''}, {size(removed[str(folder)])} freed")
    if as_json:
        print_json({"removed": [{"run_folder": folder, "freed_bytes": freed} for folder, freed in removed.items()]})
