"""`adamctl eval CHECKPOINT`: how good a trained model is, without any role."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo, print_json, say_which, table
from adamctl.cli.path_types import Picture


@click.command("eval")
@click.argument("checkpoint", required=False, shell_complete=completing.runs)
@options.checkpoint_option
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="test", show_default=True)
@click.option("--confusion", is_flag=True, help="Add the confusion matrix, precision, recall and F1.")
@click.option(
    "--confusion-picture",
    "picture",
    type=Picture(),
    metavar="FILE",
    help="Write a picture of the confusion matrix: .svg, .png, .pdf.",
)
@options.processes_options
@options.data_option
@options.runs_option
@options.json_option
def command(
    checkpoint: str | None,
    which: str,
    split: str,
    confusion: bool,
    picture: Path | None,
    data: tuple[str, ...],
    run_dir: str,
    as_json: bool,
    partitions: int,
    threads: int | None,
    memory: str | None,
) -> None:
    """Measure CHECKPOINT on a split of its data: a checkpoint folder, a run folder, NAME/NNN, or NAME.

    Without CHECKPOINT, uses the newest run in --run-dir that has a checkpoint. Of a run, uses the checkpoint that was
    best on its validation part, or else the last one, and prints which. With more than five classes, top-5 is measured
    too; where examples come in groups of one label, such as the frames of a recording, so is top-1 by group. A model
    that was trained on targets has the metric of its loss in their place. --confusion also shows balanced accuracy, the
    mean recall of the classes. Where the confusion matrix is wider than the terminal, the ten pairs of classes confused
    most are shown, and of many classes those with the lowest recall; --json has all. With --partitions each of so many
    processes holds a part of the model and no more.
    """
    from adamctl.cli.model import confusion as matrix
    from adamctl.launch.metrics import Confusion
    from adamctl.launch.prediction.processes import Processes, open_forward
    from adamctl.launch.trained import data_of, evaluate, load_trained, open_data
    from adamctl.live.units import measured, share

    trained = load_trained(checkpoint, Path(run_dir), which)
    say_which(trained.checkpoint, trained.chosen)
    opened = open_data(trained.experiment, data_of(trained.experiment, data))
    counts = Confusion(trained.classes) if confusion or picture else None
    with closing(open_forward(trained, Processes(partitions, threads, memory))) as forward:
        result = evaluate(trained, forward, opened, split, counts)
    if picture and counts is not None:
        matrix.draw(counts, opened.classes, f"{trained.experiment.name}, {split}", picture)
        echo(f"wrote {picture}", err=True)
    if as_json:
        where = {"checkpoint": str(trained.checkpoint), "experiment": trained.experiment.name}
        detail = {} if counts is None or not confusion else {"confusion": matrix.as_json(counts, opened.classes)}
        print_json(where | {"split": split} | result | detail)
        return
    correct = {} if result["correct"] is None else {"correct": f"{result['correct']:,}"}
    top5 = {} if result["top5"] is None else {"top-5": share(result["top5"])}
    row = {"split": split, "examples": f"{result['examples']:,}"} | correct
    groups = result["by_group"]
    by_group = {} if groups is None else {"groups": f"{groups['groups']:,}", "by group": share(groups["top1"])}
    row |= {result["metric"]: measured(result["metric"], result["metric_value"])} | top5 | by_group
    row |= {"loss": f"{result['loss']:.4f}"}
    echo(f"{trained.experiment.name}, {trained.checkpoint}")
    echo(table(tuple(row), [tuple(row.values())], right=range(1, len(row))))
    if result["skipped"]:
        echo(f"damaged and skipped, besides these: {result['skipped']:,}")
    if confusion and counts is not None:
        echo("\n" + matrix.as_tables(counts, opened.classes, shutil.get_terminal_size().columns))
