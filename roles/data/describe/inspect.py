"""`adamctl data inspect`: describes a data set in plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import DamagedDataError
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.describe.balance import balance
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.access import reported
from adamctl.roles.data.readers.images import SHOWN_SHAPE
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Source, by_blocks, groups_of, image_sizes
from adamctl.roles.data.readers.targets import target_count, targets_of
from adamctl.roles.data.sets.skipping import SkippingSource
from adamctl.roles.data.streaming.blocks import split_blocks
from adamctl.roles.data.streaming.windows import frames_of

SCHEMA_VERSION: Final = 1
_BLOCK_EXAMPLES: Final = 1024


def inspect(
    config: DataConfig, *, input_shape: Sequence[int] | None = None, search: Iterable[str] = ()
) -> dict[str, Any]:
    """Reads every example of a data set once and describes it.

    Args:
        input_shape: the model's input, to show the examples as the model sees them; None: as they are in the files
            (images, whose sizes differ, are then scaled to 64 x 64 and their sizes are given as well).

    Returns:
        `schema_version, format, source, path, shape, dtype, stored_bytes, decoded_bytes, classes` (names), `targets`
        (how many numbers an example has in place of a class), and `splits`: for train and test `examples, classes`
        (name -> count), `min, max, mean, std` of the unscaled values; with targets also `targets`, their `min, max`;
        where examples belong together, such as frames of a recording, also `groups`, how many there are;
        for folders and tar files of images also `sizes`, [lowest, highest] height and width, and `grey`, the number
        without colour; and `decoder`, which decoded them. `order`: `examples` or `blocks`, and for blocks `blocks`, how
        many there are to train on, `window_blocks` and `window_bytes`, the most that a window needs in memory.
        With `data.on_error = "skip"` also `skipped` of a split: how many damaged examples its numbers leave out,
        and no `sizes` where the header of one cannot be read.
        `balance`: how evenly the classes are filled, and what to do about it (`adamctl.roles.data.describe.balance`).

    Raises:
        ConfigurationError, DamagedDataError: as raised by the readers.
    """
    path = find_source(config, search)
    shape = input_shape
    if shape is None and config.format == "imagefolder":
        shape = SHOWN_SHAPE
    opened = open_source(config, path, shape)
    source: Source = SkippingSource(opened) if config.on_error == "skip" else opened
    with reported(path):
        splits = {split: _describe(source, split) | _sizes(source, split) for split in FILE_SPLITS}
    of_images = any("sizes" in described for described in splits.values())
    examples = sum(split["examples"] for split in splits.values())
    return {
        "schema_version": SCHEMA_VERSION,
        "format": source.format,
        "source": config.source,
        "path": None if path is None else str(path),
        "shape": list(source.example_shape),
        "dtype": source.dtype.name,
        "stored_bytes": source.stored_bytes,
        "decoded_bytes": examples * prod(source.example_shape) * source.dtype.itemsize,
        "classes": list(source.classes),
        "targets": target_count(source),
        "splits": splits,
        "balance": balance(splits["train"]["classes"], splits["test"]["classes"]),
        **_order(config, source),
        **({"decoder": config.decoder} if of_images else {}),
    }


def _order(config: DataConfig, source: Source) -> dict[str, Any]:
    if not by_blocks(config, source) or not len(source.labels("train")):
        return {"order": "examples"}
    splits = split_blocks(source, config.validation, 0, config.window_blocks)
    train = splits["train"]
    return {
        "order": "blocks",
        "blocks": len(train.lengths),
        "window_blocks": config.window_blocks,
        "window_bytes": frames_of(splits, source).window_bytes(train, config.window_blocks)[-1],
    }


def _describe(source: Source, split: FileSplit) -> dict[str, Any]:
    labels, targets = source.labels(split), targets_of(source, split)
    described: dict[str, Any] = {"examples": len(labels), "classes": {}}
    if targets is None:
        counts = np.bincount(labels, minlength=len(source.classes))
        described["classes"] = {name: int(count) for name, count in zip(source.classes, counts, strict=True)}
    elif len(targets):
        described["targets"] = {"min": float(targets.min()), "max": float(targets.max())}
    groups = groups_of(source, split)
    if groups is not None:
        described["groups"] = len(np.unique(groups))
    if not len(labels):
        return described
    lowest, highest, total, squares, whole = np.inf, -np.inf, 0.0, 0.0, 0
    for values in _values(source, split, len(labels)):
        lowest, highest = min(lowest, float(values.min())), max(highest, float(values.max()))
        total += float(values.sum(dtype=np.float64))
        squares += float(np.square(values, dtype=np.float64).sum())
        whole += len(values)
    if isinstance(source, SkippingSource):
        described["skipped"] = len(labels) - whole
    if whole:
        size = whole * prod(source.example_shape)
        mean = total / size
        deviation = sqrt(max(squares / size - mean * mean, 0.0))
        described |= {"min": lowest, "max": highest, "mean": mean, "std": deviation}
    return described


def _values(source: Source, split: FileSplit, examples: int) -> Iterator[NDArray[np.float32]]:
    """Yields all examples [n, *shape] that are not left out, some at a time; the next overwrite them."""
    buffer = np.empty((min(_BLOCK_EXAMPLES, examples), *source.example_shape), np.float32)
    for start in range(0, examples, _BLOCK_EXAMPLES):
        indices = np.arange(start, min(start + _BLOCK_EXAMPLES, examples))
        values = buffer[: len(indices)]
        source.load(split, indices, values)
        if isinstance(source, SkippingSource):
            values = values[~source.damaged(split, indices)]
        if len(values):
            yield values


def _sizes(source: Source, split: FileSplit) -> dict[str, Any]:
    try:
        sizes = image_sizes(source, split)
    except DamagedDataError:
        if not isinstance(source, SkippingSource):
            raise
        return {}  # a header that is left out has no size
    if not sizes:
        return {}
    heights, widths, channels = zip(*sizes, strict=True)
    return {
        "sizes": {"height": [min(heights), max(heights)], "width": [min(widths), max(widths)]},
        "grey": channels.count(1),
    }
