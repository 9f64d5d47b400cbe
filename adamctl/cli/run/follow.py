"""`adamctl run follow RUN --to SINK`: hands what a run measures to TensorBoard or another sink while it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo


@click.command("follow")
@click.argument("run", required=False, shell_complete=completing.runs)
@click.option(
    "--to",
    "sink",
    required=True,
    metavar="SINK",
    shell_complete=completing.sinks,
    help="tensorboard, csv, jsonl (to stdout), or one that another package adds.",
)
@click.option(
    "--logdir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for what the sink writes; by default in the run folder, for TensorBoard its folder tensorboard.",
)
@options.runs_option
def command(run: str | None, sink: str, logdir: Path | None, run_dir: str) -> None:
    """Follow the metrics of RUN from its beginning until it ends, and hand them to a sink.

    RUN is a run folder, NAME/NNN, or NAME for its newest run; without it, the run in progress on this machine or the
    newest one. A run that has ended is handed over at once. The run knows nothing of it: this command only reads its
    metrics.jsonl, and Ctrl-C ends the command alone. Steps are training examples; of a batch algorithm, evaluations.
    """
    from adamctl.launch.finding import find_any_run
    from adamctl.launch.following import follow
    from adamctl.launch.live_runs import state_folder
    from adamctl.launch.run_folder import run_name
    from adamctl.launch.sinks.plugins import find, open_sink

    state = state_folder(os.environ)
    kind = find(sink)
    folder = find_any_run(run, Path(run_dir), state)
    name = run_name(folder)
    place = logdir or folder / kind.folder
    opened = open_sink(kind, name, place)
    try:
        count, ended = follow(folder, state, opened)
    finally:
        opened.close()
    how = f"it {ended}" if ended else "it ended without a word"
    echo(f"{name}: {count} measurements handed to {kind.name}; {how}", err=True)
