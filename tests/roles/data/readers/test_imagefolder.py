"""Folders of images: classes by name, a stable test share, scaled and cropped to the model's input."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.imagefolder import PIXELS_MAX, ImageFolderSource, decode_image, image_size

image_module = pytest.importorskip("PIL.Image", reason="needs the image extra")


def test_classes_are_folders_and_every_file_is_in_one_split(image_folder: Callable[..., Path]) -> None:
    source = ImageFolderSource(image_folder(examples=40), (4, 4, 3))
    assert source.classes == ("cat", "dog")
    train, test = source.paths("train"), source.paths("test")
    assert len(train) + len(test) == 80 and not set(train) & set(test)
    assert 4 <= len(test) <= 30
    assert [source.classes[label] for label in source.labels("test")] == [path.parent.name for path in test]


def test_adding_a_file_moves_no_other_to_the_other_side(image_folder: Callable[..., Path]) -> None:
    folder = image_folder(examples=30)
    before = set(ImageFolderSource(folder, (4, 4, 3)).paths("test"))
    shutil.copy(folder / "cat" / "000.png", folder / "cat" / "another.png")
    after = set(ImageFolderSource(folder, (4, 4, 3)).paths("test"))
    assert before <= after and len(after - before) <= 1


def test_train_and_test_folders_are_used(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    image_folder("both/train", examples=5)
    image_folder("both/test", classes=("dog",), examples=3)
    source = ImageFolderSource(tmp_path / "both", (4, 4, 3))
    assert len(source.labels("train")) == 10 and source.labels("test").tolist() == [1, 1, 1]


def test_a_class_only_the_test_folder_has_is_refused(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    image_folder("both/train")
    image_folder("both/test", classes=("dog", "emu"))
    with pytest.raises(ConfigurationError, match="emu"):
        ImageFolderSource(tmp_path / "both", (4, 4, 3))


def test_the_shorter_side_is_fitted_and_the_middle_is_kept(tmp_path: Path) -> None:
    values = np.zeros((10, 30, 3), np.uint8)
    values[:, 10:20] = 200
    image_module.fromarray(values).save(tmp_path / "wide.png")
    found = decode_image(tmp_path / "wide.png", (10, 10, 3))
    np.testing.assert_array_equal(found, np.full((10, 10, 3), 200))


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (50, 3), (300, 245)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_size_and_mode_becomes_the_models_input(
    tmp_path: Path, size: tuple[int, int], mode: str, channels: int
) -> None:
    path = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    image_module.new(mode, size).save(path)
    assert decode_image(path, (8, 8, channels)).shape == (8, 8, channels)


def test_sixteen_bit_grey_is_not_clipped(tmp_path: Path) -> None:
    image_module.fromarray(np.full((4, 4), 0x8000, np.uint16)).save(tmp_path / "deep.png")
    assert decode_image(tmp_path / "deep.png", (4, 4, 1)).max() == 0x80


def test_a_broken_image_is_refused_with_its_name(image_folder: Callable[..., Path]) -> None:
    folder = image_folder()
    source = ImageFolderSource(folder, (4, 4, 3))
    path = source.paths("train")[3]
    content = path.read_bytes()
    for damaged in (b"", content[:20], content[: len(content) * 2 // 3], b"no image"):
        path.write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=path.name):
            source.load("train", np.array([3]), np.empty((1, 4, 4, 3), np.float32))


@pytest.mark.parametrize("shape", [(64,), (8, 8, 2), (8, 8)])
def test_an_input_that_is_no_image_is_refused(image_folder: Callable[..., Path], shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="height, width"):
        ImageFolderSource(image_folder(), shape)


def test_a_folder_without_classes_or_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="one folder"):
        ImageFolderSource(tmp_path, (4, 4, 3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="found none"):
        ImageFolderSource(tmp_path, (4, 4, 3))


def test_without_pillow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'adamctl\[image\]'"):
        ImageFolderSource(tmp_path, (4, 4, 3))


def test_caltech_photographs_are_decoded(caltech: Path) -> None:
    source = ImageFolderSource(caltech, (32, 32, 3))
    assert len(source.classes) == 10 and "sunflower" in source.classes
    indices = np.arange(0, len(source.labels("train")), 20)
    out = np.empty((len(indices), 32, 32, 3), np.float32)
    source.load("train", indices, out)
    assert out.min() >= 0 and out.max() <= 255 and out.std() > 10


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        b"GIF89a" + bytes(20),
        b"",
        b"II*\0" + bytes(9),
    ],
)
def test_what_does_not_begin_as_jpeg_or_png_meets_no_decoder(tmp_path: Path, content: bytes) -> None:
    """An EPS of that name would start Ghostscript."""
    path = tmp_path / "x.jpg"
    path.write_bytes(content)
    with pytest.raises(DamagedDataError, match=r"x\.jpg: expected a complete JPEG or PNG image.*first bytes"):
        decode_image(path, (4, 4, 3))
    with pytest.raises(DamagedDataError, match=r"x\.jpg: expected a JPEG or PNG image.*first bytes"):
        image_size(path)


def test_an_image_may_have_the_other_ones_ending(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    image_module.new("RGB", (4, 4), (1, 2, 3)).save(path, format="PNG")
    assert decode_image(path, (4, 4, 3)).reshape(-1, 3).tolist() == [[1, 2, 3]] * 16


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    image_module.new("1", (PIXELS_MAX // 1024, 1025)).save(path)
    assert path.stat().st_size < 100_000
    with pytest.raises(DamagedDataError, match=r"large\.png: .*32768 x 1025 pixels, more than 33554432; scale it down"):
        decode_image(path, (4, 4, 3))


def test_the_configuration_says_which_files_are_the_test_part(image_folder: Callable[..., Path]) -> None:
    config = DataConfig(format="imagefolder", source="x", test_files="00[0-2].png")
    source = ImageFolderSource(image_folder(examples=5), (4, 4, 3), config)
    assert [path.name for path in source.paths("test")] == ["000.png", "001.png", "002.png"] * 2
    assert source.labels("test").tolist() == [0, 0, 0, 1, 1, 1] and len(source.labels("train")) == 4
