"""What every reader returns, a `Source` of examples, and the checks that all readers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError

FileSplit = Literal["train", "test"]
FILE_SPLITS: tuple[FileSplit, ...] = ("train", "test")
Labels = NDArray[np.int32]
Targets = NDArray[np.float32]
Groups = NDArray[np.int64]
CLASSES_MAX = 8192
"""Bound on classes: their names are sent in one header of a frame."""
EXAMPLES_FOR_BLOCKS = 4_000_000
"""From so many training examples on, `order = "auto"` is block order: to sort them all takes a second and more."""
SEQUENTIAL_BYTES_FOR_BLOCKS = 1 << 30
"""A sequential source is visited by blocks if its training examples, or what is read for them, take as much."""


class Source(Protocol):
    """Examples as they are in their files, not yet scaled. Thread-safe.

    Attributes:
        format: the name in DataConfig.format.
        classes: names of the classes; a label is an index into it.
        example_shape: shape of one example, equal to the model's input if one was given.
        dtype: of the values: uint8 if the files contain bytes, else float32.
        value_max: the divisor for `scale = "unit"`: 255 for bytes, 1 for values that stay unchanged.
        resident: True if all values are or will be in memory here; False if `load` decodes files.
        resident_bytes: memory that the source itself holds.
        stored_bytes: size of the files.
        origin: where the examples are, for messages.

    docs/readers.md says what it may have besides. Such parts are asked for by `groups_of`, `targets_of`,
    `own_weights`, `own_blocks`, `is_sequential`, `image_sizes` and `keeps_examples`.
    """

    format: str
    origin: str
    classes: tuple[str, ...]
    example_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    value_max: float
    resident: bool
    resident_bytes: int
    stored_bytes: int

    def labels(self, split: FileSplit) -> Labels:
        """Returns the labels of a split, int32 [examples], in file order; its length is the size of the split.

        A source may have `targets(split)` too: float32 [examples, k], numbers to come close to, in place of classes;
        then `classes` is empty and all labels are 0.
        """
        ...

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Writes examples into `out` [len(indices), *example_shape], float32 or this source's dtype.

        Raises:
            DamagedDataError: a file cannot be decoded; the message names it.
        """
        ...


class Peek:
    """The result of a quick look at files: all labels, and the shape and type of the examples, some of them checked."""

    def __init__(
        self,
        classes: tuple[str, ...],
        labels: dict[FileSplit, Labels],
        groups: dict[FileSplit, Groups] | None = None,
        targets: int = 0,
    ) -> None:
        """`groups` are as in `groups_of`; `targets`: numbers per example, where these take the place of classes."""
        self.classes = classes
        self.target_count = targets
        self._labels = labels
        self._groups = groups

    def labels(self, split: FileSplit) -> Labels:
        """Like `Source.labels`."""
        return self._labels[split]

    def groups(self, split: FileSplit) -> Groups | None:
        """Like `groups_of`."""
        return None if self._groups is None else self._groups[split]


def keeps_examples(source: Source) -> bool:
    """Returns whether a source holds what it read in memory, so that the data server keeps no copy.

    One that is not `resident`, since not all of it is there, says so by the attribute `keeps_examples`.
    """
    return source.resident or bool(getattr(source, "keeps_examples", False))


def decodes(source: Source) -> bool:
    """Returns whether a source decodes files when examples are asked for: the same on all machines.

    One that keeps what it has decoded is `resident` where there is memory for all of it, and may not be elsewhere.
    """
    return not source.resident or bool(getattr(source, "keeps_examples", False))


def groups_of(source: Source | Peek, split: FileSplit) -> Groups | None:
    """Returns which examples belong together, int64 [examples]: those of one number, such as frames of one recording.

    A validation part holds out whole groups. A source says so by a method `groups(split)`; None: it has no groups.
    """
    groups = getattr(source, "groups", None)
    found: Groups | None = None if groups is None else groups(split)
    return found


def own_weights(source: Source | Peek) -> Callable[[FileSplit], NDArray[np.float64]] | None:
    """Returns a source's method `weights(split)`: how often to draw each example, [examples]; None: it has none."""
    method: Callable[[FileSplit], NDArray[np.float64]] | None = getattr(source, "weights", None)
    return method


def is_sequential(source: Source) -> bool:
    """Returns whether an example alone costs as much to read as its block: the attribute `sequential` says so."""
    return bool(getattr(source, "sequential", False))


def by_blocks(config: DataConfig, source: Source | Peek) -> bool:
    """Returns whether a set is visited in block order. Depends on the set alone, so that all machines agree."""
    if config.order != "auto":
        return config.order == "blocks"
    if config.stratify or held_out_by_groups(config.validation, source):
        return False  # they choose among all examples
    examples = len(source.labels("train"))
    if examples >= EXAMPLES_FOR_BLOCKS or isinstance(source, Peek):
        return examples >= EXAMPLES_FOR_BLOCKS
    size_bytes = examples * prod(source.example_shape) * source.dtype.itemsize
    unpacked_bytes: int = getattr(source, "unpacked_bytes", 0)
    return is_sequential(source) and max(size_bytes, unpacked_bytes) >= SEQUENTIAL_BYTES_FOR_BLOCKS


