"""Takes a picture of the live view: `python -m adamctl.cli.run.picture examples/mnist.toml docs/live.svg`.

Trains the experiment as `adamctl train` does, keeps what the view shows at `--at`, ends the run and writes the picture
as SVG.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from adamctl.cli import options
from adamctl.errors import RunFailedError


@click.command()
@options.experiment_options
@click.argument("picture", metavar="OUT.svg", type=click.Path(path_type=Path))
@click.option("--at", default=0.6, show_default=True, help="Share of the run at which to take the picture.")
@click.option("--columns", default=80, show_default=True, help="Width of the terminal in the picture.")
def main(
    experiment: str, settings: tuple[str, ...], data: tuple[str, ...], picture: Path, at: float, columns: int,
    **flags: object,
) -> None:  # fmt: skip
    """Train EXP.toml for a while and write what the live view shows to OUT.svg."""
    from adamctl.launch.train import TrainOptions, train
    from adamctl.live.picture import Photographer, draw

    loaded = options.load(experiment, settings, data, flags)
    photographer = Photographer(at)
    with tempfile.TemporaryDirectory() as runs:
        outcome, _ = train(
            loaded.experiment, TrainOptions((), "none", Path(runs), os.environ, readings=True), photographer
        )
    if photographer.view is None:
        raise RunFailedError(outcome.message or f"the run ended before {at:.0%} of it was done")
    picture.write_text(draw(photographer.view, f"adamctl train {experiment}", columns))


if __name__ == "__main__":
    main()
