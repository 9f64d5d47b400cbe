"""`adamctl logs RUN`: the logs of a run's roles, in order of time."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError

_FOLLOW_INTERVAL_S = 0.2
_FETCH_EVERY_S = 2.0
"""How often the ends of logs on other hosts are asked for."""
_SILENT_S = 10.0
"""Seconds without a new line after which a run without a summary and without a note counts as over."""


@click.command("logs")
@click.argument("run", required=False, shell_complete=completing.runs)
@click.option("--role", shell_complete=completing.nodes, help="Only this role (worker) or this process (worker-1).")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until the run ends or Ctrl-C.")
@options.runs_option
def command(run: str | None, role: str | None, follow: bool, run_dir: str) -> None:
    """Print the logs of RUN in order of time: a run folder, NAME/NNN, or NAME for its newest run.

    Without RUN, uses the run in progress on this machine, or the newest one in --run-dir. Of a live run on many hosts,
    whose logs stay on the hosts, it shows the last lines, and with --follow what is added to them.
    """
    from tempfile import TemporaryDirectory

    from adamctl.launch.finding import find_any_run
    from adamctl.launch.live_runs import state_folder
    from adamctl.launch.run_folder import LOGS

    state = state_folder(os.environ)
    folder = find_any_run(run, Path(run_dir), state)
    with TemporaryDirectory(prefix="adamctl-logs-") as fetched:
        places = [folder / LOGS, *sorted(folder.glob(f"hosts/*/{LOGS}")), Path(fetched)]
        remote = _Remote(folder, state, Path(fetched), {file.stem for place in places for file in place.glob("*.log")})
        remote.fetch()
        merged = Merged(places, role)
        for line in merged.added(complete=not follow):
            echo(line)
        while follow:
            over = _is_over(folder, state, merged.silent_s)
            time.sleep(0.0 if over else _FOLLOW_INTERVAL_S)
            remote.fetch(again=True)
            for line in merged.added(complete=over):
                echo(line)
            if over:
                return


class _Remote:
    """The logs of a live run that lie on other hosts; those of a run that is over stay there."""

    def __init__(self, folder: Path, state: Path, fetched: Path, here: set[str]) -> None:
        from adamctl.launch.hosts.tails import Tails
        from adamctl.launch.live_runs import live_runs

        self._front = next((run.front for run in live_runs(state) if run.front and run.lies_in(folder)), ())
        self._folder, self._tails, self._asked_s = folder, Tails(fetched, here), float("-inf")

    def fetch(self, again: bool = False) -> None:
        """Fetches them; `again`: only if the last time was some seconds ago. Says what does not answer, once."""
        from adamctl.errors import AdamctlError
        from adamctl.launch.run_certificates import front_transport
        from adamctl.launch.run_token import read_token
        from adamctl.net import loop

        if not self._front or (again and time.monotonic() - self._asked_s < _FETCH_EVERY_S):
            return
        self._asked_s = time.monotonic()

        async def ask() -> None:
            await self._tails.fetch(front_transport(self._folder), self._front[0], read_token(self._folder))

        try:
            loop.run(ask())
        except AdamctlError as error:
            if not again:
                echo(f"logs of other hosts cannot be fetched: {error}", err=True)
            return
        for node, problem in self._tails.problems.items() if not again else ():
            echo(f"the log of {node} cannot be fetched: {problem}", err=True)


def _is_over(folder: Path, state: Path, silent_s: float) -> bool:
    """Returns whether no more lines will come. A run without a note here may run elsewhere, with no summary yet."""
    from adamctl.launch.live_runs import is_live
    from adamctl.roles.coordinator.records import SUMMARY_NAME

    return not is_live(folder, state) and ((folder / SUMMARY_NAME).is_file() or silent_s > _SILENT_S)


class Merged:
    """The merged logs of a run: `node | line`, ordered by the time at the start of each record."""

    def __init__(self, folders: Sequence[Path], role: str | None) -> None:
        """`folders` hold the logs, the run folder's own first. Raises ConfigurationError if there is no such log."""
        self._folders, self._role = folders, role
        self._positions: dict[Path, int] = {}
        self._last: dict[Path, str] = {}
        self._heard_s = time.monotonic()
        if not self._files():
            names = ", ".join(sorted(file.stem for folder in folders for file in folder.glob("*.log"))) or "none"
            raise ConfigurationError(f"no log {f'of {role!r} ' if role else ''}in {folders[0]}; logs there: {names}")

    @property
    def silent_s(self) -> float:
        """Seconds since the last line came."""
        return time.monotonic() - self._heard_s

    def added(self, *, complete: bool) -> Iterator[str]:
        """Yields what was added since the last call; an unfinished last line only with `complete`."""
        files = self._files()
        width = max(len(file.stem) for file in files)
        for _, file, line in heapq.merge(*(self._records(file, complete) for file in files), key=lambda one: one[0]):
            self._heard_s = time.monotonic()
            yield f"{file.stem:<{width}} | {line}"

    def _files(self) -> list[Path]:
        role, files = self._role, [file for folder in self._folders for file in sorted(folder.glob("*.log"))]
        return [file for file in files if role is None or file.stem == role or file.stem.rpartition("-")[0] == role]

    def _records(self, file: Path, complete: bool) -> Iterator[tuple[str, Path, str]]:
        """Yields (time, file, line); lines without a time, such as a traceback's, get that of the line before."""
        from adamctl.roles.role_logs import put_aside

        known = self._positions.get(file)
        if known is None or known > file.stat().st_size:  # it has begun anew, and the rest is in the older part
            yield from self._lines(put_aside(file), file, known or 0, complete=True)
            self._positions[file] = 0
        yield from self._lines(file, file, self._positions[file], complete)

    def _lines(self, place: Path, file: Path, position: int, complete: bool) -> Iterator[tuple[str, Path, str]]:
        """Yields what stands in one file from a position on."""
        from adamctl.roles.role_logs import as_text, when

        try:
            stream = place.open("rb")
        except FileNotFoundError:
            return
        with stream:
            stream.seek(position)
            for content in stream:
                if not content.endswith(b"\n") and not complete:
                    return
                position += len(content)
                self._positions[file] = position
                for line in as_text(content.decode(errors="replace").rstrip("\n")):
                    self._last[file] = when(line) or self._last.get(file, "")
                    yield self._last[file], file, line