def held_out_by_groups(validation: float, source: Source | Peek) -> bool:
    """Returns whether a validation part is of whole groups."""
    return validation > 0 and groups_of(source, "train") is not None


def own_blocks(source: Source, split: FileSplit) -> NDArray[np.int64] | None:
    """Returns the lengths [B] of the runs of examples that a source reads at once, in file order.

    A source says so by a method `blocks(split)`; None: it does not say.
    """
    method = getattr(source, "blocks", None)
    return None if method is None else np.asarray(method(split), np.int64)


def image_sizes(source: Source, split: FileSplit) -> list[tuple[int, int, int]] | None:
    """Returns (height, width, channels) of each image in its file, as its `sizes(split)` says; None: it has none."""
    method = getattr(source, "sizes", None)
    found: list[tuple[int, int, int]] | None = None if method is None else method(split)
    return found


def peek_at_table(
    parts: dict[FileSplit, tuple[tuple[int, ...], NDArray[Any], Labels]],
    input_shape: Sequence[int] | None,
    origin: str,
    classes: tuple[str, ...] = (),
    targets: int = 0,
) -> Peek:
    """Checks the shape of all examples, the first examples and all labels of each split, like `TableSource`.

    Raises:
        ConfigurationError: the examples do not have the model's input shape.
        DamagedDataError: training and test images differ, or values are not finite.
    """
    matching_shape(parts["train"][0][1:], input_shape, origin)
    shapes = [(shape[1:], first.dtype) for shape, first, _ in parts.values() if shape[0]]
    _check_one_kind(shapes, origin)
    for split, (_, first, _) in parts.items():
        check_finite(first, np.arange(len(first)), f"{origin}: {split}")
    labels = {split: labels for split, (_, _, labels) in parts.items()}
    return Peek(() if targets else classes or number_names(labels, origin), labels, targets=targets)


def _check_one_kind(kinds: list[tuple[tuple[int, ...], np.dtype[Any]]], origin: str) -> None:
    if len(set(kinds)) > 1:
        found = " and ".join(f"{dtype} {list(shape)}" for shape, dtype in kinds)
        raise DamagedDataError(f"{origin}: expected training and test images of one kind, found {found}")


def check_finite(values: NDArray[Any], indices: NDArray[np.int64], origin: str) -> None:
    """Raises DamagedDataError if a value of an example is NaN or infinite; `indices` are the examples' in the file."""
    if values.dtype.kind != "f" or not len(values):
        return
    whole = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if not whole.all():
        row = int(np.flatnonzero(~whole)[0])
        bad = values[row].reshape(-1)
        found = bad[~np.isfinite(bad)][0]
        raise DamagedDataError(
            f"{origin}: expected finite numbers, found {found} in example {int(indices[row])}; "
            "correct the data or leave such examples out"
        )


def number_names(labels: dict[FileSplit, Labels], origin: str) -> tuple[str, ...]:
    """Returns names for classes that are only numbered.

    Raises:
        ConfigurationError: there are more than CLASSES_MAX.
    """
    count = 1 + max((int(part.max()) for part in labels.values() if len(part)), default=-1)
    if count > CLASSES_MAX:
        split, part = max(labels.items(), key=lambda item: int(item[1].max(initial=-1)))
        raise ConfigurationError(
            f"{origin}: example {int(part.argmax())} of {split} has label {count - 1}; "
            f"expected labels of at most {CLASSES_MAX} classes, from 0"
        )
    return tuple(str(number) for number in range(count))


class TableSource:
    """A source whose values are arrays in memory: [examples, *shape] and labels [examples] per split."""

    resident = True

    def __init__(
        self,
        format: str,
        arrays: dict[FileSplit, tuple[NDArray[Any], Labels]],
        *,
        value_max: float,
        stored_bytes: int,
        input_shape: Sequence[int] | None,
        origin: str,
        classes: tuple[str, ...] = (),
        targets: dict[FileSplit, Targets] | None = None,
    ) -> None:
        """Raises ConfigurationError if the examples do not have the model's input shape (None: any will do).

        `classes` are left out where they are only numbered, and where `targets` take their place.
        """
        found = arrays["train"][0].shape[1:]
        self.format = format
        self.example_shape = matching_shape(found, input_shape, origin)
        self._images = {split: images.reshape(len(images), prod(found)) for split, (images, _) in arrays.items()}
        self._labels = {split: labels for split, (_, labels) in arrays.items()}
        self.origin = origin
        self._targets = targets
        self.classes = () if targets else classes or number_names(self._labels, origin)
        self.dtype = arrays["train"][0].dtype
        self.value_max = value_max
        self.stored_bytes = stored_bytes
        self.resident_bytes = sum(images.nbytes + labels.nbytes for images, labels in arrays.values())
        self.resident_bytes += sum(values.nbytes for values in (targets or {}).values())

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def targets(self, split: FileSplit) -> Targets | None:
        return None if self._targets is None else self._targets[split]

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        images = self._images[split]
        rows = out.reshape(len(indices), images.shape[1])
        if len(indices) and indices[-1] - indices[0] + 1 == len(indices) and (np.diff(indices) == 1).all():
            rows[...] = images[indices[0] : indices[-1] + 1]
        elif rows.dtype == images.dtype:
            np.take(images, indices, axis=0, out=rows, mode="clip")  # clip: with "raise" numpy copies twice
        else:
            rows[...] = images[indices]


