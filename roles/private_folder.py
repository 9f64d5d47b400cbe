"""Private temporary folders for sockets: removed at the end, or found and removed later after a kill.

A private folder contains a file `owner` that is kept locked by the process that made it. The system releases the lock
when that process ends, however it ends, so an unlocked file means that the folder is no longer needed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from adamctl.net.address import UNIX_PATH_BYTES_MAX
from adamctl.roles.durable_file import write_all

PRIVATE = partial(os.open, mode=0o600)
"""Opens files; new ones are accessible only to their owner, whatever the umask."""
PREFIX = "adamctl-"
OWNER = "owner"
"""Name of the locked file; it holds the owner's process ID, for users."""
_NAMES_BYTES_MAX = 40
"""How much our names may add to the temporary folder's path before a socket's path is too long."""
_STALE_MAX = 100
"""How many leftover folders one process checks."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Makes a folder that only this user can enter and whose path is short enough for Unix sockets; removes it at the
    end.

    First removes leftover folders whose owner was killed.

    Raises:
        OSError: there is no room for temporary files.
    """
    base = temporary_folder()
    remove_stale(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    descriptor = -1
    try:
        descriptor = _own(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def temporary_folder() -> Path:
    """Returns the folder for temporary files, or /tmp if its path is too long for sockets."""
    folder = tempfile.gettempdir()
    return Path(folder if len(os.fsencode(folder)) <= UNIX_PATH_BYTES_MAX - _NAMES_BYTES_MAX else "/tmp")


def make_private(folder: Path) -> None:
    """Makes a folder, and what is missing above it, for this user alone: whoever may write above could exchange it.

    Raises:
        OSError: it cannot be made.
    """
    for missing in reversed([above for above in folder.absolute().parents if not above.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def remove_stale(base: Path) -> list[Path]:
    """Removes and returns this user's private folders in `base` whose owner has ended."""
    removed: list[Path] = []
    with suppress(OSError), os.scandir(base) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        removed = [folder for folder in found[:_STALE_MAX] if remove_if_left(folder)]
    return removed


def remove_if_left(folder: Path) -> bool:
    """Removes a private folder of this user if the process that owned it has ended; returns whether it did."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _own(folder: Path) -> int:
    """Marks a folder as ours; returns the descriptor of the lock, which is taken before the mark becomes visible."""
    unseen = folder / f"{OWNER}.new"
    descriptor = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks: then nobody else can find it unlocked either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    write_all(descriptor, f"{os.getpid()}\n".encode())
    unseen.rename(folder / OWNER)
    return descriptor
