"""A sheet shows training images as files have them, then as each pass trains on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.augment import AugmentConfig
from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import Range
from adamctl.roles.data.describe.sample import GAP, Variants, sheet, variants
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from tests.roles.data.orders import whole_pass

SHAPE = (10, 8, 1)
AUGMENT = AugmentConfig(rotate=20, translate=1.5)


@pytest.fixture
def dataset(tmp_path: Path) -> OpenDataSet:
    images, labels = np.random.default_rng(2).integers(0, 256, (30, *SHAPE), np.uint8), np.arange(30) % 3
    np.savez(tmp_path / "some.npz", x_train=images, y_train=labels, x_test=images[:3], y_test=labels[:3])
    config = DataConfig(format="npz", source="some", augment=AUGMENT)
    return OpenDataSet("x", config, open_source(config, tmp_path / "some.npz", SHAPE), 7, 0)


def test_a_row_is_what_the_file_has_and_then_what_each_pass_trains_on(dataset: OpenDataSet) -> None:
    shown = variants(dataset, first=4, examples=3, passes=5)
    assert shown.images.shape == (3, 6, *SHAPE) and shown.labels.tolist() == [1, 2, 0] and shown.white == 255
    for pass_number in range(5):
        order = whole_pass(dataset, "train", pass_number).tolist()
        for row, index in enumerate((4, 5, 6)):
            place = order.index(index)
            got, label = np.empty((1, dataset.form.elements), np.uint8), np.empty(1, np.int32)
            dataset.gather(Range("train", pass_number, place, place + 1), got, label)
            np.testing.assert_array_equal(shown.images[row, 1 + pass_number], got.reshape(SHAPE))
            assert label[0] == shown.labels[row]
    raw = np.empty((3, *SHAPE), np.uint8)
    dataset.source.load("train", np.array([4, 5, 6]), raw)
    np.testing.assert_array_equal(shown.images[:, 0], raw)
    assert (shown.images[:, 1] != raw).any()


def test_a_picture_has_a_row_for_each_example_and_a_column_for_each_pass(dataset: OpenDataSet) -> None:
    pytest.importorskip("PIL.Image", reason="needs the image extra")
    shown = variants(dataset, 0, 4, 2)
    page = np.asarray(sheet(shown, dataset.classes))
    height, width = 5 * SHAPE[0], 5 * SHAPE[1]  # enlarged five times
    top, left = page.shape[0] - 4 * (height + GAP), page.shape[1] - 3 * (width + GAP)
    for row in range(4):
        for column in range(3):
            y, x = top + row * (height + GAP), left + column * (width + GAP)
            found = page[y : y + height : 5, x : x + width : 5]
            np.testing.assert_array_equal(found[..., :1], shown.images[row, column])


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_numbers_become_bytes_between_black_and_white(channels: int) -> None:
    pytest.importorskip("PIL.Image", reason="needs the image extra")
    values: Any = np.zeros((1, 2, 60, 60, channels), np.float32)
    values[0, 1] = 0.5
    page = np.asarray(sheet(Variants(values, np.empty(0, np.int32), 1.0), ("a",)))
    assert page[-10, -10].tolist() == [128] * 3 and page[-10, -80].tolist() == [0] * 3


def test_what_cannot_be_shown_is_refused(dataset: OpenDataSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected at most 30 training examples, found 28 and 3 more"):
        variants(dataset, 28, 3, 1)
    config = DataConfig(format="npz", source="some")
    flat = OpenDataSet("x", config, open_source(config, tmp_path / "some.npz", (80,)), 7, 0)
    with pytest.raises(ConfigurationError, match=r"examples of shape \[80\]: set model.input"):
        variants(flat, 0, 1, 1)
