"""NumPy `.npy` files in a folder, images memory-mapped: for arrays that are larger than memory.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import (
    FILE_SPLITS,
    FileSplit,
    Labels,
    Peek,
    Targets,
    check_numbers,
    check_same_kind,
    check_same_length,
    checked_labels,
    checked_targets,
    matching_shape,
    named_classes,
    number_names,
    peek_at_table,
)

READER: Final = Reader("npy", (), open=f"{__name__}:open_npy", peek=f"{__name__}:peek_npy")
_NAMES: Final[dict[FileSplit, tuple[str, str, str]]] = {
    "train": ("x_train.npy", "y_train.npy", "targets_train.npy"),
    "test": ("x_test.npy", "y_test.npy", "targets_test.npy"),
}


class _Mapped(NamedTuple):
    """What a folder holds: files of images, the images mapped, labels (0 where there are targets), names, targets."""

    paths: dict[FileSplit, Path]
    images: dict[FileSplit, NDArray[Any]]
    labels: dict[FileSplit, Labels]
    classes: tuple[str, ...]
    targets: dict[FileSplit, Targets]


class MappedSource:
    """A source whose values stay in their files, memory-mapped [examples, ...]; labels are in memory."""

    format = "npy"
    resident = False

    def __init__(self, folder: Path, input_shape: Sequence[int] | None) -> None:
        """Raises as `open_npy`."""
        self.origin = str(folder)
        self._paths, self._images, self._labels, classes, self._targets = _mapped(folder)
        self.classes = () if self._targets else classes or number_names(self._labels, self.origin)
        train = self._images["train"]
        self.example_shape = matching_shape(train.shape[1:], input_shape, self.origin)
        self.dtype = np.dtype(np.uint8 if train.dtype == np.uint8 else np.float32)
        self.value_max = 255.0 if train.dtype == np.uint8 else 1.0
        self._sizes_bytes = {split: path.stat().st_size for split, path in self._paths.items()}
        answers = (*self._labels.values(), *self._targets.values())
        self.resident_bytes = sum(values.nbytes for values in answers)
        self.stored_bytes = sum(self._sizes_bytes.values()) + self.resident_bytes

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def targets(self, split: FileSplit) -> Targets | None:
        return self._targets.get(split)

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError if the file is no longer as long as when it was opened."""
        if not len(indices):
            return
        path, images = self._paths[split], self._images[split]
        # Reading behind the end of a mapped file kills the process.
        found_bytes = path.stat().st_size if path.exists() else 0
        if found_bytes != self._sizes_bytes[split]:
            raise DamagedDataError(
                f"{path}: expected {self._sizes_bytes[split]} bytes as when it was opened, found {found_bytes}; "
                "do not change data while a run reads them"
            )
        out.reshape(len(indices), *images.shape[1:])[...] = images[indices]


def open_npy(folder: Path, input_shape: Sequence[int] | None = None) -> MappedSource:
    """Opens a folder with x_train.npy, y_train.npy, x_test.npy and y_test.npy; the last two may be missing.

    In place of labels there may be targets, numbers [examples] or [examples, k]: targets_train.npy, targets_test.npy.

    Images are [examples, ...] of bytes (`unit` maps 0..255 to 0..1) or of any other number type (loaded as float32;
    `unit` leaves them unchanged); labels are whole numbers from 0, or strings, which are the names of the classes.

    Raises:
        ConfigurationError: files are missing, or the images do not fit the model's input.
        DamagedDataError: a file is not a plain array of the length its header says, or images and labels do not fit
            together.
    """
    return MappedSource(folder, input_shape)


def peek_npy(folder: Path, input_shape: Sequence[int] | None, examples_max: int, seconds_max: float = math.inf) -> Peek:
    """Reads headers, labels and first examples of a folder that `open_npy` would open; that takes no time to limit.

    Raises:
        ConfigurationError, DamagedDataError: like `open_npy`, for what was read.
    """
    _, images, labels, classes, targets = _mapped(folder)
    parts: dict[FileSplit, tuple[tuple[int, ...], NDArray[Any], Labels]] = {}
    for split, values in images.items():
        dtype = np.uint8 if values.dtype == np.uint8 else np.float32
        parts[split] = values.shape, values[:examples_max].astype(dtype), labels[split]
    return peek_at_table(parts, input_shape, str(folder), classes, targets["train"].shape[1] if targets else 0)


def _mapped(folder: Path) -> _Mapped:
    has_targets = (folder / _NAMES["train"][2]).exists()
    if has_targets and (folder / _NAMES["train"][1]).exists():
        raise ConfigurationError(
            f"{folder}: expected labels or targets, found {_NAMES['train'][1]} and {_NAMES['train'][2]}: keep one"
        )
    answer = 2 if has_targets else 1
    paths = {split: (folder / names[0], folder / names[answer]) for split, names in _NAMES.items()}
    if not any(path.exists() for path in paths["test"]):
        del paths["test"]
    for path in (path for pair in paths.values() for path in pair):
        if not path.is_file():
            raise ConfigurationError(f"{folder}: expected a folder with {path.name}, found no such file")
    images: dict[FileSplit, NDArray[Any]] = {split: _map(pair[0]) for split, pair in paths.items()}
    for split, values in images.items():
        check_numbers(values.dtype, values.shape, str(paths[split][0]))
    given: list[NDArray[Any]] = [np.array(_map(pair[1])) for pair in paths.values()]
    classes, numbers = ((), given) if has_targets else named_classes(given, str(folder))
    labels: dict[FileSplit, Labels] = {}
    targets: dict[FileSplit, Targets] = {}
    for (split, pair), values in zip(paths.items(), numbers, strict=True):
        if has_targets:
            targets[split] = checked_targets(values, len(images[split]), str(pair[1]))
        zeros = np.zeros(len(images[split]), np.int32)
        labels[split] = zeros if has_targets else checked_labels(values, len(images[split]), str(pair[1]))
    if "test" not in images:
        images["test"], labels["test"] = images["train"][:0], np.empty(0, np.int32)
        if has_targets:
            targets["test"] = targets["train"][:0]
    check_same_kind(images["train"], images["test"], str(folder))
    if targets:
        check_same_length(targets, str(folder))
    files: dict[FileSplit, Path] = {split: paths.get(split, paths["train"])[0] for split in FILE_SPLITS}
    return _Mapped(files, images, labels, classes, targets)


def _map(path: Path) -> NDArray[Any]:
    """Maps a file after its header was checked against its length.

    Raises:
        DamagedDataError: they do not fit together, it holds Python objects, or it is no such file at all.
    """
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran_order, dtype = read(file)
            start_bytes = file.tell()
    except Exception as error:  # NumPy parses the header as Python, which fails in many ways
        raise DamagedDataError(f"{path}: expected a .npy file, found a header that cannot be read: {error}") from error
    if dtype.hasobject:
        raise DamagedDataError(f"{path}: expected numbers or texts, found Python objects, which are never unpickled")
    expected_bytes, found_bytes = math.prod(shape) * dtype.itemsize, path.stat().st_size - start_bytes
    if expected_bytes != found_bytes or min(shape, default=0) < 0:
        raise DamagedDataError(
            f"{path}: expected {dtype} {list(shape)}, {expected_bytes} bytes from byte {start_bytes} on by its header; "
            f"found {found_bytes}"
        )
    order: Literal["F", "C"] = "F" if fortran_order else "C"
    if not expected_bytes:
        return np.empty(shape, dtype, order)
    return np.memmap(path, dtype, "r", start_bytes, shape, order)
