"""Takes a picture of the live view: `python -m adamctl.cli.run.picture examples/mnist.toml docs/live.svg`.

Trains the experiment as `adamctl train` does, keeps what the view shows at `--at`, ends the run and writes the picture
as SVG.
"""

from __future__ import annotations

import io
import os
import re
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from adamctl.cli import options
from adamctl.errors import RunFailedError
from adamctl.live.reading import ProcessReading
from adamctl.live.view import View, view_of
from adamctl.roles.coordinator.core.progress import RunProgress

LINES = 40
_FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}\n?", re.DOTALL)
"""rich's template loads a font from another host; the picture does not."""


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

    loaded = options.load(experiment, settings, data, flags)
    photographer = Photographer(at)
    with tempfile.TemporaryDirectory() as runs:
        outcome, _ = train(
            loaded.experiment, TrainOptions((), "none", Path(runs), os.environ, readings=True), photographer
        )
    if photographer.view is None:
        raise RunFailedError(outcome.message or f"the run ended before {at:.0%} of it was done")
    picture.write_text(draw(photographer.view, f"adamctl train {experiment}", columns))


class Photographer:
    """A reporter that keeps one view of a run and then interrupts it, as Ctrl-C would."""

    def __init__(self, at: float) -> None:
        """`at` is the share of the run, 0 to 1, at which to take the picture."""
        self.view: View | None = None
        self._at = at

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        """Keeps the view once the run is far enough."""
        if self.view is None and progress.progress >= self._at and not progress.final:
            self.view = view_of(progress, readings)
            os.kill(os.getpid(), signal.SIGINT)

    def note(self, text: str) -> None:
        """Does nothing: notes are not in the picture."""

    def close(self) -> None:
        """Nothing to undo."""


def draw(view: View, title: str, columns: int) -> str:
    """Returns the picture of a view in a terminal of `columns` columns, as SVG."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console

    from adamctl.live.display import render

    console = Console(
        file=io.StringIO(), record=True, width=columns, force_terminal=True, color_system="truecolor", no_color=False
    )
    console.print(render(view, columns, LINES))
    return console.export_svg(title=title, code_format=_FONT_FACE.sub("", CONSOLE_SVG_FORMAT))


if __name__ == "__main__":
    main()
