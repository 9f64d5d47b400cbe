"""Copies of finished checkpoints behind a URL (`train.checkpoint_url`), by fsspec: s3://, gs:// and the like.

    URL/000012/shards-ps-0.adam    the same bytes as in the run folder
    URL/000012/manifest.json       last, so that a copy without one does not count

The coordinator alone reads and writes there, so servers need no credentials. All functions block.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from adamctl.config.urls import checked_url, is_any_url
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.manifest import MANIFEST_NAME
from adamctl.roles.coordinator.core.evaluate import best_of
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.file_system import file_system, reaching
from adamctl.roles.manifest_bytes import decode_manifest
from adamctl.wire.unreadable import UNREADABLE

FETCHED: Final = "fetched"
"""The folder below a run's, or a name's, into which a checkpoint is fetched that a run begins from."""
_PIECE_BYTES: Final = 8 << 20


class CheckpointCopies:
    """The folder behind one URL."""

    def __init__(self, url: str, key: str) -> None:
        """`key` gave the URL, for messages.

        Raises:
            ConfigurationError: it is no URL, or fsspec or the package for its scheme is not installed.
        """
        self._url, self._key = checked_url(url, key), key
        self._system = file_system(self._url, key, "where the coordinator of the run is")

    def put(self, folder: Path) -> None:
        """Copies a finished checkpoint, its manifest last.

        Raises:
            UnreachableError: it cannot be written there; what is there does not count.
        """
        target = f"{self._url}/{folder.name}"
        with reaching(target, self._key):
            self._remove(target)
            self._system.makedirs(target, exist_ok=True)
            names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST_NAME)
            for name in (*names, MANIFEST_NAME):
                with open(folder / name, "rb") as source, self._system.open(f"{target}/{name}", "wb") as copy:
                    shutil.copyfileobj(source, copy, _PIECE_BYTES)

    def keep(self, names: set[str], newest: int) -> None:
        """Removes all copies but those of these names and the newest ones. Raises UnreachableError."""
        with reaching(str(self._url), self._key):
            found = self._names()
            for name in found - names - set(sorted(found)[-newest:]):
                self._remove(f"{self._url}/{name}")

    def expect_none(self) -> None:
        """Raises ConfigurationError if there are checkpoints: a run that begins anew would be mixed up with theirs."""
        with reaching(str(self._url), self._key):
            found = sorted(self._names())
        if found:
            raise ConfigurationError(
                f"train.checkpoint_url: found checkpoint {found[-1]} of another run in {self._url}; expected a folder "
                f"of this run alone; choose another one, or go on from it with --resume {self._url}"
            )

    @property
    def url(self) -> str:
        return str(self._url)

    def after(self, number: int) -> list[str]:
        """Returns the names of whole copies of later checkpoints, oldest first. Raises UnreachableError."""
        with reaching(str(self._url), self._key):
            later = sorted(name for name in self._names() if int(name) > number)
            return [name for name in later if self._read(f"{self._url}/{name}") is not None]

    def best(self) -> tuple[str, EvaluationResult] | None:
        """Returns the name of the copy with the best result on the validation split, and that result; None without one.

        Skips manifests that cannot be read as such. Raises UnreachableError.
        """
        found: list[tuple[str, EvaluationResult]] = []
        with reaching(str(self._url), self._key):
            contents = {name: self._read(f"{self._url}/{name}") for name in sorted(self._names())}
        for name, content in contents.items():
            with suppress(DamagedDataError, *UNREADABLE):
                result = None if content is None else manifest.validation_result(manifest.parsed(content))
                if result is not None:
                    found.append((name, result))
        index = best_of([result for _, result in found])
        return None if index is None else found[index]

    def fetch(self, into: Path) -> Path:
        """Fetches the checkpoint that the URL names, or the newest finished one below it, and checks every byte of it.

        `into` is emptied before. Returns the folder below it.

        Raises:
            ConfigurationError: there is none.
            DamagedDataError: it is damaged.
            UnreachableError: it cannot be read.
        """
        with reaching(str(self._url), self._key):
            base, found = str(self._url), self._read(str(self._url))
            for name in () if found is not None else sorted(self._names(), reverse=True):
                base = f"{self._url}/{name}"
                found = self._read(base)
                if found is not None:
                    break
            if found is None:
                raise ConfigurationError(f"{self._url}: expected a checkpoint or a folder with one; found none")
            shutil.rmtree(into, ignore_errors=True)
            folder = into / Path(base).name
            folder.mkdir(parents=True)
            for entry in decode_manifest(found)["files"]:
                name = str(entry["name"])
                if Path(name).name != name:
                    raise DamagedDataError(f"{base}/{MANIFEST_NAME}: {name!a} is not the name of a file in its folder")
                with self._system.open(f"{base}/{name}", "rb") as source, open(folder / name, "xb") as copy:
                    shutil.copyfileobj(source, copy, _PIECE_BYTES)
        (folder / MANIFEST_NAME).write_bytes(found)
        manifest.verify(folder)
        return folder

    def _names(self) -> set[str]:
        self._system.invalidate_cache()
        try:
            paths = self._system.ls(str(self._url), detail=False)
        except FileNotFoundError:
            return set()
        names = {str(path).rstrip("/").rpartition("/")[2] for path in paths}
        return {name for name in names if name.isdecimal()}

    def _read(self, base: str) -> bytes | None:
        try:
            with self._system.open(f"{base}/{MANIFEST_NAME}", "rb") as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def _remove(self, target: str) -> None:
        with suppress(FileNotFoundError):
            self._system.rm(f"{target}/{MANIFEST_NAME}")
        with suppress(FileNotFoundError):
            self._system.rm(target, recursive=True)


def fetched(place: str, key: str, folder: Path) -> str:
    """Returns a path as it is, and for a URL that of the checkpoint behind it, fetched into `FETCHED` of `folder`.

    Raises like `CheckpointCopies.fetch`.
    """
    if not is_any_url(place):
        return place
    return str(CheckpointCopies(place, key).fetch(folder / FETCHED))
