"""Columns of tables: which is the label and which are inputs, class names of labels, and the lines of the test part."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import ColumnsConfig
from adamctl.errors import ConfigurationError
from adamctl.kernels.numeric.mix import KEY_STEP, scrambled
from adamctl.roles.data.readers.splits import TEST_SHARE

LABEL_NAMES: Final = ("label", "class")


class Columns(NamedTuple):
    """Places of columns: the label's, None where there are targets, those of the targets, and of the inputs."""

    label: int | None
    targets: tuple[int, ...]
    inputs: tuple[int, ...]

    @property
    def answers(self) -> tuple[int, ...]:
        """The places of what outputs are compared with."""
        return self.targets if self.label is None else (self.label,)


def choose_columns(names: Sequence[str], config: ColumnsConfig, origin: str) -> Columns:
    """Returns the places of label or targets and of the inputs, among columns with these names.

    Raises:
        ConfigurationError: there is no such column, one is named twice, both label and targets are named, or no input
            is left.
    """
    if config.targets and config.label is not None:
        raise ConfigurationError(
            f"data.columns: expected a label or targets; found label {config.label!r} and targets "
            f"{list(config.targets)}: leave one of them out"
        )
    label = None if config.targets else _label(names, config, origin)
    targets = tuple(_place(names, one, "data.columns.targets", origin) for one in config.targets)
    answers = targets if label is None else (label,)
    if not config.inputs:
        inputs = [place for place in range(len(names)) if place not in answers]
    else:
        inputs = [_place(names, one, "data.columns.inputs", origin) for one in config.inputs]
    for key, chosen, others in (("targets", list(targets), ()), ("inputs", inputs, answers)):
        if len(set(chosen)) < len(chosen) or set(chosen) & set(others):
            kind = "targets" if label is None else "label"
            besides = f", and not the {kind} {', '.join(repr(names[place]) for place in others)}" if others else ""
            raise ConfigurationError(
                f"data.columns.{key}: expected each column once{besides}; "
                f"found {', '.join(names[place] for place in chosen)}"
            )
    if not inputs:
        raise ConfigurationError(
            f"{origin}: expected a label or targets, and at least one other column; found {list(names)}"
        )
    return Columns(label, targets, tuple(inputs))


def _label(names: Sequence[str], config: ColumnsConfig, origin: str) -> int:
    if config.label is not None:
        return _place(names, config.label, "data.columns.label", origin)
    called = [place for place, name in enumerate(names) if name.strip().lower() in LABEL_NAMES]
    return called[0] if called else len(names) - 1


def _place(names: Sequence[str], wanted: str | int, key: str, origin: str) -> int:
    if isinstance(wanted, int) and 0 <= wanted < len(names):
        return wanted
    if isinstance(wanted, str) and names.count(wanted) == 1:
        return names.index(wanted)
    shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    raise ConfigurationError(
        f"{key}: found {wanted!r}; expected one of the {len(names)} columns of {origin}, by a name that only one "
        f"has or by a number from 0: {shown}"
    )


def row_shape(elements: int, input_shape: Sequence[int] | None, origin: str) -> tuple[int, ...]:
    """Returns the shape of one row of `elements` numbers: the model's input, if it has as many.

    Raises:
        ConfigurationError: it has not.
    """
    if input_shape is None:
        return (elements,)
    if prod(input_shape) != elements:
        raise ConfigurationError(
            f"the model's input is {list(input_shape)}, {prod(input_shape)} numbers, but {origin} has {elements} "
            f"in each row: set model.input = [{elements}], or name the columns in data.columns.inputs"
        )
    return tuple(input_shape)


def labels_of_texts(texts: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """Returns the names of classes, and the label of each of the different texts of a label column.

    Whole numbers from 0 are labels themselves, and their classes have no names. Other texts are names, in their order.
    """
    numbers = [_whole_number(text) for text in texts]
    found = [number for number in numbers if number is not None]
    if len(found) == len(numbers):
        return (), found
    names = sorted(texts)
    return tuple(names), [names.index(text) for text in texts]


def _whole_number(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and 0 <= value < 2**31 else None


def in_test_part(start: int, rows: int) -> NDArray[np.bool_]:
    """Returns for rows [start, start + rows) of a file whether they belong to the test part, a fifth of all rows.

    It depends on a row's number alone, so rows added at the end move no other. The hash is splitmix64's (Steele, Lea,
    Flood 2014).
    """
    hashes = scrambled(np.arange(start, start + rows, dtype=np.uint64) * np.uint64(KEY_STEP))
    return hashes < np.uint64(int(TEST_SHARE * 2**64))
