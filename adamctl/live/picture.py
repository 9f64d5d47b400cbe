"""Takes a picture of a run's live view as SVG, for the command `adamctl.cli.run.picture`."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Mapping

from adamctl.live.view import ProcessReading, View, view_of
from adamctl.roles.coordinator.core.progress import RunProgress

LINES = 40
_FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}\n?", re.DOTALL)
"""rich's template loads a font from another host; the picture does not."""


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
