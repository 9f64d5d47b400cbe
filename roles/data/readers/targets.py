"""What examples have in place of classes: targets, rows of numbers to come close to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.source import FileSplit, Peek, Source, Targets, check_finite

TARGETS_MAX = 8192


def targets_of(source: Source, split: FileSplit) -> Targets | None:
    """Returns a split's targets [examples, k]; None if the source has classes."""
    method = getattr(source, "targets", None)
    found: Targets | None = None if method is None else method(split)
    return found


def target_count(source: Source | Peek) -> int:
    """Returns how many numbers the target of each example has; 0 if it has a class."""
    if isinstance(source, Peek):
        return source.target_count
    found = targets_of(source, "train")
    return 0 if found is None else int(found.shape[1])


def check_answers(targets: int, wanted: int, takes_targets: bool, origin: str, inputs: int = 0) -> None:
    """Checks what is known of each example against what the model's loss compares its outputs with.

    Args:
        targets: numbers in the target of an example; 0: examples have labels.
        wanted: numbers in a target that fit the model's outputs.
        takes_targets: whether the loss takes these.
        inputs: numbers in an example, where `data.targets` says that they are its targets; else 0.

    Raises:
        ConfigurationError: it needs the other, or another count of numbers.
    """
    if inputs and targets:
        raise ConfigurationError(
            f'{origin}: its examples have targets, {targets} numbers each, and data.targets = "inputs" does not use '
            "them: leave it out, or give data without targets"
        )
    targets = targets or inputs
    numbers = f"{targets} number{'s' * (targets > 1)} each"
    if targets and not takes_targets:
        raise ConfigurationError(
            f"{origin}: its examples have targets, {numbers}, and the model's last layer trains on classes: give "
            "labels, whole numbers from 0 or names; or end the model with a dense layer and set "
            'model.loss = "mean_squared_error"'
        )
    if takes_targets and not targets:
        raise ConfigurationError(
            f"{origin}: its examples have labels, and model.loss compares outputs with targets: give these, numbers "
            "[examples, k], in place of labels (of a table: data.columns.targets); or end the model with softmax and "
            'set model.loss = "cross_entropy"'
        )
    if takes_targets and targets != wanted:
        raise ConfigurationError(
            f"model: its loss and last layer need targets of {wanted} number{'s' * (wanted > 1)}, but targets of "
            f"{origin} have {numbers}; set the units of the last layer to {targets}, or give other targets"
        )


def checked_targets(values: NDArray[Any], examples: int, origin: str) -> Targets:
    """Returns targets as float32 [examples, k]; one number per example may be given as [examples].

    Raises:
        DamagedDataError: not one row of 1 to TARGETS_MAX finite numbers per example.
    """
    rows = values[:, None] if values.ndim == 1 else values
    if rows.ndim != 2 or len(rows) != examples or not 1 <= rows.shape[1] <= TARGETS_MAX:
        raise DamagedDataError(
            f"{origin}: expected 1 to {TARGETS_MAX} numbers for each of {examples} examples, "
            f"found an array {list(values.shape)}"
        )
    if not (np.issubdtype(rows.dtype, np.floating) or np.issubdtype(rows.dtype, np.integer)):
        raise DamagedDataError(f"{origin}: expected real numbers as targets, found {values.dtype}")
    found = np.ascontiguousarray(rows, np.float32)
    check_finite(found, np.arange(examples), origin)
    return found


def check_same_length(targets: dict[FileSplit, Targets], origin: str) -> int:
    """Returns how many numbers a target has. Raises DamagedDataError if that differs between training and test."""
    counts = {split: int(part.shape[1]) for split, part in targets.items()}
    if len(set(counts.values())) > 1:
        raise DamagedDataError(
            f"{origin}: expected as many numbers for each example of both splits, found {counts['train']} for training "
            f"and {counts['test']} for test"
        )
    return counts["train"]
