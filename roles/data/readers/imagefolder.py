"""Folders of JPEG or PNG files, one folder per class, decoded with Pillow (the `image` extra)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Labels, Peek
from adamctl.roles.data.readers.splits import arrange, files_below

_ENDINGS: Final = (".jpg", ".jpeg", ".png")
_MODES: Final = {1: "L", 3: "RGB"}
_MAGIC: Final = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG"}
PIXELS_MAX: Final = 32 << 20
"""Bound on a decoded image. A few hundred kilobytes of PNG can expand to gigabytes."""

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

    Every image is scaled so that it just covers the model's input, then cropped around its centre; it is converted to
    RGB or grey to match the input's channels. Layout: `folder/CLASS/*.jpg`, or `folder/train/CLASS/*.jpg` and
    `folder/test/CLASS/*.jpg`; `adamctl.roles.data.readers.splits` says which are the test set. Other files are ignored.
    """

    format = "imagefolder"
    dtype = np.dtype(np.uint8)
    value_max = 255.0
    resident = False

    def __init__(self, folder: Path, input_shape: Sequence[int], config: DataConfig = DataConfig()) -> None:
        """Raises ConfigurationError: no Pillow, no images, different classes, or an input that is not an image."""
        _pillow()
        if len(input_shape) != 3 or input_shape[2] not in _MODES:
            raise ConfigurationError(
                "folders of images need a model input of [height, width, 1] or [height, width, 3], "
                f"found {list(input_shape)}"
            )
        self.example_shape = tuple(input_shape)
        self.origin = str(folder)
        arranged = arrange(files_below(folder, _ENDINGS, config, "JPEG or PNG files"), config, str(folder))
        self.classes, self._labels = arranged.classes, arranged.labels
        self._paths = {split: [folder / name for name in names] for split, names in arranged.names.items()}
        self.stored_bytes = sum(path.stat().st_size for paths in self._paths.values() for path in paths)
        self.resident_bytes = sum(labels.nbytes for labels in self._labels.values())

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def paths(self, split: FileSplit) -> list[Path]:
        """Returns the files of a split in order."""
        return self._paths[split]

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError with the file's name if one cannot be decoded."""
        paths = self._paths[split]
        for row, index in enumerate(indices):
            out[row] = decode_image(paths[index], self.example_shape)


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
    source = ImageFolderSource(folder, input_shape, config)
    paths = [path for split in FILE_SPLITS for path in source.paths(split)]
    until_s = time.monotonic() + seconds_max
    for number in np.random.default_rng(0).permutation(len(paths))[:examples_max]:
        decode_image(paths[number], source.example_shape)
        if time.monotonic() > until_s:
            break
    return Peek(source.classes, {split: source.labels(split) for split in FILE_SPLITS})


def decode_image(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Returns one image as bytes of `shape` [height, width, channels], scaled to cover it and cropped at the centre.

    Raises:
        DamagedDataError: the file is missing or cannot be decoded completely; the message names it.
    """
    image_module = _pillow()
    height, width, channels = shape
    try:
        with _open(path) as image:
            image.draft(_MODES[channels], (width, height))  # JPEG: decode at 1/2, 1/4 or 1/8 if that is enough
            _check_pixels(image)
            image.load()
            if image.mode.startswith("I"):  # 16-bit grey: Pillow would clip it at 255
                image = image_module.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            image = image.convert(_MODES[channels])
            scale = max(width / image.width, height / image.height)
            wide, high = max(width, round(image.width * scale)), max(height, round(image.height * scale))
            if (wide, high) != image.size:
                image = image.resize((wide, high), image_module.Resampling.BILINEAR)
            left, top = (wide - width) // 2, (high - height) // 2
            return np.asarray(image.crop((left, top, left + width, top + height)), np.uint8).reshape(shape)
    except (OSError, ValueError, SyntaxError, EOFError, image_module.DecompressionBombError) as error:
        raise DamagedDataError(
            f"{path}: expected a complete JPEG or PNG image, found: {error}; repair or remove the file"
        ) from error


def image_size(path: Path) -> tuple[int, int, int]:
    """Returns (height, width, channels) as the file's header says; 3 channels for anything with colour.

    Raises:
        DamagedDataError: the header cannot be read.
    """
    image_module = _pillow()
    try:
        with _open(path) as image:
            grey = image.mode in ("1", "L") or image.mode.startswith("I")
            return image.height, image.width, 1 if grey else 3
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise DamagedDataError(f"{path}: expected a JPEG or PNG image, found: {error}") from error


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Opens an image with the decoder that its first bytes indicate; ignores the file extension.

    Raises:
        ValueError: it is neither JPEG nor PNG.
        OSError: as raised by Pillow.
    """
    with path.open("rb") as file:
        first = file.read(max(map(len, _MAGIC)))
        kind = next((kind for magic, kind in _MAGIC.items() if first.startswith(magic)), None)
        if kind is None:
            raise ValueError(f"first bytes {first.hex(' ') or 'none'}, which is neither a JPEG nor a PNG file")
        file.seek(0)
        with _pillow().open(file, formats=(kind,)) as image:
            yield image


def _check_pixels(image: Any) -> None:
    if image.width * image.height > PIXELS_MAX:
        raise ValueError(f"{image.width} x {image.height} pixels, more than {PIXELS_MAX}; scale it down")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigurationError(
            "folders of images are decoded with Pillow, which is not installed here: pip install 'adamctl[image]'"
        ) from error
    return Image
