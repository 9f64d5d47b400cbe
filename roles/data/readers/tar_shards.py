"""Which tar files a source means: one, those of a folder, or those of a pattern such as `shard-{000..099}.tar`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import escape, has_magic
from pathlib import Path
from typing import Final

from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit

SHARDS_MAX: Final = 100_000
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")


def is_pattern(name: str) -> bool:
    """Returns whether the last part of a path is a pattern of file names."""
    last = name.rpartition("/")[2]
    return has_magic(last) or bool(_BRACES.search(last))


def shards_of(path: Path) -> dict[FileSplit, list[Path]] | list[Path]:
    """Returns the tar files of a source, each list in the order of the names.

    Two lists where a folder has a folder `train` (and `test`), else one.

    Raises:
        ConfigurationError: there is none, a file that braces name is missing, or there are more than SHARDS_MAX.
    """
    if is_pattern(path.name) and not path.exists():
        return _matching(path)
    if path.is_dir():
        if (path / "train").is_dir():
            there = (split for split in FILE_SPLITS if split == "train" or (path / split).is_dir())
            return {split: _inside(path / split) for split in there}
        return _inside(path)
    return [path]


def _inside(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.glob("*.tar") if not path.name.startswith("."))
    if not found:
        raise ConfigurationError(f"{folder}: expected tar files (*.tar), found none")
    return _bounded(found, str(folder))


def _matching(path: Path) -> list[Path]:
    found: list[Path] = []
    for count, name in enumerate(_expanded(path.name, str(path))):
        if count == SHARDS_MAX:
            raise _too_many(str(path))
        if has_magic(name):
            found += path.parent.glob(name)
        else:
            found += path.parent.glob(escape(name))
            if not found or found[-1].name != name:
                raise ConfigurationError(f"{path}: expected a tar file {path.parent / name}, found no such file")
    if not found:
        raise ConfigurationError(f"{path}: expected tar files of this pattern, found none")
    return _bounded(sorted(set(found)), str(path))


def _expanded(name: str, origin: str) -> Iterator[str]:
    """Yields the names that braces stand for: {a,b} or {000..099}, as a shell would."""
    braces = _BRACES.search(name)
    if braces is None:
        yield name
        return
    before, after = name[: braces.start()], name[braces.end() :]
    if numbers := _RANGE.fullmatch(braces[1]):
        first, last = int(numbers[1]), int(numbers[2])
        digits = len(numbers[1]) if numbers[1].startswith("0") else 1
        if last - first >= SHARDS_MAX:
            raise _too_many(origin)
        words = [f"{number:0{digits}}" for number in range(first, last + 1)]
    else:
        words = braces[1].split(",")
    for word in words:
        yield from _expanded(f"{before}{word}{after}", origin)


def _bounded(found: list[Path], origin: str) -> list[Path]:
    if len(found) > SHARDS_MAX:
        raise _too_many(origin)
    return found


def _too_many(origin: str) -> ConfigurationError:
    return ConfigurationError(f"{origin}: expected at most {SHARDS_MAX:,} tar files, found more; make larger ones")
