"""Readers, one format each, behind `open_source`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.source import Peek, Source

_UNKNOWN = "expected data.format digits, idx, npz or imagefolder, found {!r}"


def open_source(format: str, path: Path | None, input_shape: Sequence[int] | None) -> Source:
    """Opens the examples at `path` (None only for `digits`, which has none).

    `input_shape` is the model's input; None takes what the files have (not possible for folders of images).

    Raises:
        ConfigurationError: files missing, an extra not installed, or examples that do not fit the model's input.
        DamagedDataError: a file is not what its format says.
    """
    if format == "digits":
        from adamctl.roles.data.readers.digits import open_digits

        return open_digits(input_shape)
    if path is None:
        raise ConfigurationError(f"data of format {format!r} needs data.source, a path or the name of a data set")
    if format == "idx":
        from adamctl.roles.data.readers.idx import open_idx

        return open_idx(path, input_shape)
    if format == "npz":
        from adamctl.roles.data.readers.npz import open_npz

        return open_npz(path, input_shape)
    if format == "imagefolder":
        from adamctl.roles.data.readers.imagefolder import ImageFolderSource

        if input_shape is None:
            raise ConfigurationError("folders of images are scaled to the model's input: say which one")
        return ImageFolderSource(path, input_shape)
    raise ConfigurationError(_UNKNOWN.format(format))


def peek_source(format: str, path: Path, input_shape: Sequence[int], examples_max: int, seconds_max: float) -> Peek:
    """As `open_source`, but reads headers, all labels, and no more examples than are allowed.

    Raises:
        ConfigurationError, DamagedDataError: as `open_source`, of what has been read.
    """
    if format == "idx":
        from adamctl.roles.data.readers.idx import peek_idx

        return peek_idx(path, input_shape, examples_max)
    if format == "npz":
        from adamctl.roles.data.readers.npz import peek_npz

        return peek_npz(path, input_shape, examples_max)
    if format == "imagefolder":
        from adamctl.roles.data.readers.imagefolder import peek_images

        return peek_images(path, input_shape, examples_max, seconds_max)
    raise ConfigurationError(_UNKNOWN.format(format))
