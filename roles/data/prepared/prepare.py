"""Writes the examples of any source as a prepared set: decoded, in shuffled order, with checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import FILE_ORDER, Indices, pass_order
from adamctl.roles.data.order.block_order import WINDOW_BLOCKS, BlockOrder
from adamctl.roles.data.prepared.layout import Kind, Manifest
from adamctl.roles.data.prepared.writer import PreparedWriter
from adamctl.roles.data.readers.source import (
    FILE_SPLITS,
    FileSplit,
    Source,
    check_finite,
    groups_of,
    is_sequential,
    own_weights,
)
from adamctl.roles.data.readers.targets import target_count, targets_of
from adamctl.roles.data.sets.skipping import SkippingSource
from adamctl.roles.data.streaming.blocks import block_lengths

WINDOW_BYTES: Final = 64 << 20
"""So much is read at a time, sorted as the files are, and written in shuffled order."""
_PART_EXAMPLES: Final = 64

Progress = Callable[[FileSplit, int, int], None]
"""Called with a split, the examples written so far, and how many there are."""


class Prepared(NamedTuple):
    """What was written, and how many damaged examples of each split were left out."""

    manifest: Manifest
    skipped: dict[FileSplit, int]


def prepare(
    source: Source,
    folder: Path,
    *,
    seed: int,
    threads: int,
    made_from: str,
    skip: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Writes all examples of a source into `folder`, which must not exist.

    `skip` leaves damaged examples out, and names each in the log.

    The training part is shuffled by `seed`: wholly; or, if the source is read by blocks, as a pass in block order is,
    and then each block is read once. The test part keeps its order.

    Raises:
        ConfigurationError: the folder exists or cannot be written.
        DamagedDataError: an example cannot be read, and not `skip`; nothing is left behind.
    """
    skipping = SkippingSource(source) if skip else None
    source = skipping or source
    skipped = dict.fromkeys(FILE_SPLITS, 0)
    targets = target_count(source)
    with (
        PreparedWriter(folder, source.example_shape, source.dtype, source.value_max, targets=targets) as writer,
        ThreadPoolExecutor(threads, thread_name_prefix="prepare") as pool,
    ):
        for split in FILE_SPLITS:
            found = targets_of(source, split)
            beside = source.labels(split) if found is None else found
            done = 0
            for indices in _windows(source, split, seed if split == "train" else None):
                done += len(indices)
                values = _read(source, split, indices, pool)
                if skipping is not None and (damaged := skipping.damaged(split, indices)).any():
                    skipped[split] += int(damaged.sum())
                    values, indices = values[~damaged], indices[~damaged]
                others = {kind: numbers[indices] for kind, numbers in _others(source, split)}
                writer.add(split, values, beside[indices], others)
                if progress is not None:
                    progress(split, done, len(beside))
        return Prepared(writer.finish(source.classes, made_from), skipped)


def _others(source: Source, split: FileSplit) -> Iterator[tuple[Kind, NDArray[Any]]]:
    """Yields what else the source knows of its examples."""
    if (groups := groups_of(source, split)) is not None:
        yield "groups", groups
    weights = own_weights(source)
    if weights is not None and split == "train":
        with suppress(ConfigurationError):  # this format may have weights, and these data have none
            yield "weights", np.asarray(weights(split))


def _windows(source: Source, split: FileSplit, seed: int | None) -> Iterator[Indices]:
    """Yields the file indices of a split in the order in which they are written, some at a time; None: not shuffled."""
    examples = len(source.labels(split))
    example_bytes = prod(source.example_shape) * source.dtype.itemsize
    at_once = max(WINDOW_BYTES // example_bytes, 1)
    if seed is None or not is_sequential(source):
        order = pass_order(examples, seed or 0, FILE_ORDER if seed is None else 0)
        yield from (order[start : start + at_once] for start in range(0, examples, at_once))
    elif examples:
        lengths = block_lengths(source, split)
        window = min(max(at_once // int(lengths.max()), 1), WINDOW_BLOCKS)
        starts = np.cumsum(lengths) - lengths
        for run in BlockOrder(lengths, seed, window).find(0, 0, examples):
            yield starts[run.blocks] + run.indices


def _read(source: Source, split: FileSplit, indices: Indices, pool: ThreadPoolExecutor) -> NDArray[Any]:
    """Returns examples [n, *shape]; they are read in the order of the files."""
    places = np.argsort(indices, kind="stable")
    values = np.empty((len(indices), *source.example_shape), source.dtype)

    def load(start: int) -> None:
        part = places[start : start + _PART_EXAMPLES]
        read = np.empty((len(part), *source.example_shape), source.dtype)
        source.load(split, indices[part], read)
        check_finite(read, indices[part], f"{source.origin}: {split}")
        values[part] = read

    for _ in pool.map(load, range(0, len(indices), _PART_EXAMPLES)):
        pass
    return values
