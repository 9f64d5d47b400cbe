"""Folders of images: classes by name, a stable test share, scaled and cropped to the model's input."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.imagefolder import ImageFolderSource

pytest.importorskip("PIL.Image", reason="needs the image extra")


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


def test_the_configuration_says_which_files_are_the_test_part(image_folder: Callable[..., Path]) -> None:
    config = DataConfig(format="imagefolder", source="x", test_files="00[0-2].png")
    source = ImageFolderSource(image_folder(examples=5), (4, 4, 3), config)
    assert [path.name for path in source.paths("test")] == ["000.png", "001.png", "002.png"] * 2
    assert source.labels("test").tolist() == [0, 0, 0, 1, 1, 1] and len(source.labels("train")) == 4


def test_an_image_that_changes_after_it_was_listed_is_named(image_folder: Callable[..., Path]) -> None:
    folder = image_folder()
    source = ImageFolderSource(folder, (4, 4, 3))
    out = np.empty((1, 4, 4, 3), np.uint8)
    source.load("train", np.array([0]), out)
    path = source.paths("train")[0]
    assert source.read_bytes == path.stat().st_size
    os.utime(path, ns=(1, 1))
    with pytest.raises(DamagedDataError, match=rf"{path.name}: expected the file that was opened, found one changed"):
        source.load("train", np.array([0]), out)
