"""Progress in a terminal: a table of figures, a bar and a row per role, redrawn in place by rich."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adamctl.live.view import ProcessReading, View, view_of
from adamctl.roles.coordinator.progress import RunProgress

_STATE_STYLE = {"failed": "red", "lost": "red", "waiting": "yellow", "ended": "dim"}
_COLUMNS = ("role", "node", "state", "cpu", "memory", "what it does")


class RichReporter:
    """Redraws in place on a terminal. rich leaves colours out where NO_COLOR is set."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream)
        self._live = Live(console=self.console, auto_refresh=False, transient=False)
        self._started = False

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        """Draws the newest progress."""
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(render(view_of(progress, readings)), refresh=True)

    def note(self, text: str) -> None:
        """Prints a line above the display."""
        self.console.print(Text(text))

    def close(self) -> None:
        """Leaves the last picture and gives the terminal back."""
        if self._started:
            self._live.stop()
            self._started = False


def render(view: View) -> RenderableType:
    """Returns the picture of a view."""
    figures = Table.grid(padding=(0, 2))
    for _ in range(4):
        figures.add_column(no_wrap=True)
    half = (len(view.facts) + 1) // 2
    for row in range(half):
        cells: list[Text] = []
        for label, value in (view.facts[row], *view.facts[row + half : row + half + 1]):
            cells += [Text(label, style="dim"), Text(value, style="bold")]
        figures.add_row(*cells)
    parts: list[RenderableType] = [
        Text(view.title, style="bold cyan"),
        _bar(view.share),
        figures,
    ]
    if view.roles:
        parts.append(_roles(view))
    parts.extend(Text(message, style="yellow") for message in view.messages)
    return Group(*parts)


def _bar(share: float) -> Table:
    line = Table.grid()
    line.add_row(ProgressBar(total=1.0, completed=share, width=60), Text(f" {share * 100:.0f}%"))
    return line


def _roles(view: View) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("cpu", "memory") else "left", no_wrap=True)
    for line in view.roles:
        state = Text(line.state, style=_STATE_STYLE.get(line.state, "green"))
        table.add_row(line.role, line.node, state, line.cpu, line.memory, line.detail)
    return table
