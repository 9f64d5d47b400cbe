"""`adamctl data sample EXP.toml --out picture.png`: training images as passes train on them."""

from __future__ import annotations

from pathlib import Path

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo, print_json
from adamctl.errors import ConfigurationError

COUNT = click.IntRange(min=1)


@click.command("sample")
@click.argument("experiment", metavar="EXP.toml", type=click.Path(), shell_complete=completing.experiments)
@options.data_option
@options.set_option
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The picture: a .png file.")
@click.option("--examples", type=COUNT, default=10, show_default=True, help="Rows: training examples.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--passes", type=COUNT, default=10, show_default=True, help="Columns: passes.")
@options.json_option
def sample(
    experiment: str, data: tuple[str, ...], settings: tuple[str, ...], out: Path, examples: int, first: int,
    passes: int, as_json: bool,
) -> None:  # fmt: skip
    """Draw a sheet of training images: as they are in their files, then as each pass of EXP.toml trains on them."""
    loaded = options.load(experiment, settings, data, {}).experiment
    from adamctl.roles.data.catalogue.catalogue import find_source
    from adamctl.roles.data.describe.sample import sheet, variants
    from adamctl.roles.data.readers import open_source
    from adamctl.roles.data.sets.open_data_set import OpenDataSet

    source = open_source(loaded.data, find_source(loaded.data), loaded.model.input)
    dataset = OpenDataSet("sample", loaded.data, source, loaded.seed, budget_bytes=0)
    shown = variants(dataset, first, examples, passes)
    picture = sheet(shown, dataset.classes)
    try:
        picture.save(out)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--out {out}: {error}") from error
    if as_json:
        print_json({"out": str(out), "examples": examples, "passes": passes, "size": list(picture.size)})
        return
    echo(f"{out}: {examples} training images, as in their files and in {passes} passes")
