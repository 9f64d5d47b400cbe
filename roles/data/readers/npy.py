"""NumPy `.npy` files in a folder, images read where and when they are needed: for arrays larger than memory.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.late_file import LateFile, ReadCounter
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import (
    FileSplit,
    Labels,
    Peek,
    Targets,
    check_numbers,
    check_same_kind,
    checked_labels,
    matching_shape,
    named_classes,
    number_names,
    peek_at_table,
)
from adamctl.roles.data.readers.targets import check_same_length, checked_targets

_RUN_EXAMPLES_MIN: Final = 8
"""A read costs as much as some examples through a mapping: only runs of examples, so long in the mean, are read."""
_TOUCHED_MAX: Final = 1024  # examples; the system maps up to 64 KiB around each
READER: Final = Reader(
    "npy", (), open=f"{__name__}:open_npy", peek=f"{__name__}:peek_npy", files=f"{__name__}:npy_files"
)
_NAMES: Final[dict[FileSplit, tuple[str, str, str]]] = {
    "train": ("x_train.npy", "y_train.npy", "targets_train.npy"),
    "test": ("x_test.npy", "y_test.npy", "targets_test.npy"),
}


class _Folder(NamedTuple):
    """What a folder holds. Labels are 0 where there are targets; `classes` are names, if labels are texts."""

    tables: dict[FileSplit, _Table]
    labels: dict[FileSplit, Labels]
    classes: tuple[str, ...]
    targets: dict[FileSplit, Targets]


class FileSource:
    """A source whose values stay in their files, [examples, ...]; labels are in memory.

    Pages of a mapped file count as memory of this process until others need it. So blocks are read, not mapped.
    """

    format = "npy"
    resident = False

    def __init__(self, folder: Path, input_shape: Sequence[int] | None) -> None:
        """Raises as `open_npy`."""
        self.origin = str(folder)
        tables, self._labels, classes, self._targets = _tables(folder)
        self.classes = () if self._targets else classes or number_names(self._labels, self.origin)
        train = tables["train"].values
        self.example_shape = matching_shape(train.shape[1:], input_shape, self.origin)
        self.dtype = np.dtype(np.uint8 if train.dtype == np.uint8 else np.float32)
        self.value_max = 255.0 if train.dtype == np.uint8 else 1.0
        self._counter = ReadCounter()
        self._readers = {split: _TableReader(table, self._counter) for split, table in tables.items()}
        answers = (*self._labels.values(), *self._targets.values())
        self.resident_bytes = sum(values.nbytes for values in answers)
        sizes_bytes = {table.path: table.path.stat().st_size for table in tables.values()}
        self.stored_bytes = sum(sizes_bytes.values()) + self.resident_bytes

    @property
    def read_bytes(self) -> int:
        return self._counter.total_bytes

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def targets(self, split: FileSplit) -> Targets | None:
        return self._targets.get(split)

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError if the file is no longer the one that was opened."""
        if len(indices):
            self._readers[split].load(indices, out)


class _Table(NamedTuple):
    """An array in a file, mapped, which begins at `start_bytes`."""

    path: Path
    values: NDArray[Any]
    start_bytes: int


