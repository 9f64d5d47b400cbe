"""JPEG and PNG files to bytes [height, width, channels], by Pillow (extra `image`) or OpenCV (extra `opencv`).

The experiment says which one (`data.decoder`), so that a run does not depend on what is installed: the two differ by
rounding and in how they average pixels. OpenCV decodes JPEG of one or three channels; everything else is Pillow's.

An image is turned as its Exif orientation says (JPEG only), scaled so that it just covers the wanted size, and cropped
around its centre. Transparency is dropped, 16 bits become the higher 8, CMYK becomes RGB, and colour becomes grey, or
grey becomes colour, as the model's input wants.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ChangedDataError, ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.image_headers import ImageHeader, read_header

Decoder = Literal["pillow", "opencv"]
Pixels = NDArray[np.uint8]
FILE_BYTES_MAX: Final = 256 << 20
"""Bound on a file, which is read as a whole."""
SHOWN_SHAPE: Final = (64, 64, 3)
"""Images become so large where no model says how large."""
_MODES: Final = {1: "L", 3: "RGB"}
_REDUCTIONS: Final = (8, 4, 2)
_ERRORS: Final = (OSError, ValueError, SyntaxError, EOFError, MemoryError, OverflowError)


class ImageDecoder:
    """Decodes images to one shape with one of the two libraries. Thread-safe."""

    def __init__(self, shape: Sequence[int], decoder: Decoder = "pillow", origin: str = "images") -> None:
        """`shape`: [height, width, channels], the model's input; `origin`: what is decoded, for the message.

        Raises:
            ConfigurationError: it is no shape of an image, or a library is not installed.
        """
        if len(shape) != 3 or shape[2] not in _MODES:
            raise ConfigurationError(
                f"{origin} need a model input of [height, width, 1] or [height, width, 3], found {list(shape)}"
            )
        self.shape = (int(shape[0]), int(shape[1]), int(shape[2]))
        self.decoder = decoder
        self._pillow = load_pillow()
        self._opencv = load_opencv() if decoder == "opencv" else None
        of_opencv = () if self._opencv is None else (self._opencv.error,)
        self._errors: tuple[type[Exception], ...] = (*_ERRORS, self._pillow.DecompressionBombError, *of_opencv)

    def decode(self, content: bytes, origin: object) -> Pixels:
        """Returns the image in the bytes of a file, uint8 of this decoder's shape. `origin` is text only in errors.

        Raises:
            DamagedDataError: it cannot be decoded completely; the message begins with `origin`.
        """
        try:
            header = read_header(content)
            height, width, channels = self.shape
            if header.turned:
                height, width = width, height
            if self._opencv is not None and header.kind == "JPEG" and header.channels in _MODES:
                pixels = self._by_opencv(content, header, (height, width, channels))
            else:
                pixels = self._by_pillow(content, header, (height, width, channels))
        except self._errors as error:
            raise damaged(origin, error) from error
        return _turn(pixels, header.orientation)

    def decode_file(self, path: Path) -> Pixels:
        """Like `decode`, of a file. Raises DamagedDataError also if it cannot be read or is too large."""
        return self.decode(read_image_file(path), str(path))

    def _by_pillow(self, content: bytes, header: ImageHeader, shape: tuple[int, int, int]) -> Pixels:
        height, width, channels = shape
        with self._pillow.open(io.BytesIO(content), formats=(header.kind,)) as image:
            image.draft(_MODES[channels], (width, height))  # JPEG: decode at 1/2, 1/4 or 1/8 if that is enough
            image.load()
            if image.mode.startswith("I"):  # 16-bit grey: Pillow would clip it at 255
                image = self._pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            image = image.convert(_MODES[channels])
            scale = max(width / image.width, height / image.height)
            wide, high = max(width, round(image.width * scale)), max(height, round(image.height * scale))
            if (wide, high) != image.size:
                image = image.resize((wide, high), self._pillow.Resampling.BILINEAR)
            left, top = (wide - width) // 2, (high - height) // 2
            return np.asarray(image.crop((left, top, left + width, top + height)), np.uint8).reshape(shape)

    def _by_opencv(self, content: bytes, header: ImageHeader, shape: tuple[int, int, int]) -> Pixels:
        """Decodes at 1/2, 1/4 or 1/8 if that is enough, crops, and only then scales what is left."""
        height, width, channels = shape
        cv2: Any = self._opencv
        fits = (each for each in _REDUCTIONS if header.height // each >= height and header.width // each >= width)
        flags = _flags(cv2, next(fits, 1), channels)
        image = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
        if image is None:
            raise ValueError("data that end too early, or that OpenCV cannot decode")
        high, wide = image.shape[:2]
        scale = min(high / height, wide / width)
        rows, columns = min(high, max(1, round(height * scale))), min(wide, max(1, round(width * scale)))
        top, left = (high - rows) // 2, (wide - columns) // 2
        image = image[top : top + rows, left : left + columns]
        if (rows, columns) != (height, width):
            # Up to 2 to 1, four pixels are all there are: as near to Pillow's full-size result as Pillow's reduced one.
            how = cv2.INTER_AREA if scale > 2 else cv2.INTER_LINEAR
            image = cv2.resize(image, (width, height), interpolation=how)
        if channels == 3:
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        pixels: Pixels = np.asarray(image, np.uint8).reshape(shape)
        return pixels


def image_size(content: bytes, origin: object) -> tuple[int, int, int]:
    """Returns (height, width, channels) of an image as it is seen; 3 channels for anything with colour.

    Raises:
        DamagedDataError: its header cannot be read.
    """
    try:
        header = read_header(content)
    except ValueError as error:
        raise DamagedDataError(f"{origin}: expected a JPEG or PNG image, found: {error}") from error
    height, width = (header.width, header.height) if header.turned else (header.height, header.width)
    return height, width, 1 if header.channels < 3 else 3


def read_image_file(path: Path) -> bytes:
    """Returns a file's bytes.

    Raises:
        ChangedDataError: the system cannot read it.
        DamagedDataError: it has more than FILE_BYTES_MAX bytes.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > FILE_BYTES_MAX:
            raise damaged(str(path), f"{size_bytes:,} bytes, more than {FILE_BYTES_MAX:,}")
        return path.read_bytes()
    except OSError as error:
        raise ChangedDataError(f"{path}: expected a file that can be read, found: {error}") from error


