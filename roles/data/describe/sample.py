"""A sheet of pictures: training images as they are in their files and as passes train on them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.readers.images import load_pillow
from adamctl.roles.data.sets.open_data_set import OpenDataSet

SIDE_MIN: Final = 56
"""Smaller images are shown larger by a whole factor, so that they are at least about so high or wide."""
GAP: Final = 3
PAPER: Final = 255
_LABEL_WIDTH, _LABEL_HEIGHT = 90, 14
_TEXT_MAX: Final = 14


class Variants(NamedTuple):
    """Training images and what passes make of them.

    Attributes:
        images: [examples, 1 + passes, *shape], of the source's type; first as in the files.
        labels: [examples]; empty where examples have targets and no class.
        white: the largest value.
    """

    images: NDArray[Any]
    labels: NDArray[np.int32]
    white: float


def variants(dataset: OpenDataSet, first: int, examples: int, passes: int) -> Variants:
    """Returns variants of the training images from `first` on, in the order of the files, as a worker gets them.

    Raises:
        ConfigurationError: there are fewer, or they are no images.
        DamagedDataError: a file cannot be decoded.
    """
    shape, there = dataset.source.example_shape, dataset.examples["train"]
    if len(shape) != 3:
        raise ConfigurationError(
            f"a sheet shows images; found examples of shape {list(shape)}: set model.input = [height, width, channels]"
        )
    if first + examples > there:
        raise ConfigurationError(f"expected at most {there} training examples, found {first} and {examples} more")
    wanted = Range("train", FILE_ORDER, first, first + examples)
    form = dataset.form
    whole = np.empty((examples, 1 + passes, *shape), form.numpy_dtype)
    plain = np.empty((examples, form.elements), form.numpy_dtype)
    labels = np.empty(form.label_shape(examples), form.label_dtype)
    dataset.gather(wanted, plain, labels)
    whole[:, 0] = plain.reshape(examples, *shape)
    indices = dataset.visits.draws(wanted)
    for pass_number in range(passes):
        changed = plain.copy()
        dataset.augmenter.apply(changed, indices, pass_number)
        whole[:, 1 + pass_number] = changed.reshape(examples, *shape)
    known = np.empty(0, np.int32) if form.targets else labels
    return Variants(whole, known, dataset.source.value_max)


def sheet(shown: Variants, classes: tuple[str, ...]) -> Any:
    """Returns a picture, as Pillow's Image: a row for each example, a column for each pass after the file's own.

    Raises:
        ConfigurationError: Pillow is not installed.
    """
    pillow = load_pillow()
    from PIL import ImageDraw

    pixels = _pixels(shown)
    rows, columns, height, width, _ = pixels.shape
    page = np.full(
        (_LABEL_HEIGHT + rows * (height + GAP), _LABEL_WIDTH + columns * (width + GAP), 3), PAPER, np.uint8
    )  # fmt: skip
    tops = [_LABEL_HEIGHT + row * (height + GAP) for row in range(rows)]
    lefts = [_LABEL_WIDTH + column * (width + GAP) for column in range(columns)]
    for row, top in enumerate(tops):
        for column, left in enumerate(lefts):
            page[top : top + height, left : left + width] = pixels[row, column]
    picture = pillow.fromarray(page)
    draw = ImageDraw.Draw(picture)
    for row, top in enumerate(tops):
        name = classes[shown.labels[row]][:_TEXT_MAX] if len(shown.labels) and shown.labels[row] >= 0 else ""
        draw.text((2, top + height // 2 - 5), name, fill=0)
    for column, left in enumerate(lefts):
        draw.text((left, 1), "file" if column == 0 else f"pass {column - 1}", fill=0)
    return picture


def _pixels(shown: Variants) -> NDArray[np.uint8]:
    """Returns [examples, columns, height, width, 3]: bytes of colours, enlarged."""
    images = shown.images
    if images.dtype != np.uint8:
        low, high = min(0.0, float(images.min())), max(shown.white, float(images.max()))
        images = np.rint((images - low) * (255 / (high - low))).astype(np.uint8)
    if images.shape[-1] != 3:
        images = np.repeat(images[..., :1], 3, axis=-1)
    factor = max(1, SIDE_MIN // max(images.shape[2:4]))
    enlarged: NDArray[np.uint8] = images.repeat(factor, axis=2).repeat(factor, axis=3)
    return enlarged
