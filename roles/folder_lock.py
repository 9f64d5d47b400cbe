"""A folder for what a role must not forget, used by one process at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from adamctl.errors import ConfigurationError

LOCK_NAME = "lock"
"""The locked file. It holds its owner's process ID, for users; the system releases the lock when that process ends."""


class FolderLock:
    """A folder that belongs to this process until `release`."""

    def __init__(self, folder: Path, option: str, owner: str) -> None:
        """Creates the folder if it does not exist, and locks it.

        Args:
            option: the command-line option that names the folder, for errors.
            owner: what kind of process uses such a folder.

        Raises:
            ConfigurationError: the folder cannot be used, or another process uses it.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(folder, option, error) from error
        try:
            self._take(folder, option, owner)
        except BaseException:
            self.release()
            raise

    def _take(self, folder: Path, option: str, owner: str) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise ConfigurationError(
                f"another {owner} (process {process}) uses {folder}; stop it, or give this one another {option}"
            ) from None
        except OSError as error:
            raise unusable(folder, option, error) from error
        with suppress(OSError):  # a full disk; the process ID is only for users
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Releases the folder; may be called again."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def any_locked(folders: Path) -> bool:
    """Returns whether a process, however it was started, uses one of the folders in this one. It locks none."""
    return any(map(is_locked, folders.glob(f"*/{LOCK_NAME}")))


def is_locked(file: Path) -> bool:
    """Returns whether a process, also one of another machine of a shared disk, holds the lock of a file."""
    try:
        with open(file, "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks: nothing can be known
        return False
    return False


def unusable(folder: Path, option: str, error: OSError) -> ConfigurationError:
    """Returns the error that says why a folder cannot be used, and what to do."""
    return ConfigurationError(f"{option} {folder}: {error.strerror}; choose a writable one")
