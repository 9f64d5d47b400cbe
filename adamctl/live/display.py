"""Progress in a terminal: a table of figures, a bar and a row per role, redrawn in place by rich."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adamctl.config.names import printable
from adamctl.live.view import ProcessReading, View, view_of
from adamctl.roles.coordinator.progress import RunProgress

_STATE_STYLE = {"failed": "red", "lost": "red", "waiting": "yellow", "starting": "yellow", "ended": "dim"}
BAR_WIDTH_MAX = 60
FULL_WIDTH = 72
"""Columns of a terminal from which on a row of a role begins with its role; its name nearly always says it."""
TWO_COLUMNS_WIDTH = 56
"""From which on figures stand in two columns."""


class RichReporter:
    """Redraws in place on a terminal. rich leaves colours out where NO_COLOR is set."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, markup=False, emoji=False)
        self._live = Live(console=self.console, auto_refresh=False, transient=False)
        self._started = False

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        """Draws the newest progress."""
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(render(view_of(progress, readings), self.console.width), refresh=True)

    def note(self, text: str) -> None:
        """Prints a line above the display."""
        self.console.print(Text(printable(text, keep="\n")))

    def close(self) -> None:
        """Leaves the last picture and gives the terminal back."""
        if self._started:
            self._live.stop()
            self._started = False


def render(view: View, width: int) -> RenderableType:
    """Returns the picture of a view for a terminal of `width` columns."""
    parts: list[RenderableType] = [
        Text(view.title, style="bold cyan"),
        _bar(view.share, min(BAR_WIDTH_MAX, width - len(" 100%"))),
        _figures(view, 2 if width >= TWO_COLUMNS_WIDTH else 1),
    ]
    if view.roles:
        parts += [Text(), _roles(view, with_role=width >= FULL_WIDTH)]
    if view.messages:
        parts += [Text(), *(Text(message, style="yellow") for message in view.messages)]
    return Group(*parts)


def _bar(share: float, width: int) -> Table:
    line = Table.grid()
    line.add_row(ProgressBar(total=1.0, completed=share, width=max(width, 1)), Text(f" {share * 100:.0f}%"))
    return line


def _figures(view: View, columns: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2 * columns):
        table.add_column(no_wrap=True)
    rows = -(-len(view.facts) // columns)
    for row in range(rows):
        cells: list[Text] = []
        for label, value in view.facts[row::rows]:
            cells += [Text(label, style="dim"), Text(value, style="bold")]
        table.add_row(*cells)
    return table


def _roles(view: View, *, with_role: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in (*(("role",) if with_role else ()), "node", "state", "cpu", "memory", "done so far"):
        table.add_column(column, justify="right" if column in ("cpu", "memory") else "left", no_wrap=True)
    for line in view.roles:
        state = Text(line.state, style=_STATE_STYLE.get(line.state, "green"))
        first = (line.role, line.node) if with_role else (line.node,)
        table.add_row(*map(Text, first), state, *map(Text, (line.cpu, line.memory, line.detail)))
    return table
