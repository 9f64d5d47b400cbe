"""`Source`: examples of the user's own, from any Python code, to train on with `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import pass_order
from adamctl.roles.data.prepared.writer import PreparedWriter
from adamctl.roles.data.readers.source import CLASSES_MAX, FILE_SPLITS, FileSplit, check_finite
from adamctl.roles.data.readers.targets import checked_targets

Examples = Sequence[Any] | Callable[[], Iterable[Any]] | Iterable[Any]
_AT_ONCE: Final = 256
_ORDER_SEED: Final = 7
_OWN_KEYS: Final = frozenset({"format", "source", "search"})


class Source:
    """Examples from Python code: an indexable data set, an iterator, or a function that returns one.

    Each example is asked for once, in this process and one after the other, before the run begins, and written to a
    prepared set (docs/formats/prepared.md), which data servers read. So the run no longer needs the code, and any
    number of servers and passes have the same examples; what should change from pass to pass belongs into
    `[data.augment]`.
    """

    def __init__(
        self,
        train: Examples,
        test: Examples | None = None,
        *,
        classes: Sequence[str] = (),
        keep: str | Path | None = None,
        **data: Any,
    ) -> None:
        """
        Args:
            train, test: each an object with `len(x)` and `x[i]`, as PyTorch's data sets have, whose items are pairs
                (input, label); or an iterable, or a function without arguments that returns one, of such pairs or of
                batches (inputs [n, ...], labels [n]). Inputs are arrays or what `numpy.asarray` takes: uint8 stays
                bytes, other numbers become float32. Labels are whole numbers from 0, or texts. Numbers that are not
                whole are targets: of an example one, or [k]; of a batch [n], or [n, k].
            classes: names of the classes by number.
            keep: a folder to make and to keep the set in, so that the run can be resumed and evaluated later; without,
                it is a temporary one.
            data: keys of `[data]` by name, such as `scale` or `validation`.

        Raises:
            ConfigurationError: a key that says where data are.
        """
        if reserved := sorted(_OWN_KEYS & data.keys()):
            raise ConfigurationError(f"adam.Source: {', '.join(reserved)} cannot be given: it makes a set of its own")
        self._parts: dict[FileSplit, Examples | None] = {"train": train, "test": test}
        self._classes = tuple(map(str, classes))
        self._keep = None if keep is None else Path(keep)
        self._data = data

    def write(self, folder: Path) -> DataConfig:
        """Writes all examples into `folder`, or where they are kept. Returns the configuration that reads them.

        Raises:
            ConfigurationError: there are no examples, they differ in shape or type, or labels or targets are not all of
                one kind.
            DamagedDataError: a value is not finite.
            Exception: what the user's code raises, with a note that says for which example.
        """
        place = folder / "set" if self._keep is None else self._keep.expanduser().absolute()
        train = _batches(self._parts["train"], "train")
        first = next(train, None)
        if first is None:
            raise ConfigurationError("adam.Source: expected training examples, found none")
        shape, dtype = first[0].shape[1:], first[0].dtype
        value_max = 255.0 if dtype == np.uint8 else 1.0
        has_targets = first[1].dtype.kind == "f"
        known = _Targets(first[1], self._classes) if has_targets else _LabelNumbers(self._classes)
        with PreparedWriter(place, shape, dtype, value_max, targets=known.count) as writer:
            for split in FILE_SPLITS:
                parts = chain((first,), train) if split == "train" else _batches(self._parts["test"], "test")
                done = 0
                for inputs, given in parts:
                    if inputs.shape[1:] != shape or inputs.dtype != dtype:
                        raise ConfigurationError(
                            f"adam.Source: {split}[{done}]: expected an input like the first, {dtype} {list(shape)}; "
                            f"found {inputs.dtype} {list(inputs.shape[1:])}"
                        )
                    check_finite(inputs, np.arange(done, done + len(inputs)), f"adam.Source: {split}")
                    writer.add(split, inputs, known.of(given, f"adam.Source: {split}[{done}]"))
                    done += len(inputs)
            writer.finish(known.classes(), "adam.Source")
        return DataConfig(format="prepared", source=str(place), **self._data)


class _Targets:
    """Takes targets, `count` numbers for each example, as many as those of the first."""

    def __init__(self, first: NDArray[Any], classes: tuple[str, ...]) -> None:
        """Raises ConfigurationError: classes have names."""
        if classes:
            raise ConfigurationError(
                f"adam.Source: classes={list(classes)[:5]}, but these examples have targets, numbers in place of "
                "classes: leave classes out, or give labels"
            )
        self.count = int(np.prod(first.shape[1:]))

    def of(self, targets: NDArray[Any], origin: str) -> NDArray[np.float32]:
        """Returns float32 [n, count]. Raises ConfigurationError or DamagedDataError, which begin with `origin`."""
        rows = targets.reshape(len(targets), -1)
        if targets.dtype.kind not in "fiu" or targets.ndim > 2 or rows.shape[1] != self.count:
            wanted = f"targets of {self.count} numbers, as of the first example"
            raise ConfigurationError(f"{origin}: expected {wanted}; found {targets.dtype} {list(targets.shape[1:])}")
        return checked_targets(rows, len(rows), origin)

    def classes(self) -> tuple[str, ...]:
        return ()


class _LabelNumbers:
    """Turns labels into numbers of classes: texts get one in the order in which they come."""

    count = 0
    """Numbers in a target."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self._given = classes
        self._names = {name: number for number, name in enumerate(classes)}
        self._texts: bool | None = None
        self._most = -1

    def of(self, labels: NDArray[Any], origin: str) -> NDArray[np.int32]:
        """Returns int32 [n]. Raises ConfigurationError, which begins with `origin`."""
        texts = labels.dtype.kind in "US"
        fits = texts or np.issubdtype(labels.dtype, np.integer)
        if labels.ndim != 1 or not fits or self._texts not in (None, texts):
            kind = {None: "whole numbers or texts", True: "texts", False: "whole numbers"}[self._texts]
            raise ConfigurationError(f"{origin}: expected {kind} as labels, found {labels.dtype} {list(labels.shape)}")
        self._texts = texts
        if texts:
            return np.array([self._number_of(str(name), origin) for name in labels], np.int32)
        if len(labels):
            self._most = max(self._most, int(labels.max()))
            limit = len(self._given) or CLASSES_MAX
            if int(labels.min()) < 0 or self._most >= limit:
                wanted = f"labels from 0 to {limit - 1}"
                raise ConfigurationError(f"{origin}: expected {wanted}, found {labels.min()} to {labels.max()}")
        return labels.astype(np.int32)

    def _number_of(self, name: str, origin: str) -> int:
        if name not in self._names and (self._given or len(self._names) >= CLASSES_MAX):
            wanted = f"one of the {len(self._names)} classes" if self._given else f"at most {CLASSES_MAX} classes"
            raise ConfigurationError(f"{origin}: expected {wanted}, found label {name!r}")
        return self._names.setdefault(name, len(self._names))

    def classes(self) -> tuple[str, ...]:
        """Returns the names of all classes."""
        return tuple(self._names) or tuple(map(str, range(self._most + 1)))


