"""Images become what the model takes: by either library, of every size and mode, turned as they are to be seen."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers import images
from adamctl.roles.data.readers.images import Decoder, ImageDecoder, image_size
from tests.roles.data.readers.test_image_headers import encoded, with_orientation

image_module = pytest.importorskip("PIL.Image", reason="needs the image extra")
image_ops = pytest.importorskip("PIL.ImageOps")
DECODERS: tuple[Decoder, ...] = ("pillow", "opencv")


def decode(content: bytes, shape: Sequence[int], decoder: Decoder = "pillow") -> NDArray[np.uint8]:
    if decoder == "opencv":
        pytest.importorskip("cv2", reason="needs the opencv extra")
    return ImageDecoder(shape, decoder).decode(content, "x.jpg")


def jpeg(values: NDArray[np.uint8], **options: Any) -> bytes:
    file = io.BytesIO()
    image_module.fromarray(values).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """A smooth picture without symmetry, in which scaling loses little."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return (255 * np.stack((y, x, (x + y * y) / 2), axis=2)).astype(np.uint8)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_shorter_side_is_fitted_and_the_middle_is_kept(decoder: Decoder) -> None:
    values = np.zeros((40, 120, 3), np.uint8)
    values[:, 32:88] = 200
    np.testing.assert_allclose(decode(jpeg(values), (10, 10, 3), decoder), 200, atol=2)


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (50, 3), (300, 245)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "CMYK", "I;16", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_size_and_mode_becomes_the_models_input(size: tuple[int, int], mode: str, channels: int) -> None:
    content = encoded("JPEG" if mode == "CMYK" else "PNG", mode, size)
    for decoder in DECODERS:
        assert decode(content, (8, 8, channels), decoder).shape == (8, 8, channels)


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (50, 3), (300, 245), (17, 16), (15, 17), (64, 64)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_opencv_takes_every_size_and_mode_of_jpeg(size: tuple[int, int], channels: int, mode: str) -> None:
    assert decode(encoded("JPEG", mode, size), (8, 8, channels), "opencv").shape == (8, 8, channels)


@pytest.mark.parametrize("shape", [(32, 32, 3), (100, 100, 3), (40, 90, 3), (400, 300, 3), (50, 50, 1)])
def test_both_libraries_see_the_same_picture(shape: tuple[int, int, int]) -> None:
    content = jpeg(picture(245, 300))
    by_pillow, by_opencv = (decode(content, shape, decoder).astype(int) for decoder in DECODERS)
    assert np.abs(by_pillow - by_opencv).max() <= 6


def test_a_decoder_gives_the_same_bits_each_time() -> None:
    content = jpeg(picture(245, 300))
    for decoder in DECODERS:
        np.testing.assert_array_equal(decode(content, (60, 60, 3), decoder), decode(content, (60, 60, 3), decoder))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("decoder", DECODERS)
def test_images_are_turned_as_they_are_to_be_seen(orientation: int, decoder: Decoder) -> None:
    content = jpeg(picture(90, 120), exif=with_orientation(orientation))
    seen = image_ops.exif_transpose(image_module.open(io.BytesIO(content)))
    shape = (seen.height // 3, seen.width // 3, 3)
    wanted = np.asarray(seen.resize((shape[1], shape[0]), image_module.Resampling.BILINEAR)).astype(int)
    assert np.abs(decode(content, shape, decoder) - wanted).max() <= 8
    assert image_size(content, "x.jpg") == (seen.height, seen.width, 3)


def test_sixteen_bit_grey_is_not_clipped() -> None:
    file = io.BytesIO()
    image_module.fromarray(np.full((4, 4), 0x8000, np.uint16)).save(file, "PNG")
    assert decode(file.getvalue(), (4, 4, 1)).max() == 0x80


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_is_cut_is_refused_with_its_name(decoder: Decoder) -> None:
    content = jpeg(picture(90, 120))
    for size in (0, 1, 20, len(content) // 2, len(content) - 2):
        with pytest.raises(DamagedDataError, match=r"x\.jpg: expected a complete JPEG or PNG image, found: .+"):
            decode(content[:size], (30, 30, 3), decoder)


def test_what_does_not_begin_as_jpeg_or_png_meets_no_decoder() -> None:
    """An EPS of that name would start Ghostscript."""
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"
    with pytest.raises(DamagedDataError, match=r"x\.jpg: expected a complete JPEG or PNG image.*first bytes"):
        decode(content, (4, 4, 3))
    with pytest.raises(DamagedDataError, match=r"x\.jpg: expected a JPEG or PNG image.*first bytes"):
        image_size(content, "x.jpg")


def test_an_image_may_have_the_other_ones_ending(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    image_module.new("RGB", (4, 4), (1, 2, 3)).save(path, format="PNG")
    assert ImageDecoder((4, 4, 3)).decode_file(path).reshape(-1, 3).tolist() == [[1, 2, 3]] * 16


def test_a_file_too_large_to_be_an_image_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(bytes(101))
    monkeypatch.setattr(images, "FILE_BYTES_MAX", 100)
    with pytest.raises(DamagedDataError, match=r"x\.jpg: .*101 bytes, more than 100"):
        ImageDecoder((4, 4, 3)).decode_file(path)
    with pytest.raises(DamagedDataError, match=r"none\.jpg: .*No such file"):
        ImageDecoder((4, 4, 3)).decode_file(tmp_path / "none.jpg")


@pytest.mark.parametrize("shape", [(64,), (8, 8, 2), (8, 8)])
def test_a_shape_that_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="height, width"):
        ImageDecoder(shape)


@pytest.mark.parametrize(("module", "extra"), [("PIL", "image"), ("cv2", "opencv")])
def test_what_to_install(module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'adamctl\[{extra}\]'"):
        ImageDecoder((4, 4, 3), "opencv")
