"""`adamctl predict CHECKPOINT IMAGE...`: what a trained model takes pictures for."""

from __future__ import annotations

from pathlib import Path

import click

from adamctl.cli import options
from adamctl.cli.output import echo, print_json, table


@click.command("predict")
@click.argument("checkpoint")
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option("--top", default=3, show_default=True, help="How many classes to show for each image.")
@options.data_option
@options.runs_option
@options.json_option
def command(
    checkpoint: str, images: tuple[str, ...], top: int, data: tuple[str, ...], run_dir: str, as_json: bool
) -> None:
    """Classify IMAGES (JPEG or PNG) with CHECKPOINT: a checkpoint folder, a run folder, NAME/NNN, or NAME."""
    if top < 1:
        raise click.BadParameter("expected at least 1", param_hint="--top")
    from adamctl.cli.classify import classify
    from adamctl.launch.trained import load_trained

    trained = load_trained(checkpoint, Path(run_dir))
    predictions = classify(trained, [Path(image) for image in images], data, top)
    if as_json:
        print_json({"checkpoint": str(trained.checkpoint), "predictions": predictions})
        return
    rows = [
        (prediction["image"], *(f"{each['class']} {each['score'] * 100:.1f}%" for each in prediction["classes"]))
        for prediction in predictions
    ]
    header = ("image", *(f"{rank}." for rank in range(1, len(rows[0]))))
    echo(table(header, rows))
