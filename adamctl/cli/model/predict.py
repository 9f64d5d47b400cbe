"""`adamctl predict CHECKPOINT FILE...`: what a trained model makes of examples."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
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
) -> None:
    """Predict FILES with CHECKPOINT: a checkpoint folder, a run folder, NAME/NNN, or NAME.

    FILES are JPEG or PNG images, folders of them, and .npz archives of examples [n, ...]: bytes, or other numbers as
    training would read them; of a model that was trained on sound, WAV and FLAC recordings, and folders of them. Of a
    run, uses the checkpoint that was best on its validation part, or else the last one, and prints which. A model of
    classes gives the best of them with their scores, one that was trained on targets its outputs, numbers.
    """
    if top < 1:
        raise click.BadParameter("expected at least 1", param_hint="--top")
    if as_csv and as_json:
        raise click.BadParameter("not allowed with --json", param_hint="--csv")
    from adamctl.launch.classify import classify
    from adamctl.launch.trained import load_trained

    trained = load_trained(checkpoint, Path(run_dir), which)
    say_which(trained.checkpoint, trained.chosen)
    predictions = classify(trained, [Path(file) for file in files], data, top)
    shown = min(top, trained.classes)
    if not as_json and predictions and "outputs" in predictions[0]:
        echo(_outputs(predictions, as_csv), nl=not as_csv)
    elif as_json:
        print_json({"checkpoint": str(trained.checkpoint), "predictions": predictions})
    elif as_csv:
        echo(_csv(predictions, shown), nl=False)
    else:
        rows = [
            (prediction["image"], *(f"{each['class']} {each['score'] * 100:.1f}%" for each in prediction["classes"]))
            for prediction in predictions
        ]
        echo(table(("image", *(f"{rank}." for rank in range(1, shown + 1))), rows))


def _outputs(predictions: Sequence[dict[str, Any]], as_csv: bool) -> str:
    """Returns the outputs of a model that was trained on targets."""
    from adamctl.live.units import figure

    columns = ("image", *(f"output_{number}" for number in range(1, len(predictions[0]["outputs"]) + 1)))
    if not as_csv:
        rows = [(one["image"], *map(figure, one["outputs"])) for one in predictions]
        return table(columns, rows, right=range(1, len(columns)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows((one["image"], *one["outputs"]) for one in predictions)
    return text.getvalue()


def _csv(predictions: Sequence[dict[str, Any]], shown: int) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", *(f"{name}_{rank}" for rank in range(1, shown + 1) for name in ("class", "score"))))
    for prediction in predictions:
        writer.writerow(
            (prediction["image"], *(each[key] for each in prediction["classes"] for key in ("class", "score")))
        )
    return text.getvalue()
