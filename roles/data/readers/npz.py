"""NumPy `.npz` archives with images and labels of the training and test sets. Nothing is ever unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.joined import JoinedSource, join_peeks
from adamctl.roles.data.readers.npy import read_array_header
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import (
    FileSplit,
    Peek,
    TableSource,
    Targets,
    check_fits,
    check_numbers,
    check_same_kind,
    checked_labels,
    named_classes,
    peek_at_table,
)
from adamctl.roles.data.readers.targets import check_same_length, checked_targets

_KEYS: Final = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("images", "labels", "test_images", "test_labels"),
    ("x_train", "targets_train", "x_test", "targets_test"),
    ("images", "targets", "test_images", "test_targets"),
)
_PLACES: Final[dict[FileSplit, int]] = {"train": 0, "test": 2}
"""The positions of a split's images and labels, or targets, in those."""

_ARRAY_MAGIC: Final = b"\x93NUMPY"
READER: Final = Reader(
    "npz", (".npz",), open=f"{__name__}:open_npz", peek=f"{__name__}:peek_npz", files=f"{__name__}:npz_files"
)


class NpzSource(TableSource):
    """An archive's examples; its array `weights` is only read if it is asked for."""

    def weights(self, split: FileSplit) -> NDArray[np.float64]:
        """Returns how often to draw each training example in relation to others, [examples].

        Raises:
            ConfigurationError: the archive has no such array.
            DamagedDataError: it is not one number per example.
        """
        examples = len(self.labels(split))
        with _opened(Path(self.origin)) as (archive, _):
            if "weights" not in archive:
                raise ConfigurationError(
                    f'{self.origin}: data.sampling = "weights" needs an array weights [{examples}]; '
                    f"found {', '.join(archive)}"
                )
            found = archive["weights"]
        if found.shape != (examples,) or found.dtype.kind not in "iuf":
            raise DamagedDataError(
                f"{self.origin}: weights: expected one number for each of {examples} training examples, "
                f"found {found.dtype} {list(found.shape)}"
            )
        return np.asarray(found, np.float64)


def open_npz(path: Path, input_shape: Sequence[int] | None = None) -> NpzSource | JoinedSource:
    """Opens an archive as `open_archive` does, or all that are in a folder as one.

    Raises:
        ConfigurationError, DamagedDataError: like `open_archive`, or archives differ in kind.
    """
    files = _archives(path)
    return (
        open_archive(path, input_shape)
        if files is None
        else JoinedSource([open_archive(file, input_shape) for file in files], str(path))
    )


def npz_files(path: Path) -> list[Path]:
    """Returns the archives that `open_npz` would open."""
    return _archives(path) or [path]


def _archives(path: Path) -> list[Path] | None:
    """Returns the archives of a folder by their names; None if it is a file, or a folder without any."""
    files = sorted(file for file in path.glob("*.npz") if not file.name.startswith(".")) if path.is_dir() else []
    return files or None


def open_archive(path: Path, input_shape: Sequence[int] | None = None) -> NpzSource:
    """Opens an archive with x_train, y_train, x_test, y_test, or images, labels, test_images, test_labels.

    The test set may be missing. Images are [examples, ...] of bytes (kept as bytes; `unit` maps 0..255 to 0..1) or of
    any other number type (converted to float32; `unit` leaves them unchanged); labels are whole numbers from 0, or
    strings, which are the names of the classes. In place of labels there may be targets, numbers [examples] or
    [examples, k]: targets_train and targets_test, or targets and test_targets.

    Raises:
        ConfigurationError: keys are missing, or the images do not fit the model's input or the arrays the memory.
        DamagedDataError: the archive cannot be read, holds Python objects, or images and labels do not fit together.
    """
    with _opened(path) as (archive, keys):
        _check_size(path, archive, keys)
        loaded = {key: archive[key] for key in keys}
    given, classes = [loaded[key] for key in keys[1::2]], tuple[str, ...]()
    if not _has_targets(keys):
        classes, given = named_classes(given, str(path))
    arrays: dict[FileSplit, tuple[NDArray[Any], NDArray[np.int32]]] = {}
    targets: dict[FileSplit, Targets] = {}
    for (split, number), values in zip(_PLACES.items(), given, strict=False):
        images = _images(path, loaded[keys[number]], keys[number])
        origin = f"{path}: {keys[number + 1]}"
        if _has_targets(keys):
            targets[split] = checked_targets(values, len(images), origin)
            arrays[split] = images, np.zeros(len(images), np.int32)
        else:
            arrays[split] = images, checked_labels(values, len(images), origin)
    train = arrays["train"][0]
    if "test" not in arrays:
        arrays["test"] = train[:0], np.empty(0, np.int32)
        if targets:
            targets["test"] = targets["train"][:0]
    if targets:
        check_same_length(targets, str(path))
    check_same_kind(train, arrays["test"][0], str(path))
    value_max = 255.0 if train.dtype == np.uint8 else 1.0
    return NpzSource(
        "npz",
        arrays,
        value_max=value_max,
        stored_bytes=path.stat().st_size,
        input_shape=input_shape,
        origin=str(path),
        classes=classes,
        targets=targets or None,
    )


