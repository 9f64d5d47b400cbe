"""What a look at data finds before any role starts, and how each finding is named."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.describe.look import Looked, Needs, look
from tests.roles.data.data_examples import idx_bytes, pattern

NEEDS = Needs((4, 4, 1), outputs=2, batch=8, seed=1)
LABELS = np.arange(40, dtype=np.int32) % 2


def npz(path: Path, **arrays: Any) -> DataConfig:
    values = {"x_train": pattern(40), "y_train": LABELS, "x_test": pattern(10), "y_test": LABELS[:10]} | arrays
    np.savez_compressed(path, **{key: value for key, value in values.items() if value is not None})
    return DataConfig(format="npz", source=str(path))


def idx(folder: Path, *, ending: str = "", test: bool = True) -> DataConfig:
    folder.mkdir()
    for name in ("train", "t10k") if test else ("train",):
        for part, content in (
            ("images-idx3", idx_bytes(pattern(40))),
            ("labels-idx1", idx_bytes(LABELS.astype(np.uint8))),
        ):
            packed = gzip.compress(content) if ending else content
            (folder / f"{name}-{part}-ubyte{ending}").write_bytes(packed)
    return DataConfig(format="idx", source=str(folder))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("format", ["npz", "idx", "idx.gz", "digits"])
def test_good_data_are_counted(tmp_path: Path, format: str, full: bool) -> None:
    if format == "digits":
        pytest.importorskip("sklearn", reason="needs the examples extra")
        found = look(DataConfig(format="digits", source=""), Needs((8, 8, 1), 10, 32, 1), full=full)
        assert found == Looked({"train": 1437, "validation": 0, "test": 360}, 10, ())
        return
    config = (
        npz(tmp_path / "d.npz")
        if format == "npz"
        else idx(tmp_path / "d", ending=".gz" if format.endswith("gz") else "")
    )
    found = look(config, NEEDS, full=full)
    assert (found.examples["train"], found.classes, found.warnings) == (40, 2, ())


@pytest.mark.parametrize("full", [False, True])
def test_as_many_are_held_out_of_blocks_as_of_examples(tmp_path: Path, full: bool) -> None:
    config = msgspec.structs.replace(npz(tmp_path / "d.npz"), order="blocks", validation=0.3)
    assert (
        look(config, NEEDS, full=full).examples == look(msgspec.structs.replace(config, order="auto"), NEEDS).examples
    )
    with pytest.raises(ConfigurationError, match="has 4 training examples"):
        look(msgspec.structs.replace(config, validation=0.9), NEEDS, full=full)


@pytest.mark.parametrize("full", [False, True])
def test_a_label_without_an_output_is_named(tmp_path: Path, full: bool) -> None:
    labels = LABELS.copy()
    labels[17] = 5
    config = npz(tmp_path / "d.npz", y_train=labels)
    with pytest.raises(ConfigurationError, match=r"train: example 17 has label 5, .* 2 units, .* set units to 6"):
        look(config, NEEDS, full=full)


@pytest.mark.parametrize("full", [False, True])
def test_a_label_of_a_million_does_not_make_a_million_classes(tmp_path: Path, full: bool) -> None:
    labels = LABELS.astype(np.int64)
    labels[3] = 1_000_000
    config = npz(tmp_path / "d.npz", y_train=labels)
    with pytest.raises(ConfigurationError, match="example 3 of train has label 1000000"):
        look(config, NEEDS, full=full)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(tmp_path: Path, bad: float) -> None:
    images = pattern(40).astype(np.float64)
    images[11, 2, 3] = bad
    config = npz(tmp_path / "d.npz", x_train=images, x_test=images[:10])
    with pytest.raises(DamagedDataError, match=f"train: expected finite numbers, found {bad} in example 11"):
        look(config, NEEDS)


def test_what_lies_further_in_is_found_by_reading_everything(tmp_path: Path) -> None:
    images = np.zeros((1500, 4, 4))
    images[1400] = np.nan
    config = npz(tmp_path / "d.npz", x_train=images, y_train=np.arange(1500) % 2, x_test=images[:10])
    assert look(config, NEEDS).examples["train"] == 1500
    with pytest.raises(DamagedDataError, match="in example 1400"):
        look(config, NEEDS, full=True)


@pytest.mark.parametrize("cut", [5, 30])
def test_a_file_that_is_cut_short_is_damaged(tmp_path: Path, cut: int) -> None:
    for ending in ("", ".gz"):
        config = idx(tmp_path / f"d{ending}", ending=ending)
        path = Path(config.source) / f"train-images-idx3-ubyte{ending}"
        path.write_bytes(path.read_bytes()[:-cut])
        with pytest.raises(DamagedDataError, match="train-images-idx3-ubyte"):
            look(config, NEEDS)


def test_a_gzip_in_pieces_is_read_whole(tmp_path: Path) -> None:
    """Its last bytes do not say how long all of it is, so only reading it all tells whether it is whole."""
    config = idx(tmp_path / "d", ending=".gz")
    path = Path(config.source) / "train-images-idx3-ubyte.gz"
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:-3]) + gzip.compress(content[-3:]))
    with pytest.raises(DamagedDataError, match="cut short"):  # our reader takes one piece only, and says so
        look(config, NEEDS)


def test_a_batch_larger_than_the_training_set_is_refused(tmp_path: Path) -> None:
    config = npz(tmp_path / "d.npz")
    with pytest.raises(ConfigurationError, match=r"train\.batch = 64, but .* has 40 training examples: set .* to 40"):
        look(config, NEEDS.__class__((4, 4, 1), 2, 64, 1))


def test_classes_that_never_occur_are_a_warning(tmp_path: Path) -> None:
    (warning,) = look(npz(tmp_path / "d.npz"), NEEDS.__class__((4, 4, 1), 10, 8, 1)).warnings
    assert "training examples of 2 classes, the model has 10 outputs" in warning
    labels = np.where(LABELS == 1, 2, LABELS)
    (warning,) = look(npz(tmp_path / "d.npz", y_train=labels), NEEDS.__class__((4, 4, 1), 3, 8, 1)).warnings
    assert warning.endswith("d.npz: 1 of 3 classes have no training example: 1")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("format", ["npz", "idx"])
def test_a_test_part_may_be_missing(tmp_path: Path, format: str, full: bool) -> None:
    config = npz(tmp_path / "d.npz", x_test=None, y_test=None) if format == "npz" else idx(tmp_path / "d", test=False)
    config = DataConfig(format=config.format, source=config.source, validation=0.2)
    assert look(config, NEEDS, full=full).examples == {"train": 32, "validation": 8, "test": 0}


@pytest.mark.parametrize("missing", ["x_test", "y_test"])
def test_half_of_a_test_part_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ConfigurationError, match="expected arrays x_train, y_train, x_test, y_test"):
        look(npz(tmp_path / "d.npz", **{missing: None}), NEEDS)


def test_examples_of_another_shape_are_refused_with_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"set model\.input = \[4, 4, 1\]"):
        look(npz(tmp_path / "d.npz"), NEEDS.__class__((5, 5, 1), 2, 8, 1))


def test_a_damaged_image_among_those_looked_at_is_named(image_folder: Callable[..., Path]) -> None:
    folder = image_folder(examples=20)
    config = DataConfig(format="imagefolder", source=str(folder))
    assert look(config, Needs((4, 4, 3), 2, 8, 1)).examples["train"] > 0
    for path in (folder / "cat").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DamagedDataError, match="expected a complete JPEG or PNG image"):
        look(config, Needs((4, 4, 3), 2, 8, 1))


def test_a_class_that_is_not_validated_is_noted(tmp_path: Path) -> None:
    rare = npz(tmp_path / "rare.npz", y_train=(np.arange(40) == 3).astype(np.int32))
    (note,) = look(msgspec.structs.replace(rare, validation=0.1), NEEDS).warnings
    assert "the validation part has examples of 1 of 2 classes; data.stratify = true" in note
    even = npz(tmp_path / "even.npz")
    assert look(msgspec.structs.replace(even, validation=0.1, stratify=True), NEEDS).warnings == ()
