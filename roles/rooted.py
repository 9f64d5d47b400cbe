"""Folders that a message may name: those inside a root given at the start, and not reached through a link.

A path is refused by its name alone, before any file is accessed, so nobody learns what exists elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from adamctl.errors import RemoteError
from adamctl.wire.constants import ErrorCode

PATH_CHARACTERS_MAX = 4096
PARTS_MAX = 64
"""Most parts of a path, the empty one before its first slash included: no message has folders made by the thousand."""
ENTRIES_MAX = 100_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Roots:
    """The folders inside which other processes may name a folder."""

    def __init__(self, folders: Iterable[str | Path], flag: str) -> None:
        """`flag` is the option that gives them, for messages."""
        self.folders = tuple(dict.fromkeys(Path(folder).expanduser().absolute() for folder in folders))
        self._flag = flag

    def parts(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """Returns the root that a path lies in, and the rest of the path.

        Raises:
            RemoteError: NOT_ALLOWED, it lies in none, or that cannot be determined.
        """
        plain = "\0" not in path and path.startswith("/") and ".." not in path.split("/")
        plain = plain and len(path) <= PATH_CHARACTERS_MAX and len(path.split("/")) <= PARTS_MAX
        for root in self.folders if plain else ():
            for spelt in (root, root.resolve()):
                if Path(path).is_relative_to(spelt):
                    return root, Path(path).relative_to(spelt).parts
        raise self._refusal(path)

    def open_folder(self, path: str, *, create: bool = False) -> int:
        """Returns a descriptor of a folder in one of the roots; the caller closes it.

        Args:
            create: create missing folders, including the root.

        Raises:
            RemoteError: NOT_ALLOWED, it is in no root.
            OSError: it cannot be opened, or is reached through a link.
        """
        root, parts = self.parts(path)
        if create:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return descend(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), parts, create=create)

    def check(self, path: str) -> None:
        """Checks a folder to read from: raises like `open_folder`, and if a link in it may lead elsewhere.

        Does not raise if the folder does not exist; an empty path is allowed.
        """
        if not path:
            return
        with suppress(FileNotFoundError):
            descriptor = self.open_folder(path)
            try:
                with os.scandir(descriptor) as entries:
                    linked = [entry.name for entry in islice(entries, ENTRIES_MAX) if entry.is_symlink()]
            finally:
                os.close(descriptor)
            if linked:
                text = f"a folder that a message names must hold no links; found {linked[0][:80]!a}; put the file there"
                raise RemoteError(ErrorCode.NOT_ALLOWED, text)

    def inside(self, path: str) -> str:
        """Returns a path with its links resolved, if it lies in a root; a relative one starts at the current folder.

        Raises:
            RemoteError: NOT_ALLOWED, it does not lie in a root.
        """
        found = self.found_inside(path)
        if not found:
            raise self._refusal(path)
        return found

    def found_inside(self, path: str) -> str:
        """Returns like `inside`, or an empty string instead of an error."""
        if "\0" in path or len(path) > PATH_CHARACTERS_MAX:
            return ""
        given = Path(os.path.expanduser(path)).absolute()  # raises nothing: who has a home here is not told
        lexical = Path(os.path.normpath(given))
        if not any(lexical.is_relative_to(spelt) for root in self.folders for spelt in (root, root.resolve())):
            return ""  # no file was accessed
        resolved = given.resolve()
        return str(resolved) if any(resolved.is_relative_to(root.resolve()) for root in self.folders) else ""

    def _refusal(self, path: str) -> RemoteError:
        return RemoteError(
            ErrorCode.NOT_ALLOWED,
            f"{path[:200]!a} is in none of the folders given by {self._flag}; add it there",
        )


def descend(descriptor: int, parts: Sequence[str], *, create: bool = False) -> int:
    """Returns a descriptor of the folder `parts` below an open one, which is closed. Follows no link.

    Raises OSError.
    """
    for part in parts:
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
            inner = os.open(part, _FOLDER, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor
