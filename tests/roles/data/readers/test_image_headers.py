"""Headers of JPEG and PNG files: sizes, channels, orientation, and what is damaged."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from adamctl.roles.data.readers.image_headers import PIXELS_MAX, read_header

image_module = pytest.importorskip("PIL.Image", reason="needs the image extra")


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (9, 6), **options: Any) -> bytes:
    file = io.BytesIO()
    image_module.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def with_orientation(orientation: int) -> Any:
    exif = image_module.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("CMYK", 4)])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg(mode: str, channels: int, progressive: bool) -> None:
    found = read_header(encoded("JPEG", mode, progressive=progressive))
    assert (found.kind, found.height, found.width, found.channels, found.bits) == ("JPEG", 6, 9, channels, 8)
    assert found.orientation == 1 and not found.turned


@pytest.mark.parametrize(
    ("mode", "channels", "bits"),
    [("1", 1, 1), ("L", 1, 8), ("I;16", 1, 16), ("LA", 2, 8), ("P", 3, 1), ("RGB", 3, 8), ("RGBA", 4, 8)],
)
def test_png(mode: str, channels: int, bits: int) -> None:
    found = read_header(encoded("PNG", mode))
    assert (found.kind, found.height, found.width, found.channels, found.bits) == ("PNG", 6, 9, channels, bits)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int) -> None:
    found = read_header(encoded("JPEG", exif=with_orientation(orientation)))
    assert (found.orientation, found.turned) == (orientation, orientation >= 5)


def test_an_orientation_of_big_endian_exif() -> None:
    content = encoded("JPEG", exif=with_orientation(6))
    swapped = (
        b"Exif\0\0MM\0*" + (8).to_bytes(4, "big") + (1).to_bytes(2, "big") + bytes.fromhex("011200030000000100060000")
    )
    segment = b"\xff\xe1" + (2 + len(swapped)).to_bytes(2, "big") + swapped
    start = content.index(b"\xff\xe1")
    end = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
    assert read_header(content[:start] + segment + content[end:]).orientation == 6


@pytest.mark.parametrize("orientation", [0, 9, 4000])
def test_an_orientation_that_makes_no_sense_turns_nothing(orientation: int) -> None:
    assert read_header(encoded("JPEG", exif=with_orientation(orientation))).orientation == 1


@pytest.mark.parametrize(
    "content",
    [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", b"GIF89a" + bytes(20), b"", b"II*\0" + bytes(9)],
)
def test_neither_jpeg_nor_png(content: bytes) -> None:
    with pytest.raises(ValueError, match="neither a JPEG nor a PNG"):
        read_header(content)


def test_too_many_pixels() -> None:
    content = encoded("PNG", "1", (PIXELS_MAX // 1024, 1025))
    with pytest.raises(ValueError, match="32768 x 1025 pixels, more than 33554432; scale it down"):
        read_header(content)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_every_cut_and_every_flipped_byte_is_a_header_or_an_error(kind: str) -> None:
    content = encoded(kind, **({"exif": with_orientation(6)} if kind == "JPEG" else {}))
    damaged = [content[:size] for size in range(min(len(content), 700))]
    random = np.random.default_rng(21)
    for at in range(min(len(content), 700)):
        flipped = bytearray(content)
        flipped[at] ^= int(random.integers(1, 256))
        damaged.append(bytes(flipped))
    headers = 0
    for each in damaged:
        try:
            found = read_header(each)
        except ValueError:
            continue
        headers += 1
        assert 0 < found.height * found.width <= PIXELS_MAX and 1 <= found.orientation <= 8
    assert 0 < headers < len(damaged)
