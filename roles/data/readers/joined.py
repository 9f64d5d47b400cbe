"""Several files of examples as one source: their splits follow one another, their classes are told by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.source import (
    CLASSES_MAX,
    FILE_SPLITS,
    FileSplit,
    Labels,
    Peek,
    Source,
    Targets,
    own_weights,
)
from adamctl.roles.data.readers.targets import target_count, targets_of

_DIGITS_MAX: Final = 18


class JoinedSource:
    """The examples of several sources of one kind, in order. As thread-safe as they are."""

    def __init__(self, sources: Sequence[Source], origin: str) -> None:
        """
        Raises:
            DamagedDataError: they differ in shape or type.
            ConfigurationError: they have too many classes together.
        """
        first = sources[0]
        for source in sources:
            if (source.example_shape, source.dtype) != (first.example_shape, first.dtype):
                wanted, found = (f"{one.dtype} {list(one.example_shape)}" for one in (first, source))
                raise DamagedDataError(
                    f"{source.origin}: expected examples as in {first.origin}, {wanted}; found {found}"
                )
        self._sources = tuple(sources)
        self.format, self.origin = first.format, origin
        self.example_shape, self.dtype, self.value_max = first.example_shape, first.dtype, first.value_max
        self.resident = all(source.resident for source in sources)
        self.stored_bytes = sum(source.stored_bytes for source in sources)
        self.classes, self._labels = join_labels(sources, origin)
        self.resident_bytes = sum(source.resident_bytes for source in sources)
        self.resident_bytes += sum(labels.nbytes for labels in self._labels.values())
        counts = {split: [len(source.labels(split)) for source in sources] for split in FILE_SPLITS}
        self._ends = {split: np.cumsum(counts[split]) for split in FILE_SPLITS}
        self._targets = {split: _targets(sources, split) for split in FILE_SPLITS}
        weights = [method for source in sources if (method := own_weights(source)) is not None]
        if len(weights) == len(sources):
            self.weights = lambda split: np.concatenate([method(split) for method in weights])

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def targets(self, split: FileSplit) -> Targets | None:
        return self._targets[split]

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        ends = self._ends[split]
        of_source = np.searchsorted(ends, indices, side="right")
        for number in np.unique(of_source):
            places = np.flatnonzero(of_source == number)
            first = ends[number - 1] if number else 0
            if len(places) == len(indices):
                self._sources[number].load(split, indices - first, out)
                return
            part = np.empty((len(places), *out.shape[1:]), out.dtype)
            self._sources[number].load(split, indices[places] - first, part)
            out[places] = part


def join_labels(parts: Sequence[Source | Peek], origin: str) -> tuple[tuple[str, ...], dict[FileSplit, Labels]]:
    """Returns the names of all classes, and labels of each split as numbers of them.

    Names that are numbers, as `number_names` writes them, stay these numbers.

    Raises:
        ConfigurationError: there are more than CLASSES_MAX.
    """
    names = sorted({name for part in parts for name in part.classes}, key=_order)
    if names and all(map(_is_number, names)):
        if int(names[-1]) >= CLASSES_MAX:
            raise ConfigurationError(
                f"{origin}: expected labels of at most {CLASSES_MAX} classes, from 0, found {names[-1]} in its files"
            )
        names = [str(number) for number in range(int(names[-1]) + 1)]
    if len(names) > CLASSES_MAX:
        raise ConfigurationError(f"{origin}: expected at most {CLASSES_MAX} classes, found {len(names)} in its files")
    numbers = {name: number for number, name in enumerate(names)}
    labels: dict[FileSplit, Labels] = {}
    for split in FILE_SPLITS:
        found = [np.empty(0, np.int32)]
        for part in parts:
            table = np.array([numbers[name] for name in part.classes], np.int32)
            found.append(table[part.labels(split)] if len(table) else part.labels(split))
        labels[split] = np.concatenate(found)
    return tuple(names), labels


def join_peeks(peeks: Sequence[Peek], origin: str) -> Peek:
    """Returns several looks at files as one. Raises ConfigurationError as `join_labels`."""
    classes, labels = join_labels(peeks, origin)
    return Peek(classes, labels, targets=target_count(peeks[0]))


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if _is_number(name) else (-1, name)


def _is_number(name: str) -> bool:
    """Returns whether a name is just what its number is written as: "01" is a name of its own."""
    return name.isdecimal() and len(name) <= _DIGITS_MAX and str(int(name)) == name


def _targets(sources: Sequence[Source], split: FileSplit) -> Targets | None:
    found = [targets_of(source, split) for source in sources]
    if all(part is None for part in found):
        return None
    widths = {0 if part is None else part.shape[1] for part in found}
    if len(widths) > 1:
        raise DamagedDataError(
            f"{sources[0].origin} and others: expected as many targets in each file, found {sorted(widths)}"
        )
    return np.concatenate([part for part in found if part is not None])
