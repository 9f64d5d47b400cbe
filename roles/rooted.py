"""Folders that a message may name: those in a root that was given at the start, and reached through no link.

What is refused is refused by its name alone, before anything is looked for: nobody learns what exists elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from adamctl.errors import RemoteError
from adamctl.wire.constants import ErrorCode

PATH_CHARACTERS_MAX = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Roots:
    """The folders that somebody else may name a folder in."""

    def __init__(self, folders: Iterable[str | Path], flag: str) -> None:
        """`flag` is where they are given, for messages."""
        self.folders = tuple(dict.fromkeys(Path(folder).expanduser().absolute() for folder in folders))
        self._flag = flag

    def parts(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """Returns the root that a path lies in, and the rest of the path.

        Raises:
            RemoteError: NOT_ALLOWED, it lies in none, or cannot be told to.
        """
        plain = "\0" not in path and path.startswith("/") and ".." not in path.split("/")
        for root in self.folders if plain else ():
            for spelt in (root, root.resolve()):
                if Path(path).is_relative_to(spelt):
                    return root, Path(path).relative_to(spelt).parts
        raise self._refusal(path)

    def open_folder(self, path: str, *, create: bool = False) -> int:
        """Returns a descriptor of a folder in one of the roots; the caller closes it.

        Args:
            create: make what of it is missing, the root included.

        Raises:
            RemoteError: NOT_ALLOWED, it is in no root.
            OSError: it cannot be opened, or is reached through a link.
        """
        root, parts = self.parts(path)
        if create:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return descend(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), parts, create=create)

    def check(self, path: str) -> None:
        """Raises as `open_folder` does, but not for a folder that is not there (any more); an empty path is none."""
        if path:
            with suppress(FileNotFoundError):
                os.close(self.open_folder(path))

    def inside(self, path: str) -> str:
        """Returns a path with its links followed, if all of it lies in a root; one without is taken from here.

        Raises:
            RemoteError: NOT_ALLOWED, it does not.
        """
        found = self.found_inside(path)
        if not found:
            raise self._refusal(path)
        return found

    def found_inside(self, path: str) -> str:
        """Returns as `inside` does, or an empty text."""
        if "\0" in path or len(path) > PATH_CHARACTERS_MAX:
            return ""
        given = Path(path).expanduser().absolute()
        lexical = Path(os.path.normpath(given))
        if not any(lexical.is_relative_to(spelt) for root in self.folders for spelt in (root, root.resolve())):
            return ""  # nothing of it was looked at
        resolved = given.resolve()
        return str(resolved) if any(resolved.is_relative_to(root.resolve()) for root in self.folders) else ""

    def _refusal(self, path: str) -> RemoteError:
        return RemoteError(
            ErrorCode.NOT_ALLOWED,
            f"{path[:200]!a} is in none of the folders that {self._flag} names here; add it there",
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
