"""Folders of JPEG or PNG files, one folder per class, decoded as `images` says."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.images import Decoder, ImageDecoder, Pixels
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Labels, Peek

TEST_SHARE: Final = 0.2
_ENDINGS: Final = (".jpg", ".jpeg", ".png")

READER: Final = Reader(
    "imagefolder",
    (),
    open=f"{__name__}:open_images",
    extra="image",
    peek=f"{__name__}:peek_images",
    reads_config=True,
)


class ImageFolderSource:
    """Images as bytes [height, width, channels], decoded when they are loaded.

    Every image is made as large as the model's input, as `images` says. Layout: `folder/CLASS/*.jpg`, or
    `folder/train/CLASS/*.jpg` and `folder/test/CLASS/*.jpg`; without a test folder, the files whose name has a hash in
    the lowest `TEST_SHARE` are the test set, so adding files never moves an old one to the other set. Other files are
    ignored.
    """

    format = "imagefolder"
    dtype = np.dtype(np.uint8)
    value_max = 255.0
    resident = False

    def __init__(self, folder: Path, input_shape: Sequence[int], decoder: Decoder = "pillow") -> None:
        """Raises ConfigurationError: no decoder, no images, different classes, or an input that is not an image."""
        self._images = ImageDecoder(input_shape, decoder, "folders of images")
        self.example_shape = self._images.shape
        self.origin = str(folder)
        self.classes, self._paths, self._labels = _list_images(folder)
        self.stored_bytes = sum(path.stat().st_size for paths in self._paths.values() for path in paths)
        self.resident_bytes = sum(labels.nbytes for labels in self._labels.values())

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def paths(self, split: FileSplit) -> list[Path]:
        """Returns the files of a split in order."""
        return self._paths[split]

    def decode_file(self, path: Path) -> Pixels:
        """Returns one image. Raises DamagedDataError."""
        return self._images.decode_file(path)

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError with the file's name if one cannot be decoded."""
        paths = self._paths[split]
        for row, index in enumerate(indices):
            out[row] = self._images.decode_file(paths[index])


def open_images(
    folder: Path, input_shape: Sequence[int] | None, *, config: DataConfig | None = None
) -> ImageFolderSource:
    """Opens a folder.

    Raises:
        ConfigurationError: like `ImageFolderSource`, or there is no input shape to scale images to.
    """
    if input_shape is None:
        raise ConfigurationError("folders of images are scaled to the model's input: say which one")
    return ImageFolderSource(folder, input_shape, "pillow" if config is None else config.decoder)


def peek_images(
    folder: Path,
    input_shape: Sequence[int],
    examples_max: int,
    seconds_max: float,
    *,
    config: DataConfig | None = None,
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


def _list_images(
    folder: Path,
) -> tuple[tuple[str, ...], dict[FileSplit, list[Path]], dict[FileSplit, Labels]]:
    if not folder.is_dir():
        raise ConfigurationError(f"expected a folder with one folder of images per class, found a file: {folder}")
    train_folder = folder / "train" if (folder / "train").is_dir() else folder
    test_folder = folder / "test" if train_folder != folder and (folder / "test").is_dir() else None
    classes = _class_names(train_folder)
    if test_folder is not None and (unknown := set(_class_names(test_folder)) - set(classes)):
        raise ConfigurationError(
            f"{test_folder}: expected classes that {train_folder} has ({', '.join(classes)}), "
            f"found {', '.join(sorted(unknown))}"
        )
    paths: dict[FileSplit, list[Path]] = {split: [] for split in FILE_SPLITS}
    labels: dict[FileSplit, list[int]] = {split: [] for split in FILE_SPLITS}
    for label, name in enumerate(classes):
        found = list(_images(train_folder / name))
        if not found:
            raise ConfigurationError(f"{train_folder / name}: expected JPEG or PNG files of class {name!r}, found none")
        placed = [("test" if test_folder is None and _is_test(path) else "train", path) for path in found]
        if test_folder is not None and (test_folder / name).is_dir():
            placed += [("test", path) for path in _images(test_folder / name)]
        for split in FILE_SPLITS:
            chosen = [path for side, path in placed if side == split]
            paths[split] += chosen
            labels[split] += [label] * len(chosen)
    return classes, paths, {split: np.array(numbers, np.int32) for split, numbers in labels.items()}


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    if not names:
        raise ConfigurationError(f"{folder}: expected one folder of JPEG or PNG files per class, found no folder")
    return names


def _images(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in _ENDINGS and not path.name.startswith(".") and path.is_file():
            yield path


def _is_test(path: Path) -> bool:
    """Decides by class and file name, so that all machines agree."""
    digest = hashlib.blake2b(f"{path.parent.name}/{path.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < TEST_SHARE * 2**64
