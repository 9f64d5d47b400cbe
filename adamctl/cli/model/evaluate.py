"""`adamctl eval CHECKPOINT`: the accuracy of a trained model, without any role."""

from __future__ import annotations

from pathlib import Path

import click

from adamctl.cli import options
from adamctl.cli.output import echo, print_json, say_which, table


@click.command("eval")
@click.argument("checkpoint", required=False)
@options.checkpoint_option
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="test", show_default=True)
@options.data_option
@options.runs_option
@options.json_option
def command(checkpoint: str | None, which: str, split: str, data: tuple[str, ...], run_dir: str, as_json: bool) -> None:
    """Measure CHECKPOINT on a split of its data: a checkpoint folder, a run folder, NAME/NNN, or NAME.

    Without CHECKPOINT, uses the newest run in --run-dir that has a checkpoint. Of a run, uses the checkpoint that was
    best on its validation part, or else the last one, and prints which.
    """
    from adamctl.launch.trained import data_of, evaluate, load_trained, open_data
    from adamctl.live.units import share

    trained = load_trained(checkpoint, Path(run_dir), which)
    say_which(trained.checkpoint, trained.chosen)
    result = evaluate(trained, open_data(trained.experiment, data_of(trained.experiment, data)), split)
    if as_json:
        where = {"checkpoint": str(trained.checkpoint), "experiment": trained.experiment.name}
        print_json(where | {"split": split} | result)
        return
    row = (split, f"{result['examples']:,}", f"{result['correct']:,}", share(result["top1"]), f"{result['loss']:.4f}")
    echo(f"{trained.experiment.name}, {trained.checkpoint}")
    echo(table(("split", "examples", "correct", "top-1", "loss"), [row], right=(1, 2, 3, 4)))
