"""Finds what is damaged in a prepared set: every byte of every file has a checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.roles.data.prepared.layout import MANIFEST_NAME, Manifest, PreparedFile
from adamctl.roles.data.readers import prepared
from adamctl.roles.data.readers.access import exists, reported
from adamctl.roles.data.readers.shards import LocalShard
from adamctl.wire.checksum import crc32

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes checked so far, and its total bytes."""


@dataclass(frozen=True)
class Damage:
    """One thing wrong: in a block, from byte `start` up to `stop`; or, where these are None, with a file as a whole."""

    file: str
    what: str
    block: int | None = None
    start: int | None = None
    stop: int | None = None

    @property
    def where(self) -> str:
        """The block, as a message begins; empty for the whole file."""
        return "" if self.block is None else f"block {self.block}, bytes {self.start} to {self.stop}: "

    def __str__(self) -> str:
        return f"{self.file}: {self.where}{self.what}"


def read_manifest(folder: Path) -> Manifest:
    """Reads the list of a set.

    Raises:
        ConfigurationError: the folder is no prepared set, or this user may not read it.
        DamagedDataError: the list is damaged.
    """
    path = folder / MANIFEST_NAME
    with reported(path):
        if not path.is_file():
            found = f"no {MANIFEST_NAME} in it" if folder.is_dir() else "a file" if exists(folder) else "none"
            raise ConfigurationError(f"{folder}: expected a folder that `adamctl data prepare` wrote, found {found}")
        return prepared.read_manifest({path.name: LocalShard(path, path.name)}, str(folder))


def find_damage(folder: Path, progress: Progress | None = None) -> Iterator[Damage]:
    """Yields each damaged block, and each file that is missing, has another length, or does not belong there.

    Raises:
        ConfigurationError: the folder is no prepared set, or this user may not read it or a file of it.
        DamagedDataError: the list of files is damaged, so that nothing can be said of the others, or a file cannot be
            read.
    """
    manifest = read_manifest(folder)
    with reported(folder):
        for file in manifest.files:
            if (folder / file.name).is_file():
                yield from _damage_of(folder / file.name, file, progress)
            else:
                yield Damage(file.name, f"expected a file of {file.size_bytes} bytes, found none")
        known = {MANIFEST_NAME, *(file.name for file in manifest.files)}
        for path in sorted(folder.iterdir()):
            if path.name not in known:
                yield Damage(path.name, "expected no such file: it is not of this set")


def _damage_of(path: Path, file: PreparedFile, progress: Progress | None) -> Iterator[Damage]:
    found_bytes = path.stat().st_size
    whole = sha256()
    blocks_are_right = True
    with path.open("rb") as opened:
        for block, expected in enumerate(file.checksums):
            start, stop = file.block_range(block)
            content = opened.read(stop - start)
            whole.update(content)
            if len(content) < stop - start:
                blocks_are_right = False
                yield Damage(file.name, f"expected {stop - start} bytes, found {len(content)}", block, start, stop)
                break
            if (found := crc32(content)) != expected:
                blocks_are_right = False
                yield Damage(file.name, f"expected checksum {expected:08x}, found {found:08x}", block, start, stop)
            if progress is not None:
                progress(file.name, stop, file.size_bytes)
    if found_bytes != file.size_bytes:
        yield Damage(file.name, f"expected {file.size_bytes} bytes, found {found_bytes}")
    elif blocks_are_right and whole.hexdigest() != file.sha256:
        yield Damage(file.name, f"expected sha256 {file.sha256}, found {whole.hexdigest()}")
