"""Folders of JPEG or PNG files, one folder per class, decoded as `images` says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.images import ImageDecoder, Pixels, image_size, read_image_file
from adamctl.roles.data.readers.late_file import ReadCounter, check_unchanged
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Labels, Peek
from adamctl.roles.data.readers.splits import arrange, files_below

_ENDINGS: Final = (".jpg", ".jpeg", ".png")

READER: Final = Reader(
    "imagefolder",
    (),
    open=f"{__name__}:open_images",
    extra="image",
    peek=f"{__name__}:peek_images",
    reads_config=True,
    files=f"{__name__}:image_files",
)


class ImageFolderSource:
    """Images as bytes [height, width, channels], decoded when they are loaded.

    Every image is made as large as the model's input, as `images` says. Layout: `folder/CLASS/*.jpg`, or
    `folder/train/CLASS/*.jpg` and `folder/test/CLASS/*.jpg`; `adamctl.roles.data.readers.splits` says which are the
    test set. Other files are ignored.
    """

    format = "imagefolder"
    dtype = np.dtype(np.uint8)
    value_max = 255.0
    resident = False

    def __init__(self, folder: Path, input_shape: Sequence[int], config: DataConfig = DataConfig()) -> None:
        """Raises ConfigurationError: no decoder, no images, different classes, or an input that is not an image."""
        self._images = ImageDecoder(input_shape, config.decoder, "folders of images")
        self.example_shape = self._images.shape
        self.origin = str(folder)
        arranged = arrange(_names(folder, config), config, str(folder))
        self.classes, self._labels = arranged.classes, arranged.labels
        self._paths = {split: [folder / name for name in names] for split, names in arranged.names.items()}
        self._opened = {split: _sizes_and_times(paths) for split, paths in self._paths.items()}
        self._counter = ReadCounter()
        self.stored_bytes = sum(int(opened[:, 0].sum()) for opened in self._opened.values())
        self.resident_bytes = sum(self._labels[split].nbytes + self._opened[split].nbytes for split in FILE_SPLITS)

    @property
    def read_bytes(self) -> int:
        return self._counter.total_bytes

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def paths(self, split: FileSplit) -> list[Path]:
        """Returns the files of a split in order."""
        return self._paths[split]

    def decode_file(self, path: Path) -> Pixels:
        """Returns one image. Raises DamagedDataError."""
        return self._images.decode_file(path)

    def sizes(self, split: FileSplit) -> list[tuple[int, int, int]]:
        """Returns (height, width, channels) of each image of a split, as it is seen."""
        return [image_size(read_image_file(path), path) for path in self._paths[split]]

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError with the file's name if one cannot be decoded, or has changed since it was listed."""
        paths, opened = self._paths[split], self._opened[split]
        for row, index in enumerate(indices):
            size_bytes, changed_ns = opened[index].tolist()
            check_unchanged(paths[index], size_bytes, changed_ns)
            self._counter.add(size_bytes)
            out[row] = self._images.decode_file(paths[index])


def image_files(folder: Path, *, config: DataConfig) -> list[Path]:
    """Returns the images of a folder. Raises ConfigurationError: it or a class has none."""
    return [folder / name for name in _names(folder, config)]


def _names(folder: Path, config: DataConfig) -> list[str]:
    return files_below(folder, _ENDINGS, config, "JPEG or PNG files")


def _sizes_and_times(paths: Sequence[Path]) -> NDArray[np.int64]:
    """Returns the size in bytes and the time of change in nanoseconds of each file, [n, 2]."""
    found = [path.stat() for path in paths]
    return np.array([(one.st_size, one.st_mtime_ns) for one in found], np.int64).reshape(-1, 2)


def open_images(folder: Path, input_shape: Sequence[int] | None, *, config: DataConfig) -> ImageFolderSource:
    """Opens a folder.

    Raises:
        ConfigurationError: like `ImageFolderSource`, or there is no input shape to scale images to.
    """
    if input_shape is None:
        raise ConfigurationError("folders of images are scaled to the model's input: say which one")
    return ImageFolderSource(folder, input_shape, config)


def peek_images(
    folder: Path, input_shape: Sequence[int], examples_max: int, seconds_max: float, *, config: DataConfig
) -> Peek:
    """Lists a folder like `ImageFolderSource` and decodes some of its images.

    Raises:
        ConfigurationError, DamagedDataError: like there, for what was decoded.
    """
    source = open_images(folder, input_shape, config=config)
    paths = [path for split in FILE_SPLITS for path in source.paths(split)]
    until_s = time.monotonic() + seconds_max
    for number in np.random.default_rng(0).permutation(len(paths))[:examples_max]:
        source.decode_file(paths[number])
        if time.monotonic() > until_s:
            break
    return Peek(source.classes, {split: source.labels(split) for split in FILE_SPLITS})
