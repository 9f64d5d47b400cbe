"""The runs of this user in progress on this machine: where other commands find a run's folder and addresses.

Each front writes a small file into the user's state folder and keeps it locked. The system releases the lock when the
process ends, however it ends, so an unlocked file belongs to a run that is over, and any reader removes it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

import msgspec
import platformdirs

from adamctl.errors import ConfigurationError
from adamctl.roles.private_folder import make_private
from adamctl.wire.unreadable import UNREADABLE

VARIABLE = "ADAMCTL_STATE"
"""Environment variable that names a state folder other than the user's usual one."""
_RUNS_MAX = 1000
_ATTEMPTS = 5


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """The note of a run. Fields are only ever appended, with a default.

    Attributes:
        folder: its run folder, absolute.
        host, pid: host and process of its front.
        started_at: Unix time in seconds.
        controllers, coordinator: their addresses, nearest first; empty until known.
        detached: whether no terminal shows it.
        front: where agents of other hosts and operators reach its front; empty if it runs on this machine alone.
    """

    folder: str
    host: str
    pid: int
    started_at: float
    controllers: tuple[str, ...] = ()
    coordinator: tuple[str, ...] = ()
    detached: bool = False
    front: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """NAME/NNN, as commands accept it."""
        return "/".join(Path(self.folder).parts[-2:])

    def lies_in(self, folder: str | Path) -> bool:
        """Returns whether `folder` is its run folder, however it is spelled and through whatever links it goes."""
        return os.path.realpath(folder) == os.path.realpath(self.folder)


class Noted:
    """The note of one run, from its start to `remove`. If the folder is not writable, it does nothing."""

    def __init__(self, folder: Path, state: Path, *, detached: bool = False, controllers: Sequence[str] = ()) -> None:
        """`folder` is the run folder, `state` the folder of notes, `controllers` the ones already known."""
        self.run = LiveRun(
            folder=str(folder.absolute()),
            host=platform.node(),
            pid=os.getpid(),
            started_at=time.time(),
            controllers=tuple(controllers),
            detached=detached,
        )
        self.problem = ""
        self._descriptor = -1
        self._path = state / f"{os.getpid()}-{time.monotonic_ns()}.json"
        unseen = self._path.with_suffix(".new")
        try:
            make_private(state)
            self._descriptor = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write()
            unseen.rename(self._path)
        except OSError as error:
            self.problem = f"{state}: {error.strerror}"
            with suppress(OSError):
                unseen.unlink()
            self.remove()

    def update(
        self,
        *,
        controllers: Sequence[str] | None = None,
        coordinator: Sequence[str] | None = None,
        front: Sequence[str] | None = None,
    ) -> None:
        """Adds newly known addresses."""
        new = {"controllers": controllers, "coordinator": coordinator, "front": front}
        known = {name: tuple(addresses) for name, addresses in new.items() if addresses is not None}
        self.run = msgspec.structs.replace(self.run, **known)
        if self._descriptor >= 0:
            with suppress(OSError):  # a full disk: the earlier note is still there
                self._write()

    def remove(self) -> None:
        """Removes the note when the run is over; may be called again."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self) -> None:
        content = msgspec.json.encode(self.run)
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


def state_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder of notes: in ADAMCTL_STATE, else in the user's state folder of this system."""
    named = environment.get(VARIABLE)
    return (Path(named).expanduser() if named else platformdirs.user_state_path("adamctl", appauthor=False)) / "runs"


def live_runs(state: Path) -> list[LiveRun]:
    """Returns the runs in progress on this machine, newest first; removes the notes of runs that are over."""
    try:
        paths = [path for path in state.iterdir() if path.suffix == ".json"][:_RUNS_MAX]
    except OSError:
        return []
    found = [run for run in map(_look, paths) if run is not None]
    return sorted(found, key=lambda run: run.started_at, reverse=True)


def the_live_run(state: Path, wanted: str = "", command: str = "") -> LiveRun | None:
    """Returns the live run that `wanted` names (a run folder, NAME/NNN or NAME), or the only one; None if none is live.

    `command` is the command line that lacks a name, for the message.

    Raises:
        ConfigurationError: several match.
    """
    runs = live_runs(state)
    if wanted:
        exact = [run for run in runs if run.lies_in(wanted) or run.name == wanted]
        runs = exact or [run for run in runs if run.name.partition("/")[0] == wanted]
    if len(runs) > 1:
        which = [run.name if len({one.name for one in runs}) == len(runs) else run.folder for run in runs]
        example = f"; for example: {command} {quote(which[0])}" if command else ""
        raise ConfigurationError(
            f"several runs are in progress on this machine; name one of them: {', '.join(which)}{example}"
        )
    return runs[0] if runs else None


def is_live(folder: Path, state: Path) -> bool:
    """Returns whether a run folder's run is in progress, according to this user's notes."""
    return any(run.lies_in(folder) for run in live_runs(state))


def _look(path: Path) -> LiveRun | None:
    """Returns a note's content if its run is in progress on this machine."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        run = _read(descriptor)
        if run is not None and run.host != platform.node():
            return None  # several machines share this home folder
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return run
        path.unlink(missing_ok=True)
        return None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> LiveRun | None:
    for _ in range(_ATTEMPTS):  # it may be being written right now
        try:
            return msgspec.json.decode(os.pread(descriptor, 1 << 16, 0), type=LiveRun)
        except UNREADABLE:
            time.sleep(0.002)
    return None
