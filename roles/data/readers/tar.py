"""Tar files of images or arrays: WebDataset's convention, or a folder of images per class packed as it is.

One file, or a folder or pattern of shards. Members are read at random by `pread`; nothing is unpacked.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.images import FILE_BYTES_MAX, SHOWN_SHAPE, ImageDecoder, image_size
from adamctl.roles.data.readers.npy import read_array_header
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Labels, Peek, matching_shape, number_names
from adamctl.roles.data.readers.splits import arrange, split_of
from adamctl.roles.data.readers.tar_files import Place, TarFiles
from adamctl.roles.data.readers.tar_index import ShardIndex, index_of
from adamctl.roles.data.readers.tar_shards import shards_of

READER: Final = Reader(
    "tar",
    (".tar",),
    open=f"{__name__}:open_tar",
    extra="image",
    peek=f"{__name__}:peek_tar",
    reads_config=True,
    files=f"{__name__}:tar_files",
)
_BLOCK_EXAMPLES: Final = 1024
_ARRAY: Final = ".npy"
_DAMAGED: Final = -1
"""The shard of the first example that is none but a damaged place; -2 of the second, and so on."""


class TarSource:
    """Examples of tar shards, decoded when they are loaded, in the order of the shards and of the members in them."""

    format = "tar"
    resident = False

    def __init__(self, path: Path, input_shape: Sequence[int] | None, config: DataConfig) -> None:
        """Raises as `open_tar`."""
        self.origin = str(path)
        shards = shards_of(path)
        pairs: list[tuple[FileSplit | None, Path]] = []
        if isinstance(shards, dict):
            pairs = [(split, shard) for split, those in shards.items() for shard in those]
        else:
            pairs = [(None, shard) for shard in shards]
        indexes = [index_of(shard) for _, shard in pairs]
        damages = [damage for index in indexes for damage in index.damages]
        self._damages = damages
        if damages and config.on_error == "fail":
            more = f" (and {len(damages) - 1} more places)" if len(damages) > 1 else ""
            raise DamagedDataError(f"{damages[0]}{more}")
        holds_arrays = _arrays(indexes, self.origin)
        self._files = TarFiles([shard for _, shard in pairs], indexes)
        sides = [split for split, _ in pairs]
        if _labelled(indexes, self.origin):
            self.classes, placed = _by_label(indexes, sides, self._files.paths, config, self.origin)
        else:
            self.classes, placed = _by_name(indexes, sides, config, self.origin)
        # What is damaged counts as an example of the first class, which `load` refuses: so it is named and counted.
        placed["train"] += [(_DAMAGED - number, 0, 0, 0) for number in range(len(damages))]
        self._places = {split: np.array(placed[split], np.int64).reshape(-1, 4)[:, :3] for split in FILE_SPLITS}
        self._labels = {split: np.array([each[3] for each in placed[split]], np.int32) for split in FILE_SPLITS}
        self.stored_bytes = sum(index.size_bytes for index in indexes)
        self.resident_bytes = sum(36 * len(labels) for labels in self._labels.values())
        self._images: ImageDecoder | None = None
        if holds_arrays:
            self._array_shape, array_dtype = self._first_array()
            self.example_shape = matching_shape(self._array_shape, input_shape, self.origin)
            self.dtype = np.dtype(np.uint8 if array_dtype == np.uint8 else np.float32)
        else:
            self._images = ImageDecoder(input_shape or SHOWN_SHAPE, config.decoder, "tar files of images")
            self.example_shape, self.dtype = self._images.shape, np.dtype(np.uint8)
        self.value_max = 255.0 if self.dtype == np.uint8 else 1.0

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def blocks(self, split: FileSplit) -> NDArray[np.int64]:
        """Returns the lengths of runs of examples that lie together: at most 1,024 of one shard."""
        shards = self._places[split][:, 0]
        _, counts = np.unique(np.where(shards < 0, len(self._files.paths), shards), return_counts=True)
        lengths = [min(_BLOCK_EXAMPLES, count - at) for count in counts for at in range(0, count, _BLOCK_EXAMPLES)]
        return np.array(lengths, np.int64)

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError with shard, member and byte if one cannot be decoded, or if a shard has changed."""
        for row, content, origin in self._contents(split, indices):
            if self._images is not None:
                out[row] = self._images.decode(content, origin)
            else:
                out[row] = self._array(content, origin).reshape(self.example_shape)

    def sizes(self, split: FileSplit) -> list[tuple[int, int, int]]:
        """Returns (height, width, channels) of each image of a split; none for arrays."""
        if self._images is None:
            return []
        everything = np.flatnonzero(self._places[split][:, 0] >= 0)
        return [image_size(content, origin) for _, content, origin in self._contents(split, everything)]

    def _contents(self, split: FileSplit, indices: NDArray[np.int64]) -> Iterator[tuple[int, bytes, Place]]:
        """Yields row, content and place of examples."""
        for row, (shard, offset, size) in enumerate(self._places[split][indices].tolist()):
            if shard < 0:
                raise DamagedDataError(self._damages[_DAMAGED - shard])
            origin = self._files.place(shard, offset)
            if size > FILE_BYTES_MAX:
                raise DamagedDataError(f"{origin}: {size:,} bytes, more than an example may have, {FILE_BYTES_MAX:,}")
            yield row, self._files.read(shard, offset, size), origin

    def _first_array(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        for split in FILE_SPLITS:
            for _, content, origin in self._contents(split, np.arange(min(1, len(self._labels[split])))):
                values = _decode_array(content, origin)
                return values.shape, values.dtype
        raise ConfigurationError(f"{self.origin}: expected examples, found none")

    def _array(self, content: bytes, origin: Place) -> NDArray[Any]:
        values = _decode_array(content, origin)
        if values.shape != self._array_shape or (values.dtype == np.uint8) != (self.dtype == np.uint8):
            kind = "uint8" if self.dtype == np.uint8 else "numbers"
            raise DamagedDataError(
                f"{origin}: expected {kind} {list(self._array_shape)} as in the first example, "
                f"found {values.dtype} {list(values.shape)}"
            )
        return values


def open_tar(path: Path, input_shape: Sequence[int] | None, *, config: DataConfig) -> TarSource:
    """Opens tar files.

    Raises:
        ConfigurationError: no tar files or no examples, compressed ones, no decoder, or what does not fit the input.
        DamagedDataError: a header of a member, or a class, is damaged.
    """
    return TarSource(path, input_shape, config)


def peek_tar(
    path: Path, input_shape: Sequence[int], examples_max: int, seconds_max: float, *, config: DataConfig
) -> Peek:
    """Reads all headers and classes like `TarSource`, and decodes some examples. Raises as `open_tar`."""
    source = TarSource(path, input_shape, config)
    until_s = time.monotonic() + seconds_max
    values = np.empty((1, *source.example_shape), source.dtype)
    for split in FILE_SPLITS:
        examples = len(source.labels(split))
        for number in np.random.default_rng(0).permutation(examples)[:examples_max]:
            source.load(split, np.array([number]), values)
            if time.monotonic() > until_s:
                break
    return Peek(source.classes, {split: source.labels(split) for split in FILE_SPLITS})


def tar_files(path: Path, *, config: DataConfig) -> list[Path]:
    """Returns the shards that `open_tar` would open. Raises ConfigurationError: there is none."""
    found = shards_of(path)
    return [shard for those in found.values() for shard in those] if isinstance(found, dict) else found


_Placed = dict[FileSplit, list[tuple[int, int, int, int]]]
"""Shard, offset, size and label of each example."""


def _by_label(
    indexes: Sequence[ShardIndex],
    sides: Sequence[FileSplit | None],
    shards: Sequence[Path],
    config: DataConfig,
    origin: str,
) -> tuple[tuple[str, ...], _Placed]:
    """Returns the classes, and the examples of each split, of shards whose samples say their class."""
    if config.test_files and "test" in sides:
        raise ConfigurationError(
            f'data.test_files = "{config.test_files}", but {origin} has a folder "test": leave the key out'
        )
    values = [label for index in indexes for label in index.labels or ()]
    kinds = {type(value) for value in values}
    if len(kinds) > 1:
        name = next(value for value in values if isinstance(value, str))
        raise DamagedDataError(
            f"{origin}: expected all classes as numbers, or all as names; found {name!r} and numbers"
        )
    names = tuple(sorted(set(map(str, values)))) if kinds == {str} else ()
    numbers = {name: number for number, name in enumerate(names)}
    placed: _Placed = {split: [] for split in FILE_SPLITS}
    for shard, index in enumerate(indexes):
        side = sides[shard]
        if (
            side is None
            and config.test_files
            and len(indexes) > 1
            and fnmatchcase(shards[shard].name, config.test_files)
        ):
            side = "test"
        columns = zip(index.names, index.offsets, index.sizes_bytes, index.labels or (), strict=True)
        for name, offset, size, label in columns:
            split = side or split_of(name.rpartition("/")[2], str(label), config)
            placed[split].append((shard, offset, size, numbers[label] if isinstance(label, str) else label))
    if config.test_files and not placed["test"]:
        raise ConfigurationError(f'{origin}: expected shards or members that match "{config.test_files}", found none')
    every: dict[FileSplit, Labels] = {
        split: np.array([example[3] for example in examples], np.int32) for split, examples in placed.items()
    }
    return names or number_names(every, origin), placed


def _by_name(
    indexes: Sequence[ShardIndex], sides: Sequence[FileSplit | None], config: DataConfig, origin: str
) -> tuple[tuple[str, ...], _Placed]:
    """Returns the classes, and the examples of each split, of shards whose members' names say their class."""
    where: dict[str, tuple[int, int, int]] = {}
    for shard, index in enumerate(indexes):
        before = f"{sides[shard]}/" if sides[shard] else ""
        for name, offset, size in zip(index.names, index.offsets, index.sizes_bytes, strict=True):
            if f"{before}{name}" in where:
                raise DamagedDataError(f"{origin}: expected each member once, found {name!r} twice")
            where[f"{before}{name}"] = shard, offset, size
    arranged = arrange(where, config, origin)
    placed: _Placed = {}
    for split in FILE_SPLITS:
        pairs = zip(arranged.names[split], arranged.labels[split].tolist(), strict=True)
        placed[split] = sorted((*where[name], label) for name, label in pairs)
    return arranged.classes, placed


def _labelled(indexes: Sequence[ShardIndex], origin: str) -> bool:
    kinds = {index.labels is not None for index in indexes if index.names}
    if len(kinds) > 1:
        raise ConfigurationError(f"{origin}: expected members that say a class (.cls) in all shards, or in none")
    return kinds == {True}


def _arrays(indexes: Sequence[ShardIndex], origin: str) -> bool:
    """Returns whether examples are arrays. Raises ConfigurationError if only some are, or there are none."""
    kinds = {name.lower().endswith(_ARRAY) for index in indexes for name in index.names}
    if not kinds:
        raise ConfigurationError(f"{origin}: expected members .jpg, .jpeg, .png or .npy, found none")
    if len(kinds) > 1:
        raise ConfigurationError(f"{origin}: expected images or arrays (.npy), found both")
    return kinds == {True}


def _decode_array(content: bytes, origin: Place) -> NDArray[Any]:
    """Returns the array in a .npy file. Raises DamagedDataError."""
    file = io.BytesIO(content)
    try:
        shape, fortran_order, dtype = read_array_header(file)
    except ValueError as error:
        raise DamagedDataError(f"{origin}: expected a .npy file, found {error}") from error
    if dtype.kind not in "uif" or min(shape, default=1) < 1:
        raise DamagedDataError(f"{origin}: expected an array of numbers, found {dtype} {list(shape)}")
    rest = len(content) - file.tell()
    if prod(shape) * dtype.itemsize != rest:
        raise DamagedDataError(
            f"{origin}: expected {dtype} {list(shape)}, {prod(shape) * dtype.itemsize} bytes, found {rest}"
        )
    values: NDArray[Any] = np.frombuffer(content, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if fortran_order else "C")
