"""A bounded folder of fetched files, which all processes of a user on this machine share.

An entry is a folder `ID/` with `entry.json` and the files in `data/`. It is made as `ID.part/` and appears by one
rename, when all of it is on the disk; it goes by the way back, before anything of it is removed. Beside it is
`ID.lock`: whoever makes or removes an entry has it alone, whoever uses one has it shared. Room is made under
`room.lock`, by removing the entries that were used longest ago and that nobody uses.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import platformdirs

from adamctl.errors import ConfigurationError
from adamctl.roles.durable_file import sync_folder
from adamctl.wire.unreadable import UNREADABLE

VARIABLE: Final = "ADAMCTL_CACHE"
"""Environment variable that names a cache folder other than the user's usual one."""
DISK_SHARE_KEPT: Final = 0.05
"""So much of the disk stays free whatever the cache may use: others need it too."""
_ATTEMPTS: Final = 5
_ENTRY: Final = "entry.json"
_DATA: Final = "data"
_PART: Final = ".part"
_LOCK: Final = ".lock"


class Entry(msgspec.Struct, frozen=True):
    """What an entry was made of. `identity` changes when the file behind the URL does."""

    url: str
    identity: str
    size_bytes: int


@dataclass(frozen=True)
class Held:
    """An entry as it lies on disk. `used_s`: when it was last used, Unix time."""

    name: str
    size_bytes: int
    used_s: float


def to_remove(held: Sequence[Held], wanted_bytes: int, bytes_max: int) -> list[Held]:
    """Returns the entries to remove, first the one used longest ago, until `wanted_bytes` more fit; pure."""
    left_bytes = sum(entry.size_bytes for entry in held)
    chosen = []
    for entry in sorted(held, key=lambda entry: entry.used_s):
        if left_bytes + wanted_bytes <= bytes_max:
            break
        chosen.append(entry)
        left_bytes -= entry.size_bytes
    return chosen


class DiskCache:
    """The folder, for one user of it, who says how large it may be. Thread-safe."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max

    def open(self, entry: Entry, name: str, fetch: Callable[[Path], None]) -> BinaryIO:
        """Returns the file `name` of an entry, opened; `fetch` writes it into a folder if it is not there.

        A file that is open stays readable when its entry is removed.

        Raises:
            ConfigurationError: there is no room for it, or the folder cannot be written.
        """
        for _ in range(_ATTEMPTS):
            lock = self.pin(entry, fetch)
            try:
                opened = (self.path(entry) / name).open("rb")
            except FileNotFoundError:
                opened = None
            finally:
                os.close(lock)
            if opened is not None and os.fstat(opened.fileno()).st_size == entry.size_bytes:
                return opened
            if opened is not None:
                opened.close()
            self._remove(self._id(entry))  # somebody has changed it
        raise ConfigurationError(f"{self.folder}: {entry.url} does not stay as it was fetched; keep others out of it")

    def pin(self, entry: Entry, fetch: Callable[[Path], None]) -> int:
        """Makes sure that an entry is there, and returns the descriptor of its lock, held shared: closing it unpins.

        Raises:
            ConfigurationError: like `open`.
        """
        place = self.folder / self._id(entry)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._lock_file(place.name)
        except OSError as error:
            raise ConfigurationError(f"{self.folder} cannot be written: {error}; set {VARIABLE} to another") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            while not _is_there(place):
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_there(place):
                    self._make(place, entry, fetch)
                fcntl.flock(lock, fcntl.LOCK_SH)  # others may come between, and remove it again
            os.utime(place / _ENTRY)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def path(self, entry: Entry) -> Path:
        """Returns the folder of a pinned entry's files."""
        return self.folder / self._id(entry) / _DATA

    def _id(self, entry: Entry) -> str:
        return blake2b(f"{entry.url}\n{entry.identity}".encode(), digest_size=16).hexdigest()

    def _lock_file(self, name: str) -> int:
        return os.open(self.folder / (name + _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _make(self, place: Path, entry: Entry, fetch: Callable[[Path], None]) -> None:
        """Fetches into a folder beside `place` and renames it. Called with the entry's lock held alone."""
        part = place.with_name(place.name + _PART)
        for left in (part, place):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with self._making_room():
            self._make_room(entry)
            (part / _DATA).mkdir(parents=True)
            (part / _ENTRY).write_bytes(msgspec.json.encode(entry))  # from here on the room is taken
        try:
            fetch(part / _DATA)
            _sync_all(part)
            part.rename(place)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    @contextmanager
    def _making_room(self) -> Iterator[None]:
        lock = self._lock_file("room")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _make_room(self, entry: Entry) -> None:
        disk = shutil.disk_usage(self.folder)
        held = self._held()
        held_bytes = sum(one.size_bytes for one in held)
        bytes_max = min(self.bytes_max, held_bytes + disk.free - int(DISK_SHARE_KEPT * disk.total))
        free = [one for one in held if not self._in_use(one.name)]
        in_use_bytes = held_bytes - sum(one.size_bytes for one in free)
        if in_use_bytes + entry.size_bytes > bytes_max:
            raise ConfigurationError(
                f"{entry.url}: its {entry.size_bytes:,} bytes do not fit into {self.folder}, which may hold "
                f"{bytes_max:,}, {in_use_bytes:,} of them in use: set data.disk_cache higher, make room on the disk, "
                f"or set {VARIABLE} to a folder on a larger one"
            )
        for one in to_remove(free, in_use_bytes + entry.size_bytes, bytes_max):
            self._remove(one.name)

    def _held(self) -> list[Held]:
        found = []
        for path in self.folder.iterdir():
            if path.name.endswith(_LOCK):
                continue
            try:
                entry = msgspec.json.decode((path / _ENTRY).read_bytes(), type=Entry)
                found.append(Held(path.name, entry.size_bytes, (path / _ENTRY).stat().st_mtime))
            except (OSError, *UNREADABLE):
                if path.is_dir() and not self._in_use(path.name):
                    shutil.rmtree(path, ignore_errors=True)
        return found

    @contextmanager
    def _alone(self, name: str) -> Iterator[bool]:
        """Holds an entry's lock alone, if nobody else has it; says whether it does."""
        lock = self._lock_file(name.removesuffix(_PART))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(lock)

    def _in_use(self, name: str) -> bool:
        with self._alone(name) as alone:
            return not alone

    def _remove(self, name: str) -> None:
        with self._alone(name) as alone:
            if not alone:
                return
            place, part = self.folder / name, self.folder / (name.removesuffix(_PART) + _PART)
            if place != part:  # or what is left of an entry, when this process is killed, would be taken for all of it
                shutil.rmtree(part, ignore_errors=True)
                with contextlib.suppress(FileNotFoundError):
                    place.rename(part)
            shutil.rmtree(part, ignore_errors=True)


def _is_there(place: Path) -> bool:
    return (place / _ENTRY).is_file()


def _sync_all(folder: Path) -> None:
    """Makes sure that a folder and all in it stay, whatever happens to this machine. Raises OSError."""
    for inner, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(inner, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(inner))


def cache_folder() -> Path:
    """Returns the folder for fetched data: ADAMCTL_CACHE, or the user's usual one."""
    named = os.environ.get(VARIABLE, "")
    return (Path(named).expanduser() if named else platformdirs.user_cache_path("adamctl", appauthor=False)) / "data"
