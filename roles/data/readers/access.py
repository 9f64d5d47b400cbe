"""What the system says about files, in words that tell a user what to do: one place for all readers."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError


@contextmanager
def reported(path: object) -> Iterator[None]:
    """Turns what the system says while a reader works on `path` (a path or URL) into errors for users.

    Raises:
        ConfigurationError: this user may not read a file, also where a reader took that for damage.
        DamagedDataError: a file cannot be read for another reason, such as a broken disk.
    """
    try:
        yield
    except AdamctlError as error:
        if isinstance(error.__cause__, PermissionError):
            raise not_permitted(error.__cause__, path) from error
        raise
    except PermissionError as error:
        raise not_permitted(error, path) from error
    except OSError as error:
        raise DamagedDataError(f"{error.filename or path}: {_said(error)}") from error


def exists(path: Path) -> bool:
    """Returns whether there is such a file or folder. Raises PermissionError if this user may not know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def not_permitted(error: OSError, path: object) -> ConfigurationError:
    """Returns the error that says whose permission is missing."""
    return ConfigurationError(
        f"{error.filename or path}: this user may not read it; give it permission (chmod u+r, and u+rx for folders), "
        "or run adamctl as another user"
    )


def _said(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "it was there and is gone; do not move data while they are read"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open; raise the limit (ulimit -n)"
    return f"it cannot be read: {error.strerror or error}; look at the disk, or copy the data again"
