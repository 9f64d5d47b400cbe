"""What the headers of JPEG and PNG files say: size, channels, orientation. Nothing is decoded.

JPEG: ITU-T T.81, annex B; orientation: Exif 2.32 (JEITA CP-3451), tag 0x0112. PNG: ISO/IEC 15948, chunk IHDR.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal

PIXELS_MAX: Final = 32 << 20
"""Bound on a decoded image. A few hundred kilobytes of PNG can expand to gigabytes."""
_JPEG_MAGIC: Final = b"\xff\xd8\xff"
_PNG_MAGIC: Final = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame; the rest: tables and a reserve
_ALONE: Final = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
_SCAN, _END, _EXIF = 0xDA, 0xD9, 0xE1
_ORIENTATION: Final = 0x0112
_ENTRIES_MAX: Final = 256


@dataclass(frozen=True)
class ImageHeader:
    """An image as its header describes it.

    Attributes:
        kind: the format, by its first bytes.
        height, width: pixels as they are stored.
        channels: values per pixel as they are stored; 3 for a palette.
        bits: of a value.
        orientation: Exif's 1 to 8, how the stored pixels are to be turned; 1 means not at all. PNG: always 1.
    """

    kind: Literal["JPEG", "PNG"]
    height: int
    width: int
    channels: int
    bits: int
    orientation: int = 1

    @property
    def turned(self) -> bool:
        """Whether height and width change places when the image is turned as it is to be seen."""
        return self.orientation >= 5


def read_header(content: bytes) -> ImageHeader:
    """Returns what the header of a file says, whatever its name ends with.

    Raises:
        ValueError: it is neither JPEG nor PNG, its header is damaged, or it has more than PIXELS_MAX pixels.
    """
    if content.startswith(_JPEG_MAGIC):
        header = _jpeg(content)
    elif content.startswith(_PNG_MAGIC):
        header = _png(content)
    else:
        first = content[:8].hex(" ") or "none"
        raise ValueError(f"first bytes {first}, which is neither a JPEG nor a PNG file")
    if not header.height or not header.width:
        raise ValueError(f"{header.width} x {header.height} pixels in its header")
    if header.height * header.width > PIXELS_MAX:
        raise ValueError(f"{header.width} x {header.height} pixels, more than {PIXELS_MAX}; scale it down")
    return header


def _png(content: bytes) -> ImageHeader:
    if len(content) < 33 or content[12:16] != b"IHDR":
        raise ValueError("a PNG file without its header IHDR")
    width, height, bits, colour = struct.unpack_from(">IIBB", content, 16)
    if colour not in _PNG_CHANNELS:
        raise ValueError(f"a PNG file of colour type {colour}")
    return ImageHeader("PNG", height, width, _PNG_CHANNELS[colour], bits)


def _jpeg(content: bytes) -> ImageHeader:
    """Walks the segments up to the frame."""
    at, orientation = 2, 1
    while True:
        at = content.find(b"\xff", at)
        if at < 0 or at + 4 > len(content):
            raise ValueError("a JPEG file that ends before its frame")
        marker = content[at + 1]
        if marker in (0x00, 0xFF) or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in (_SCAN, _END):
            raise ValueError("a JPEG file without a frame")
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        if marker in _FRAMES:
            if at + 10 > len(content):
                raise ValueError("a JPEG file that ends within its frame's header")
            bits, height, width, channels = struct.unpack_from(">BHHB", content, at + 4)
            return ImageHeader("JPEG", height, width, channels, bits, orientation)
        if marker == _EXIF:
            orientation = _orientation(content[at + 4 : at + 2 + length]) or orientation
        at += 2 + length


def _orientation(segment: bytes) -> int:
    """Returns Exif's orientation in an APP1 segment; 0 if it has none, or none that makes sense."""
    if not segment.startswith(b"Exif\0\0"):
        return 0
    tiff = segment[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return 0
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    if start + 2 > len(tiff):
        return 0
    (entries,) = struct.unpack_from(f"{order}H", tiff, start)
    for number in range(min(entries, _ENTRIES_MAX)):
        entry = start + 2 + 12 * number
        if entry + 12 > len(tiff):
            return 0
        tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
        if tag == _ORIENTATION:
            return value if (kind, count) == (3, 1) and 1 <= value <= 8 else 0
    return 0
