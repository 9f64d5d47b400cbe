"""The files that one set of examples is spread over, each read as a whole when it is needed, and their splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Protocol

from adamctl.config.data import DataConfig
from adamctl.config.urls import Url
from adamctl.errors import ChangedDataError, ConfigurationError
from adamctl.roles.data.readers.access import not_permitted
from adamctl.roles.data.readers.source import FileSplit
from adamctl.roles.data.readers.splits import is_hidden
from adamctl.roles.data.remote.files import RemoteFiles

_TEST_PREFIX: Final = "test"


class Shard(Protocol):
    """One file, wherever it is.

    Attributes:
        name: its path below the source, with slashes.
        origin: its whole path or URL, for messages.
        size_bytes: its length when the set was opened.
        fetched: whether it must be fetched from elsewhere to be read.
    """

    @property
    def fetched(self) -> bool: ...

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def ahead(self) -> None:
        """Begins to fetch it, if it is not on this machine."""
        ...

    def open(self) -> BinaryIO:
        """Opens it for reading, with a descriptor; the caller closes it.

        Raises:
            ChangedDataError: it has changed since the set was opened.
            ConfigurationError, UnreachableError: it cannot be fetched.
        """
        ...

    def open_part(self) -> BinaryIO:
        """Like `open`, but fetches no more than what is read; it may have no descriptor."""
        ...


class LocalShard:
    """A file of this machine. A run that reads it notices if it changes."""

    fetched = False

    def __init__(self, path: Path, name: str) -> None:
        """Raises ConfigurationError if it is no file."""
        self.name = name
        self.origin = str(path)
        self._path = path
        if not path.is_file():
            raise ConfigurationError(f"expected a file, found none: {path}")
        found = path.stat()
        self.size_bytes = found.st_size
        self._changed_ns = found.st_mtime_ns

    def ahead(self) -> None:
        pass

    def open_part(self) -> BinaryIO:
        return self.open()

    def open(self) -> BinaryIO:
        try:
            found = self._path.stat()
            if (found.st_size, found.st_mtime_ns) == (self.size_bytes, self._changed_ns):
                return self._path.open("rb")
            now = f"{found.st_size} bytes"
        except PermissionError as error:
            raise not_permitted(error, self.origin) from error
        except OSError as error:
            now = str(error)
        raise ChangedDataError(
            f"{self.origin}: expected the file of {self.size_bytes} bytes that was there when the data were opened, "
            f"found another: {now}; do not change data while a run reads them"
        )


def shards_at(place: Path | Url, endings: Sequence[str], config: DataConfig) -> list[Shard]:
    """Returns like `local_shards`, of a path or a URL.

    Raises:
        ConfigurationError: there is none, or no way to fetch it.
        UnreachableError: files behind a URL cannot be listed.
    """
    return list(RemoteFiles(place, config).shards(endings)) if isinstance(place, Url) else local_shards(place, endings)


def local_shards(place: Path, endings: Sequence[str]) -> list[Shard]:
    """Returns a file as it is, or the files of a folder and of folders in it with these endings (empty: all), in order.

    Raises:
        ConfigurationError: there is none.
    """
    if place.is_file():
        return [LocalShard(place, place.name)]
    paths = [path for path in place.rglob("*") if (not endings or path.suffix.lower() in endings) and path.is_file()]
    names = {path.relative_to(place).as_posix(): path for path in paths}
    shards: list[Shard] = [LocalShard(names[name], name) for name in sorted(names) if not is_hidden(name)]
    if not shards:
        wanted = f"files that end in {' or '.join(endings)}" if endings else "files"
        raise ConfigurationError(f"{place}: expected {wanted}, found none")
    return shards


def arrange_shards(shards: Iterable[Shard], test_files: str, origin: str) -> tuple[dict[FileSplit, list[Shard]], bool]:
    """Returns the files of each split, and whether rows of the training files must give the test part.

    The test part are the files that match `test_files`; without one those of a folder `test`, or with names that begin
    with `test`. A single file has no test part of its own.

    Raises:
        ConfigurationError: no file matches `test_files`, or none is left for training.
    """
    files: dict[FileSplit, list[Shard]] = {"train": [], "test": []}
    for shard in shards:
        path = PurePosixPath(shard.name)
        if test_files:
            test = fnmatchcase(path.name, test_files)
        else:
            test = path.parts[0] == _TEST_PREFIX or path.name.startswith(_TEST_PREFIX)
        files["test" if test else "train"].append(shard)
    if test_files and not files["test"]:
        raise ConfigurationError(f'data.test_files: expected files of {origin} that match "{test_files}", found none')
    if not files["train"]:
        if test_files or len(files["test"]) > 1:
            raise ConfigurationError(f"{origin}: expected files of the training part, found only some of the test part")
        files = {"train": files["test"], "test": []}
    return files, not files["test"]
