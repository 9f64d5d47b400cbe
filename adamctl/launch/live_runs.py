"""The runs of this user that are going on on this machine: whoever looks for one finds its folder and its addresses.

Each front writes a small file into the user's state folder and keeps it locked. The system lifts the lock when the
process ends, however it ends, so an unlocked file is of a run that is no more, and whoever finds it removes it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import platformdirs

from adamctl.errors import ConfigurationError
from adamctl.wire.unreadable import UNREADABLE

VARIABLE = "ADAMCTL_STATE"
"""Names another state folder than the user's usual one."""
_RUNS_MAX = 1000
_ATTEMPTS = 5


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is noted. Fields are only ever appended, with a default.

    Attributes:
        folder: its run folder, absolute.
        host, pid: of its front.
        started_at: Unix time in seconds.
        controllers, coordinator: their addresses, the nearest first; none as long as they are not known.
        detached: whether no terminal shows it.
    """

    folder: str
    host: str
    pid: int
    started_at: float
    controllers: tuple[str, ...] = ()
    coordinator: tuple[str, ...] = ()
    detached: bool = False

    @property
    def name(self) -> str:
        """NAME/NNN, as commands take it."""
        return "/".join(Path(self.folder).parts[-2:])


class Noted:
    """The note of one run, from its beginning to `remove`. A folder that cannot be written to makes it do nothing."""

    def __init__(self, folder: Path, state: Path, *, detached: bool = False, controllers: Sequence[str] = ()) -> None:
        """`folder` is the run folder, `state` the folder of notes, `controllers` those that are known already."""
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
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write()
            unseen.rename(self._path)
        except OSError as error:
            self.problem = f"{state}: {error.strerror}"
            with suppress(OSError):
                unseen.unlink()
            self.remove()

    def update(self, *, controllers: Sequence[str] | None = None, coordinator: Sequence[str] | None = None) -> None:
        """Adds addresses that have become known."""
        new = {"controllers": controllers, "coordinator": coordinator}
        known = {name: tuple(addresses) for name, addresses in new.items() if addresses is not None}
        self.run = msgspec.structs.replace(self.run, **known)
        if self._descriptor >= 0:
            with suppress(OSError):  # a full disk: what was known before is there still
                self._write()

    def remove(self) -> None:
        """The run is over; may be called again."""
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
    """Returns the runs that go on on this machine, newest first; removes the notes of those that are no more."""
    try:
        paths = [path for path in state.iterdir() if path.suffix == ".json"][:_RUNS_MAX]
    except OSError:
        return []
    found = [run for run in map(_look, paths) if run is not None]
    return sorted(found, key=lambda run: run.started_at, reverse=True)


def the_live_run(state: Path, wanted: str = "") -> LiveRun | None:
    """Returns the live run that `wanted` means (a run folder, NAME/NNN or NAME), or the only one; None without any.

    Raises:
        ConfigurationError: several would do.
    """
    runs = live_runs(state)
    if wanted:
        path = str(Path(wanted).absolute())
        exact = [run for run in runs if run.folder == path or run.name == wanted]
        runs = exact or [run for run in runs if run.name.partition("/")[0] == wanted]
    if len(runs) > 1:
        which = ", ".join(run.name if len({one.name for one in runs}) == len(runs) else run.folder for run in runs)
        raise ConfigurationError(f"several runs are going on on this machine; name one of them: {which}")
    return runs[0] if runs else None


def is_live(folder: Path, state: Path) -> bool:
    """Returns whether a run folder's run goes on, as far as this user's notes say."""
    return str(folder.absolute()) in {run.folder for run in live_runs(state)}


def _look(path: Path) -> LiveRun | None:
    """Returns what a note says, if its run goes on on this machine."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        run = _read(descriptor)
        if run is not None and run.host != platform.node():
            return None  # a home that several machines share
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
    for _ in range(_ATTEMPTS):  # it may be written just now
        try:
            return msgspec.json.decode(os.pread(descriptor, 1 << 16, 0), type=LiveRun)
        except UNREADABLE:
            time.sleep(0.002)
    return None
