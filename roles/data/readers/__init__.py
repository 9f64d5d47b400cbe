"""Readers, one format each, behind `open_source`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import cast

from adamctl.config.data import DataConfig
from adamctl.config.formats import BUILT_IN
from adamctl.config.urls import Url
from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.access import reported
from adamctl.roles.data.readers.plugins import GuardedSource, Reader, call, check_source, find
from adamctl.roles.data.readers.source import Peek, Source
from adamctl.roles.data.remote.files import RemoteFiles


def open_source(
    config: DataConfig, path: Path | Url | None, input_shape: Sequence[int] | None, *, budget_bytes: int | None = None
) -> Source:
    """Opens the examples at `path` (None only for `digits`, which has none), as `config.format` says.

    Args:
        input_shape: the model's input; None takes what the files have (not possible for folders of images).
        budget_bytes: memory for what the source keeps of its examples; None: `data.memory_share` of this machine's.

    Raises:
        ConfigurationError: no such format, files missing, an extra not installed, or examples that do not fit the
            model's input.
        DamagedDataError: a file is not what its format says.
    """
    format = config.format
    reader = find(format)
    if path is None and format != "digits":
        raise ConfigurationError(f"data of format {format!r} needs data.source, a path or the name of a data set")
    shape = None if input_shape is None else tuple(input_shape)
    more = {"budget_bytes": budget_bytes} if reader.reads_budget else {}
    source = call(reader, reader.open, config, path, shape, **more)
    if format not in BUILT_IN:
        check_source(reader, source, shape)
        source = GuardedSource(reader, source)
    return cast(Source, source)


def can_peek(format: str) -> bool:
    """Returns whether `peek_source` can read data of this format. Raises ConfigurationError like `open_source`."""
    return bool(find(format).peek)


def peek_source(
    config: DataConfig, path: Path | Url, input_shape: Sequence[int], examples_max: int, seconds_max: float
) -> Peek:
    """As `open_source`, but reads headers, all labels, and no more examples than are allowed.

    Raises:
        ConfigurationError, DamagedDataError: as `open_source`, of what has been read.
    """
    reader = find(config.format)
    return cast(Peek, call(reader, reader.peek, config, path, tuple(input_shape), examples_max, seconds_max))


def state_of(config: DataConfig, place: Path | Url | None) -> bytes:
    """Returns a digest of the files that would be read: names, sizes, times of change and identities.

    Behind a URL, it is of what their server tells of them. Nothing is known of a folder whose reader, of another
    package, does not say what it reads (`Reader.files`). No content is read.

    Args:
        place: what `find_source` found; None: the data are installed.

    Raises:
        ConfigurationError: no such format, files that are missing, or files that this user may not read.
        DamagedDataError: a list of files is damaged.
        UnreachableError: files behind a URL cannot be listed.
    """
    digest = blake2b(digest_size=16)
    for line in () if place is None else _lines(find(config.format), config, place):
        digest.update(os.fsencode(line) + b"\n")
    return digest.digest()


def _lines(reader: Reader, config: DataConfig, place: Path | Url) -> Iterator[str]:
    if isinstance(place, Url):
        endings = reader.suffixes if reader.reads_urls and reader.name in BUILT_IN else ()
        for shard in RemoteFiles(place, config).shards(endings):
            yield f"{shard.name} {shard.size_bytes} {shard.identity}"
        return
    for path in _files(reader, config, place):
        with reported(path):
            found = os.stat(path)
        yield f"{path} {found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _files(reader: Reader, config: DataConfig, place: Path) -> Sequence[Path]:
    if reader.files:
        found: Sequence[Path] = call(reader, reader.files, config, place)
        return found
    return [place] if place.is_file() else []
