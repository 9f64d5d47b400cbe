"""`adamctl predict CHECKPOINT FILE...`: what a trained model makes of examples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo, print_json, say_which, table
from adamctl.errors import DamagedDataError


@click.command("predict")
@click.argument("checkpoint", shell_complete=completing.runs)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--top", default=3, show_default=True, help="How many classes to show for each example.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values: image, class_1, score_1, ...")
@options.checkpoint_option
@options.processes_options
@options.data_option
@options.runs_option
@options.json_option
def command(
    checkpoint: str,
    files: tuple[str, ...],
    top: int,
    as_csv: bool,
    which: str,
    data: tuple[str, ...],
    run_dir: str,
    as_json: bool,
    partitions: int,
    threads: int | None,
    memory: str | None,
) -> None:
    """Predict FILES with CHECKPOINT: a checkpoint folder, a run folder, NAME/NNN, or NAME.

    FILES are JPEG or PNG images, folders of them, and .npz archives of examples [n, ...]: bytes, or other numbers as
    training would read them; of a model that was trained on sound, WAV and FLAC recordings, and folders of them. Of a
    run, uses the checkpoint that was best on its validation part, or else the last one, and prints which. A model of
    classes gives the best of them with their scores, one that was trained on targets its outputs, numbers. A damaged
    image or recording is left out; its error comes at the end, with exit code 5.

    With --partitions each of so many processes holds a part of the model and no more: for models that one process's
    memory or caches cannot hold. With --csv, rows are printed as they are computed.
    """
    if top < 1:
        raise click.BadParameter("expected at least 1", param_hint="--top")
    if as_csv and as_json:
        raise click.BadParameter("not allowed with --json", param_hint="--csv")
    from adamctl.launch.classify import classify
    from adamctl.launch.prediction.processes import Processes, open_forward
    from adamctl.launch.trained import load_trained
    from adamctl.model.metric import takes_targets

    trained = load_trained(checkpoint, Path(run_dir), which)
    say_which(trained.checkpoint, trained.chosen)
    has_targets, shown = takes_targets(trained.experiment.model), min(top, trained.classes)
    columns = _outputs(trained.classes) if has_targets else _classes(shown)
    damaged: list[DamagedDataError] = []
    with closing(open_forward(trained, Processes(partitions, threads, memory))) as forward:
        predictions = classify(trained, forward, [Path(file) for file in files], data, top, damaged.append)
        if as_csv:
            _print_csv(columns, predictions, damaged)
        else:
            found = list(predictions)
    if as_json:
        problem = {"error": "; ".join(map(str, damaged)), "exit_code": DamagedDataError.exit_code} if damaged else {}
        print_json({"checkpoint": str(trained.checkpoint), "predictions": found, **problem})
    elif not as_csv and (found or not damaged):
        _print_table(
            columns if has_targets else ["image", *(f"{rank}." for rank in range(1, shown + 1))], found, has_targets
        )
    for error in damaged[:-1]:
        echo(f"adamctl: error: {error}", err=True)
    if damaged:
        raise damaged[-1]


def _print_table(columns: Sequence[str], found: Iterable[dict[str, Any]], has_targets: bool) -> None:
    from adamctl.live.units import figure

    rows = []
    for one in found:
        best = (f"{each['class']} {each['score'] * 100:.1f}%" for each in one.get("classes", ()))
        rows.append((one["image"], *(map(figure, one["outputs"]) if has_targets else best)))
    echo(table(columns, rows, right=range(1, len(columns)) if has_targets else ()))


def _outputs(outputs: int) -> list[str]:
    """Returns the names of columns for a model that was trained on targets."""
    return ["image", *(f"output_{number}" for number in range(1, outputs + 1))]


def _classes(shown: int) -> list[str]:
    return ["image", *(f"{name}_{rank}" for rank in range(1, shown + 1) for name in ("class", "score"))]


def _print_csv(columns: Sequence[str], predictions: Iterable[dict[str, Any]], damaged: Sequence[Exception]) -> None:
    """Prints a line for each example as soon as it is computed; no header alone where all of them fail."""
    computed = iter(predictions)
    first = list(islice(computed, 1))
    if damaged and not first:
        return
    echo(_line(*columns), nl=False)
    for one in chain(first, computed):
        values = one.get("outputs") or (each[key] for each in one["classes"] for key in ("class", "score"))
        echo(_line(one["image"], *values), nl=False)


def _line(*values: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