class _TableReader:
    """Reads examples that follow one another by one call; others through the mapping, whose pages it lets go of."""

    def __init__(self, table: _Table, counter: ReadCounter) -> None:
        self._file = LateFile(table.path, counter)
        self._counter = counter
        self._values = table.values
        self._start_bytes = table.start_bytes
        self._touched = 0  # examples read through the mapping since its pages were last let go

    def load(self, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        self._file.check()  # reading behind the end of a mapped file kills the process
        ends = np.append(np.flatnonzero(np.diff(indices) != 1) + 1, len(indices))
        if self._values.flags.c_contiguous and len(indices) >= _RUN_EXAMPLES_MIN * len(ends):
            self._read_runs(indices, ends.tolist(), out)
            return
        values = self._values[indices]
        out.reshape(values.shape)[...] = values
        self._counter.add(values.nbytes)
        self._touched += len(indices)
        if self._touched >= _TOUCHED_MAX and isinstance(self._values, np.memmap):
            self._touched = 0
            self._values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def _read_runs(self, indices: NDArray[np.int64], ends: list[int], out: NDArray[Any]) -> None:
        dtype = self._values.dtype
        direct = out.dtype == dtype and out.flags.c_contiguous
        target = out if direct else np.empty(out.shape, dtype)
        view = target.reshape(-1).view(np.uint8).data
        row_bytes = math.prod(self._values.shape[1:]) * dtype.itemsize
        at = 0
        for end, first in zip(ends, indices[[0, *ends[:-1]]].tolist(), strict=True):
            self._file.read_into(view[at * row_bytes : end * row_bytes], self._start_bytes + first * row_bytes)
            at = end
        if not direct:
            out[...] = target


def open_npy(folder: Path, input_shape: Sequence[int] | None = None) -> FileSource:
    """Opens a folder with x_train.npy, y_train.npy, x_test.npy and y_test.npy; the last two may be missing.

    In place of labels there may be targets, numbers [examples] or [examples, k]: targets_train.npy, targets_test.npy.

    Images are [examples, ...] of bytes (`unit` maps 0..255 to 0..1) or of any other number type (loaded as float32;
    `unit` leaves them unchanged); labels are whole numbers from 0, or strings, which are the names of the classes.

    Raises:
        ConfigurationError: files are missing, or the images do not fit the model's input.
        DamagedDataError: a file is not a plain array of the length its header says, or images and labels do not fit
            together.
    """
    return FileSource(folder, input_shape)


def peek_npy(folder: Path, input_shape: Sequence[int] | None, examples_max: int, seconds_max: float = math.inf) -> Peek:
    """Reads headers, labels and first examples of a folder that `open_npy` would open; that takes no time to limit.

    Raises:
        ConfigurationError, DamagedDataError: like `open_npy`, for what was read.
    """
    tables, labels, classes, targets = _tables(folder)
    parts: dict[FileSplit, tuple[tuple[int, ...], NDArray[Any], Labels]] = {}
    for split, (_, values, _) in tables.items():
        dtype = np.uint8 if values.dtype == np.uint8 else np.float32
        parts[split] = values.shape, values[:examples_max].astype(dtype), labels[split]
    return peek_at_table(parts, input_shape, str(folder), classes, targets["train"].shape[1] if targets else 0)


def npy_files(folder: Path) -> list[Path]:
    """Returns the files of a folder that `open_npy` would open."""
    return [path for names in _NAMES.values() for name in names if (path := folder / name).exists()]


def _tables(folder: Path) -> _Folder:
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
            raise ConfigurationError(
                f"{folder}: expected a folder with {path.name}, found no such file; name the folder that has it"
            )
    tables: dict[FileSplit, _Table] = {split: _map(pair[0]) for split, pair in paths.items()}
    for path, values, _ in tables.values():
        check_numbers(values.dtype, values.shape, str(path))
    given: list[NDArray[Any]] = [np.array(_map(pair[1]).values) for pair in paths.values()]
    classes, numbers = ((), given) if has_targets else named_classes(given, str(folder))
    labels: dict[FileSplit, Labels] = {}
    targets: dict[FileSplit, Targets] = {}
    for (split, pair), answers in zip(paths.items(), numbers, strict=True):
        examples = len(tables[split].values)
        if has_targets:
            targets[split] = checked_targets(answers, examples, str(pair[1]))
        zeros = np.zeros(examples, np.int32)
        labels[split] = zeros if has_targets else checked_labels(answers, examples, str(pair[1]))
    train = tables["train"]
    if "test" not in tables:
        tables["test"], labels["test"] = train._replace(values=train.values[:0]), np.empty(0, np.int32)
        if has_targets:
            targets["test"] = targets["train"][:0]
    check_same_kind(train.values, tables["test"].values, str(folder))
    if targets:
        check_same_length(targets, str(folder))
    return _Folder(tables, labels, classes, targets)


def read_array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns what the header of an array says, and leaves the file behind it: shape, whether in Fortran order, type.

    Raises:
        ValueError: it cannot be read; the message says so.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        found: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file)
    except Exception as error:  # NumPy parses the header as Python, which fails in many ways
        raise ValueError(f"a header that cannot be read: {error}") from error
    return found


def _map(path: Path) -> _Table:
    """Maps a file after its header was checked against its length.

    Raises:
        DamagedDataError: they do not fit together, it holds Python objects, or it is no such file at all.
    """
    with path.open("rb") as file:
        try:
            shape, fortran_order, dtype = read_array_header(file)
        except ValueError as error:
            raise DamagedDataError(f"{path}: expected a .npy file, found {error}") from error
        start_bytes = file.tell()
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
        return _Table(path, np.empty(shape, dtype, order), start_bytes)
    return _Table(path, np.memmap(path, dtype, "r", start_bytes, shape, order), start_bytes)