def matching_shape(found: Sequence[int], wanted: Sequence[int] | None, origin: str) -> tuple[int, ...]:
    """Returns the shape of returned examples: the model's input, if examples of shape `found` can be viewed so.

    A grey image [h, w] becomes [h, w, 1]; a model whose input is a flat [features] gets images row by row.

    Raises:
        ConfigurationError: they cannot; the message gives both shapes.
    """
    natural = (*found, 1) if len(found) == 2 else tuple(found)
    if wanted is None:
        return natural
    if tuple(wanted) == natural or tuple(wanted) == (prod(natural),):
        return tuple(wanted)
    raise ConfigurationError(
        f"the model's input is {list(wanted)}, but the examples of {origin} are {list(natural)}: "
        f"set model.input = {list(natural)}, or choose other data"
    )


def named_classes(labels: Sequence[NDArray[Any]], origin: str) -> tuple[tuple[str, ...], list[NDArray[Any]]]:
    """Returns the names of classes in order, and labels as indices into them, if labels are strings.

    Labels that are numbers are returned unchanged, without names.

    Raises:
        ConfigurationError: there are more than CLASSES_MAX names.
        DamagedDataError: only some of the labels are strings, or a byte string is not UTF-8.
    """
    texts = [values.dtype.kind in "US" for values in labels]
    if not any(texts):
        return (), list(labels)
    if not all(texts):
        kinds = ", ".join(str(values.dtype) for values in labels)
        raise DamagedDataError(f"{origin}: expected all labels as texts or all as numbers, found {kinds}")
    try:
        decoded = [np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values for values in labels]
    except UnicodeDecodeError as error:
        raise DamagedDataError(f"{origin}: expected labels in UTF-8, found {error}") from error
    names = np.unique(np.concatenate([values.reshape(-1) for values in decoded]))
    if len(names) > CLASSES_MAX:
        raise ConfigurationError(
            f"{origin}: expected at most {CLASSES_MAX} classes, found {len(names)} different labels"
        )
    return tuple(map(str, names)), [np.searchsorted(names, values) for values in decoded]


def checked_labels(values: NDArray[Any], examples: int, origin: str) -> Labels:
    """Returns labels as int32 [examples].

    Raises:
        DamagedDataError: not one whole number >= 0 per example.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (examples,):
        raise DamagedDataError(
            f"{origin}: expected one label for each of {examples} examples, found an array {list(values.shape)}"
        )
    if not np.issubdtype(values.dtype, np.integer):
        raise DamagedDataError(f"{origin}: expected whole numbers as labels, found {values.dtype}")
    bad = np.flatnonzero((values < 0) | (values >= 2**31))
    if len(bad):
        others = f", and {len(bad):,} such in all" if len(bad) > 1 else ""
        raise DamagedDataError(
            f"{origin}: expected labels from 0, found {int(values[bad[0]])} in example {bad[0]}{others}; number the "
            "classes from 0, or leave such examples out"
        )
    return values.astype(np.int32)


def check_fits(size_bytes: int, origin: str) -> None:
    """Refuses arrays that this machine cannot hold, before memory is allocated.

    Raises:
        ConfigurationError: there is not enough memory left.
    """
    import psutil

    available_bytes = int(psutil.virtual_memory().available)
    if size_bytes > available_bytes:
        raise ConfigurationError(
            f"{origin}: its arrays need {size_bytes:,} bytes of memory, and {available_bytes:,} are available here; "
            "take fewer examples, or a machine with more memory"
        )


def check_numbers(dtype: np.dtype[Any], shape: tuple[int, ...], origin: str) -> None:
    """Raises DamagedDataError unless an array is of real numbers [examples, ...]."""
    if len(shape) < 2 or not np.issubdtype(dtype, np.number) or np.issubdtype(dtype, np.complexfloating):
        raise DamagedDataError(f"{origin}: expected numbers [examples, ...], found {dtype} {list(shape)}")


def check_same_kind(train: NDArray[Any], test: NDArray[Any], origin: str) -> None:
    """Raises DamagedDataError unless training and test images, if there are any, have one size and type."""
    if len(test):
        _check_one_kind([(part.shape[1:], part.dtype) for part in (train, test)], origin)
