"""Progress without a terminal: a line every ten seconds and one per evaluation, no control codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from adamctl.config.names import in_short, printable
from adamctl.live.reading import ProcessReading
from adamctl.live.view import MESSAGE_CHARACTERS_MAX, evaluation_line, progress_line
from adamctl.roles.coordinator.core.progress import RunProgress

LINE_INTERVAL_S = 10.0


class PlainReporter:
    """Writes lines through `write`; `clock` gives seconds. Used from one thread."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write_line = write
        self._clock = clock
        self._last_line_s: float | None = None
        self._evaluations_shown = 0
        self._messages_shown: tuple[str, ...] = ()
        self._state = ""

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        """Takes the newest progress; writes what is due."""
        for result in progress.evaluations[self._evaluations_shown :]:
            self._write(evaluation_line(progress.job, result))
        self._evaluations_shown = max(self._evaluations_shown, len(progress.evaluations))
        for message in progress.messages:
            if message not in self._messages_shown:
                self._write(in_short(f"{progress.job}: {message}", MESSAGE_CHARACTERS_MAX))
        self._messages_shown = progress.messages
        now_s = self._clock()
        due = self._last_line_s is None or now_s - self._last_line_s >= LINE_INTERVAL_S
        if due or (progress.state != self._state and progress.state in ("training", "finishing")):
            self._write(progress_line(progress))
            self._last_line_s = now_s
        self._state = progress.state

    def _write(self, text: str) -> None:
        self._write_line(printable(text, keep="\n"))

    def note(self, text: str) -> None:
        """Writes one line at once."""
        self._write(text)

    def close(self) -> None:
        """Nothing to undo."""
