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
    classes gives the best of them with their scores, one that was trained on targets its outputs, numbers.

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
    from adamctl.live.units import figure
    from adamctl.model.metric import takes_targets

    trained = load_trained(checkpoint, Path(run_dir), which)
    say_which(trained.checkpoint, trained.chosen)
    has_targets, shown = takes_targets(trained.experiment.model), min(top, trained.classes)
    columns = _outputs(trained.classes) if has_targets else _classes(shown)
    with closing(open_forward(trained, Processes(partitions, threads, memory))) as forward:
        predictions = classify(trained, forward, [Path(file) for file in files], data, top)
        if as_csv:
            _print_csv(columns, predictions)
            return
        found = list(predictions)
    if as_json:
        print_json({"checkpoint": str(trained.checkpoint), "predictions": found})
    elif has_targets:
        rows = [(one["image"], *map(figure, one["outputs"])) for one in found]
        echo(table(columns, rows, right=range(1, len(columns))))
    else:
        rows = [
            (prediction["image"], *(f"{each['class']} {each['score'] * 100:.1f}%" for each in prediction["classes"]))
            for prediction in found
        ]
        echo(table(("image", *(f"{rank}." for rank in range(1, shown + 1))), rows))


def _outputs(outputs: int) -> list[str]:
    """Returns the names of columns for a model that was trained on targets."""
    return ["image", *(f"output_{number}" for number in range(1, outputs + 1))]


def _classes(shown: int) -> list[str]:
    return ["image", *(f"{name}_{rank}" for rank in range(1, shown + 1) for name in ("class", "score"))]


def _print_csv(columns: Sequence[str], predictions: Iterable[dict[str, Any]]) -> None:
    """Prints a line for each example as soon as it is computed; no header alone where the first one fails."""
    computed = iter(predictions)
    first = list(islice(computed, 1))
    echo(_line(*columns), nl=False)
    for one in chain(first, computed):
        values = one.get("outputs") or (each[key] for each in one["classes"] for key in ("class", "score"))
        echo(_line(one["image"], *values), nl=False)


def _line(*values: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
