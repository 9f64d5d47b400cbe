"""Progress in a terminal: a table of figures, a bar and a row per role, redrawn in place by rich."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adamctl.config.names import printable
from adamctl.live.reading import ProcessReading
from adamctl.live.replicas import MemberLine
from adamctl.live.view import RoleLine, View, fold, view_of
from adamctl.roles.coordinator.core.progress import RunProgress

_STATE_STYLE = {
    "failed": "red",
    "lost": "red",
    "degraded": "red",
    "mixed": "yellow",
    "waiting": "yellow",
    "starting": "yellow",
    "ended": "dim",
}
BAR_WIDTH_MAX = 60
FULL_WIDTH = 72
"""Narrowest terminal, in columns, that shows a role's row with the role; its name nearly always tells it."""
TWO_COLUMNS_WIDTH = 56
"""Narrowest terminal that shows figures in two columns."""
HOST_WIDTH = 100
"""Narrowest terminal that shows the host of a partition."""
HEAD_ROWS = 2
"""A blank line, and a table's header."""
ROWS_MIN = 3
"""Fewest rows of roles: in a terminal too low for them, the top of the picture is cut off."""
BEGIN_SYNCHRONISED, END_SYNCHRONISED = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that support these show everything between them at once; others ignore them."""
SHOW_CURSOR = "\x1b[?25h"
CLEAR_SCREEN = "\x1b[H\x1b[J"


class RichReporter:
    """Redraws in place on a terminal. rich leaves colours out where NO_COLOR is set.

    While it draws, Ctrl-Z first restores the cursor, and after `fg` a new picture starts below.
    """

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, markup=False, emoji=False)
        self._live = self._new()
        self._started = False
        self._size = (0, 0)

    def _new(self) -> Live:
        return Live(console=self.console, auto_refresh=False, transient=False)

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        """Draws the newest progress."""
        size = (self.console.width, self.console.height)
        if self._started and size != self._size:  # the terminal has moved the lines to unknown places
            self._end()
            self._write(CLEAR_SCREEN)
        if not self._started:
            self._live = self._new()
            self._started, self._size = True, size  # before the start, which hides the cursor and may be interrupted
            self._live.start()
            self._on_stop(self._stopped)
        self._write(BEGIN_SYNCHRONISED)
        try:
            self._live.update(render(view_of(progress, readings), *size), refresh=True)
        finally:
            self._write(END_SYNCHRONISED)

    def note(self, text: str) -> None:
        """Prints a line above the display."""
        self.console.print(Text(printable(text, keep="\n")))

    def close(self) -> None:
        """Leaves the last picture and restores the terminal."""
        if self._started:
            self._end()
            self._on_stop(signal.SIG_DFL)

    def _end(self) -> None:
        self._started = False
        try:
            self._live.stop()
        finally:
            self._write(SHOW_CURSOR)

    def _write(self, text: str) -> None:
        self.console.file.write(text)
        self.console.file.flush()

    def _on_stop(self, action: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTSTP, action)

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the terminal is the shell's until `fg`."""
        if self._started:
            self._end()
        self._on_stop(signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)


def render(view: View, width: int, height: int) -> RenderableType:
    """Returns the picture of a view for a terminal of `width` columns and `height` lines, news above the roles."""
    columns = 2 if width >= TWO_COLUMNS_WIDTH else 1
    parts: list[RenderableType] = [
        Text(view.title, style="bold cyan"),
        _bar(view.share, min(BAR_WIDTH_MAX, width - len(" 100%"))),
        _figures(view, columns),
        *(Text(message, style="yellow") for message in view.messages),
    ]
    taken = 2 + -(-len(view.facts) // columns) + sum(-(-len(message) // width) for message in view.messages)
    left = height - taken - 1  # the cursor's line
    if view.replicas:
        above = HEAD_ROWS + (len(view.roles) > 0) * (HEAD_ROWS + min(len(view.roles), ROWS_MIN))
        below = [(name, text) for name, text in (("cut  ", view.cut), ("even ", view.proposed)) if text]
        members = view.members(max(left - above - len(below), ROWS_MIN))
        left -= HEAD_ROWS + len(members) + len(below)
        replicas: list[RenderableType] = [Text(), _members(members, width)]
        for name, text in below:
            replicas.append(Text.assemble((name, "dim"), text, no_wrap=True, overflow="ellipsis"))
    if view.roles:
        parts += [Text(), _roles(fold(view.roles, max(left - HEAD_ROWS, ROWS_MIN)), with_role=width >= FULL_WIDTH)]
    return Group(*parts, *(replicas if view.replicas else ()))


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


def _roles(roles: Sequence[RoleLine], *, with_role: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in (*(("role",) if with_role else ()), "node", "state", "cpu", "memory", "done so far"):
        table.add_column(column, justify="right" if column in ("cpu", "memory") else "left", no_wrap=True)
    for line in roles:
        state = Text(line.state, style=_STATE_STYLE.get(line.state, "green"))
        first = (line.role, line.node) if with_role else (line.node,)
        table.add_row(*map(Text, first), state, *map(Text, (line.cpu, line.memory, line.detail)))
    return table


def _members(lines: Sequence[MemberLine], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    left_out = {*(() if width >= HOST_WIDTH else ("host",)), *(() if width >= FULL_WIDTH else ("cpu", "memory"))}
    columns = [column for column in MEMBER_COLUMNS if column not in left_out]
    for column in columns:
        table.add_column(column, justify="right" if column in MEMBER_NUMBERS else "left", no_wrap=True)
    for line in lines:
        styles = {
            "state": _STATE_STYLE.get(line.state, "green"),
            "waits": "bold yellow" if line.slow else "",
        }
        table.add_row(*(Text(getattr(line, column), style=styles.get(column, "")) for column in columns))
    return table


MEMBER_COLUMNS = ("replica", "part", "node", "host", "state", "cpu", "memory", "flights", "waits")
MEMBER_NUMBERS = frozenset({"part", "cpu", "memory", "flights"})