def damaged(origin: object, found: object) -> DamagedDataError:
    return DamagedDataError(
        f"{origin}: expected a complete JPEG or PNG image, found: {found}; repair or remove the file"
    )


def load_pillow() -> Any:
    """Returns Pillow's module Image. Raises ConfigurationError if it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigurationError(
            "images are decoded with Pillow, which is not installed here: pip install 'adamctl[image]'"
        ) from error
    return Image


def load_opencv() -> Any:
    """Returns OpenCV, with one thread for each call. Raises ConfigurationError if it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise ConfigurationError(
            "data.decoder = \"opencv\", which is not installed here: pip install 'adamctl[opencv]', "
            'or set data.decoder = "pillow"'
        ) from error
    _quieten(cv2)
    return cv2


@cache
def _quieten(cv2: Any) -> None:
    cv2.setNumThreads(1)  # data servers have decoding threads of their own
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # what is damaged is named by us, with its file


def _flags(cv2: Any, reduction: int, channels: int) -> int:
    colour = "COLOR" if channels == 3 else "GRAYSCALE"
    name = f"IMREAD_{colour}" if reduction == 1 else f"IMREAD_REDUCED_{colour}_{reduction}"
    return int(getattr(cv2, name) | cv2.IMREAD_IGNORE_ORIENTATION)


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    """Returns the image as it is to be seen."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
