"""A quick check of a run's data before any role starts: headers, all labels, and as many examples as time allows.

Errors further in are found when that part is first read, and reported in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.core import Indices
from adamctl.roles.data.describe.balance import listed
from adamctl.roles.data.order.sampling import hold_out, weights_of
from adamctl.roles.data.readers import can_peek, open_source, peek_source
from adamctl.roles.data.readers.source import (
    FILE_SPLITS,
    FileSplit,
    Labels,
    Peek,
    Source,
    by_blocks,
    check_finite,
)
from adamctl.roles.data.readers.targets import check_answers, target_count
from adamctl.roles.data.sets.skipping import SkippingSource
from adamctl.roles.data.streaming.blocks import split_blocks

EXAMPLES_MAX: Final = 1000
LOOK_S_MAX: Final = 0.3
"""Time limit for decoding images, each of which takes milliseconds."""
_BLOCK_EXAMPLES: Final = 1024


@dataclass(frozen=True)
class Needs:
    """What a run needs from its data: `outputs` of the model's last layer, examples in a `batch`, a seed for splits.

    `targets`: numbers in the target of an example, where the loss takes these in place of labels; else 0.
    """

    input_shape: tuple[int, ...]
    outputs: int
    batch: int
    seed: int
    targets: int = 0


@dataclass(frozen=True)
class Looked:
    """The result: `examples` of train, validation and test, the number of classes, and notes for the user.

    `names` are the classes', `class_examples` how many training examples each has.
    """

    examples: dict[str, int]
    classes: int
    warnings: tuple[str, ...]
    names: tuple[str, ...] = field(default=(), compare=False)
    class_examples: tuple[int, ...] = field(default=(), compare=False)


def look(config: DataConfig, needs: Needs, *, full: bool = False) -> Looked:
    """Checks data; `full` reads every example.

    Raises:
        ConfigurationError: the data was not found, or does not fit the model, the batch or `data.sampling`.
        DamagedDataError: a file is damaged, or an example's values are not finite; the message names it.
    """
    path = find_source(config)
    source: Source | Peek
    skips, damaged = config.on_error == "skip", 0
    if full or not can_peek(config.format) or config.sampling == "weights":
        opened = open_source(config, path, needs.input_shape)
        source = SkippingSource(opened) if skips else opened
        for split in FILE_SPLITS:
            damaged += _read(source, split, None if full else EXAMPLES_MAX)
    else:
        assert path is not None
        source = peek_source(config, path, needs.input_shape, 0 if skips else EXAMPLES_MAX, LOOK_S_MAX)
        if config.validation and by_blocks(config, source):
            source = open_source(config, path, needs.input_shape)  # a peek does not know the blocks
    origin = str(path or config.format)
    targets = target_count(source)
    inputs = prod(needs.input_shape) if config.targets == "inputs" else 0
    check_answers(targets, needs.targets, needs.targets > 0, origin, inputs)
    for split in () if needs.targets else FILE_SPLITS:
        check_labels_fit(source.labels(split), needs.outputs, f"{origin}: {split}")
    examples = len(source.labels("train"))
    if by_blocks(config, source):
        validation = _held_out_blocks(config, source, needs.seed)
        train = np.delete(np.arange(examples), validation) if config.sampling != "all" else validation
    else:
        train, validation = hold_out(source, config, needs.seed)
    weights_of(config, source, train)
    held_out = len(validation)
    left = examples - held_out
    counts = {"train": left, "validation": held_out, "test": len(source.labels("test"))}
    if not left:
        raise ConfigurationError(
            f"{origin}: expected training examples, found {examples}, and none is left; add some, or hold out fewer"
        )
    if needs.batch > left:
        raise ConfigurationError(
            f"train.batch = {needs.batch}, but {origin} has {left} training examples: set train.batch to {left} or less"
        )
    labels, classes = source.labels("train"), len(source.classes)
    of_classes = np.bincount(labels, minlength=classes) - np.bincount(labels[validation], minlength=classes)
    warnings = [] if needs.targets else list(_warnings(source, validation, needs.outputs, origin))
    if damaged:
        warnings.append(f"{origin}: {damaged} examples that were looked at are damaged; they will be skipped")
    return Looked(counts, classes, tuple(warnings), source.classes, tuple(of_classes.tolist()))


def _held_out_blocks(config: DataConfig, source: Source | Peek, seed: int) -> Indices:
    """Returns the file indices of the validation part in block order."""
    if isinstance(source, Peek):  # nothing is held out
        return np.empty(0, np.int64)
    split = split_blocks(source, config.validation, seed, config.window_blocks)["validation"]
    return split.members()


def _warnings(source: Source | Peek, validation: Indices, outputs: int, origin: str) -> Iterator[str]:
    labels = source.labels("train")
    counts = np.bincount(labels, minlength=len(source.classes))
    present = int(np.count_nonzero(counts))
    absent = [name for name, count in zip(source.classes, counts.tolist(), strict=False) if not count]
    if absent:
        yield f"{origin}: {len(absent)} of {len(source.classes)} classes have no training example: {listed(absent)}"
    if len(source.classes) < outputs:
        yield f"{origin}: training examples of {present} classes, the model has {outputs} outputs; some never occur"
    held_out = len(np.unique(labels[validation]))
    if held_out < present and len(validation) >= present:
        yield (
            f"{origin}: the validation part has examples of {held_out} of {present} classes; "
            'data.stratify = true holds out a share of each, where data.order is not "blocks"'
        )


def check_labels_fit(labels: Labels, outputs: int, origin: str) -> None:
    """Raises ConfigurationError if a label has no output, and says which."""
    beyond = np.flatnonzero(labels >= outputs)
    if len(beyond):
        classes = int(labels.max()) + 1
        corrected = "correct it" if len(beyond) == 1 else f"correct {len(beyond):,} such labels"
        raise ConfigurationError(
            f"{origin}: example {beyond[0]} has label {labels[beyond[0]]}, but the model's last layer has {outputs} "
            f"units, for labels 0 to {outputs - 1}: {corrected}, or set units to {classes}"
        )


def _read(source: Source, split: FileSplit, examples_max: int | None) -> int:
    """Decodes examples and checks that they are finite. Returns how many of them will be skipped."""
    damaged = 0
    examples = len(source.labels(split))
    until_s = time.monotonic() + LOOK_S_MAX
    count = examples if examples_max is None else min(examples, examples_max)
    chosen = np.arange(examples) if count == examples else np.linspace(0, examples - 1, count).astype(np.int64)
    block = _BLOCK_EXAMPLES if source.resident else 1
    values: NDArray[Any] = np.empty((min(block, max(count, 1)), *source.example_shape), source.dtype)
    for start in range(0, count, block):
        indices = chosen[start : start + block]
        part = values[: len(indices)]
        source.load(split, indices, part)
        if isinstance(source, SkippingSource):
            damaged += int(np.count_nonzero(source.damaged(split, indices)))
        else:
            check_finite(part, indices, f"{source.origin}: {split}")
        if examples_max is not None and time.monotonic() > until_s:
            break
    return damaged