def peek_npz(path: Path, input_shape: Sequence[int] | None, examples_max: int, seconds_max: float = math.inf) -> Peek:
    """Reads headers, labels and first examples of archives that `open_npz` would open; that takes no time to limit.

    Raises:
        ConfigurationError, DamagedDataError: like `open_npz`, for what was read.
    """
    files = _archives(path)
    if files is not None:
        return join_peeks([peek_npz(file, input_shape, -(-examples_max // len(files))) for file in files], str(path))
    parts: dict[FileSplit, tuple[tuple[int, ...], NDArray[Any], NDArray[np.int32]]] = {}
    targets: dict[FileSplit, Targets] = {}
    with _opened(path) as (archive, keys):
        _check_size(path, archive, keys)
        given, classes = [archive[key] for key in keys[1::2]], tuple[str, ...]()
        if not _has_targets(keys):
            classes, given = named_classes(given, str(path))
        for (split, number), values in zip(_PLACES.items(), given, strict=False):
            shape, first = _peek(archive, keys[number], examples_max)
            check_numbers(first.dtype, shape, f"{path}: {keys[number]}")
            first = first if first.dtype == np.uint8 else first.astype(np.float32)
            origin = f"{path}: {keys[number + 1]}"
            if _has_targets(keys):
                targets[split] = checked_targets(values, shape[0], origin)
            labels = np.zeros(shape[0], np.int32) if targets else checked_labels(values, shape[0], origin)
            parts[split] = shape, first, labels
    shape, first, labels = parts["train"]
    parts.setdefault("test", ((0, *shape[1:]), first[:0], labels[:0]))
    count = check_same_length(targets, str(path)) if targets else 0
    return peek_at_table(parts, input_shape, str(path), classes, count)


def _peek(archive: Any, key: str, rows_max: int) -> tuple[tuple[int, ...], NDArray[Any]]:
    """Returns an array's shape and first rows; the whole array if it is in Fortran order, which has no first rows."""
    with archive.zip.open(f"{key}.npy") as member:
        shape, fortran_order, dtype = read_array_header(member)
        if fortran_order or dtype.hasobject or not shape:
            whole: NDArray[Any] = archive[key]
            return shape, whole[:rows_max] if shape else whole
        rows = min(rows_max, shape[0])
        content = member.read(rows * prod(shape[1:]) * dtype.itemsize)
        return shape, np.frombuffer(content, dtype).reshape(rows, *shape[1:])


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Opens an archive; yields it and the keys of its arrays, with those of the test set only if it has one.

    Raises:
        ConfigurationError, DamagedDataError: like `open_npz`.
    """
    if not path.is_file():
        raise ConfigurationError(
            f"expected an .npz file, found a folder: {path}; name a file in it, or set data.format to what the folder "
            "holds, such as imagefolder"
        )
    try:
        with path.open("rb") as file:  # NumPy would read a single array as a whole, as long as its header says
            if file.read(len(_ARRAY_MAGIC)) == _ARRAY_MAGIC:
                raise DamagedDataError(f"{path}: expected an .npz archive, found a single array")
        with np.load(path, allow_pickle=False) as archive:
            names = [kind for keys in _KEYS for kind in (keys, keys[:2])]
            keys = next(
                (keys for keys in names if all(key in archive for key in keys) and not _has_half(archive, keys)), None
            )
            if keys is None:
                wanted = " or ".join(", ".join(keys) for keys in _KEYS)
                raise ConfigurationError(f"{path}: expected arrays {wanted}; found {', '.join(archive) or 'none'}")
            if sum(full[1] in archive for full in _KEYS) > 1:
                found = ", ".join(full[1] for full in _KEYS if full[1] in archive)
                raise ConfigurationError(f"{path}: expected labels or targets of the training set once, found {found}")
            yield archive, keys
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise DamagedDataError(
            f"{path}: expected an .npz archive of plain arrays, found: {error}; write or copy it again"
        ) from error


def _has_targets(keys: tuple[str, ...]) -> bool:
    return "targets" in keys[1]


def _has_half(archive: Any, keys: tuple[str, ...]) -> bool:
    """Whether one array of the test set is present without the other."""
    (test,) = [full[2:] for full in _KEYS if full[:2] == keys[:2]]
    return len(keys) == 2 and any(key in archive for key in test)


def _check_size(path: Path, archive: Any, keys: Sequence[str]) -> None:
    """Refuses an archive that is too large before anything is unpacked, by the sizes in its headers.

    Raises:
        ConfigurationError: the arrays need more memory than there is.
        DamagedDataError: a header's size differs from the archive's.
    """
    total_bytes = 0
    for key in keys:
        found = archive.zip.getinfo(f"{key}.npy")
        with archive.zip.open(found) as member:
            shape, _, dtype = read_array_header(member)
            if dtype.hasobject:
                continue  # it is refused when it is read
            expected_bytes, found_bytes = prod(shape) * dtype.itemsize, found.file_size - member.tell()
        if expected_bytes != found_bytes:
            raise DamagedDataError(
                f"{path}: {key} is {dtype} {list(shape)}, {expected_bytes} bytes by its header; found {found_bytes}"
            )
        total_bytes += expected_bytes if dtype == np.uint8 else expected_bytes + 4 * prod(shape)
    check_fits(total_bytes, str(path))


def _images(path: Path, images: NDArray[Any], key: str) -> NDArray[Any]:
    check_numbers(images.dtype, images.shape, f"{path}: {key}")
    return np.ascontiguousarray(images if images.dtype == np.uint8 else images.astype(np.float32))