def _batches(examples: Examples | None, split: FileSplit) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yields inputs [n, ...], as uint8 or float32, and labels [n]; an indexable data set in shuffled order."""
    if examples is None:
        return
    pairs: list[tuple[Any, Any]] = []
    has_pairs = hasattr(examples, "__getitem__")
    for name, found in _items(examples, split):
        with _naming(name):
            if not isinstance(found, (tuple, list)) or len(found) != 2:
                raise ConfigurationError(f"{name}: expected a pair (input, label), found {type(found).__name__}")
            inputs, labels = _array(found[0]), np.asarray(found[1])
            if labels.ndim and not _is_target(inputs, labels, has_pairs):
                if len(labels) != len(inputs):
                    raise ConfigurationError(
                        f"{name}: expected as many labels as inputs, found {len(labels)} and {len(inputs)}"
                    )
                yield inputs, labels
                continue
        if pairs and (len(pairs) == _AT_ONCE or _kind(inputs, labels) != _kind(*pairs[0])):
            yield _stacked(pairs)
            pairs = []
        pairs.append((inputs, labels))
    if pairs:
        yield _stacked(pairs)


def _items(examples: Any, split: FileSplit) -> Iterator[tuple[str, Any]]:
    """Yields what the user's code gives, each with its name; what that raises has a note with the name."""
    if hasattr(examples, "__len__") and hasattr(examples, "__getitem__"):
        with _naming(f"adam.Source: len({split})"):
            count = len(examples)
        for index in pass_order(count, _ORDER_SEED, 0).tolist():
            with _naming(f"adam.Source: {split}[{index}]"):
                found = examples[index]
            yield f"adam.Source: {split}[{index}]", found
        return
    with _naming(f"adam.Source: {split}"):
        iterator = iter(examples() if callable(examples) else examples)
    number = 0
    while True:
        with _naming(f"adam.Source: item {number} of {split}"):
            try:
                found = next(iterator)
            except StopIteration:
                return
        yield f"adam.Source: item {number} of {split}", found
        number += 1


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        error.add_note(f"{name}: the error is of the code that gives the examples; the run did not begin")
        raise


def _array(values: Any) -> NDArray[Any]:
    found = np.asarray(values)
    if not (np.issubdtype(found.dtype, np.number) or found.dtype == np.bool_) or np.iscomplexobj(found):
        raise ConfigurationError(f"adam.Source: expected numbers as input, found {found.dtype} {list(found.shape)}")
    return found if found.dtype == np.uint8 else found.astype(np.float32)


def _is_target(inputs: NDArray[Any], numbers: NDArray[Any], has_pairs: bool) -> bool:
    """Whether these are the target of one example, and not the labels or targets of a batch."""
    return numbers.ndim == 1 and numbers.dtype.kind == "f" and (has_pairs or numbers.shape != inputs.shape[:1])


def _kind(inputs: NDArray[Any], labels: NDArray[Any]) -> tuple[Any, ...]:
    return inputs.shape, inputs.dtype, labels.shape, labels.dtype.kind == "f"


def _stacked(pairs: list[tuple[Any, Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    labels = [label for _, label in pairs]
    return np.stack([inputs for inputs, _ in pairs]), np.array([label.tolist() for label in labels])
