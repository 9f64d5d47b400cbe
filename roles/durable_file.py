"""Files that others rely on: written whole, and on the disk before anybody is told of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data`; one call of the system may write less. Raises OSError: the disk is full, or failed."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Writes or replaces a file, which only its owner can read: whoever sees it sees all of it, whatever happens.

    `temporary`: where it is written first, in the same folder; what was left there is removed. Raises OSError.
    """
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes sure that files which were created, renamed or removed in a folder stay so. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def to_its_end(work: Callable[[], Result]) -> Result:
    """Does in a thread what writes a file; who is cancelled meanwhile goes on when it is done, not beside it.

    Else a file that is given up would be closed while the thread still writes to it, or to what has its number then.
    """
    working = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from working.exception()
    return working.result()
