"""Users' sets of named arrays, and the parameter layout made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.model.layout import ALIGNMENT, ELEMENT_BYTES, SHARD_BYTES_MAX, ParameterLayout, Tensor

Arrays: TypeAlias = Any
"""A dict, list or tuple of arrays, possibly nested; an array is anything `numpy.asarray` accepts without copying."""

Floats: TypeAlias = NDArray[np.float32]
NAME_LENGTH_MAX = 200


class NamedArrays:
    """The structure of a set of arrays: names, shapes and how they are nested.

    Names are the keys and positions on the path to an array, joined by dots.

    Attributes:
        shapes: name -> shape, in the given order of the arrays.
    """

    def __init__(self, arrays: Arrays) -> None:
        """Raises ConfigurationError: there are no arrays, two share a name, or one is empty or not numeric."""
        if not isinstance(arrays, (Mapping, list, tuple)):
            raise ConfigurationError(f"expected a dict, list or tuple of arrays; found {type(arrays).__name__}")
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._skeleton = self._note(arrays, "")
        if not self.shapes:
            raise ConfigurationError("expected at least one array; found none")

    def _note(self, found: Any, name: str) -> Any:
        if isinstance(found, Mapping):
            return {key: self._note(item, _join(name, key)) for key, item in found.items()}
        if isinstance(found, (list, tuple)):
            inner = [self._note(item, _join(name, index)) for index, item in enumerate(found)]
            return inner if isinstance(found, list) else tuple(inner)
        array = as_array(found, name)
        if not array.size:
            raise ConfigurationError(f"{name}: expected an array with elements; found shape {list(array.shape)}")
        if name in self.shapes or len(name) > NAME_LENGTH_MAX:
            what = "two arrays have this name" if name in self.shapes else f"longer than {NAME_LENGTH_MAX} characters"
            raise ConfigurationError(f"{name[:NAME_LENGTH_MAX]}: {what}; rename one")
        self.shapes[name] = array.shape
        return name

    def matched(self, values: Arrays) -> Iterator[tuple[str, Any]]:
        """Yields (name, value) for values nested like these arrays; values that are None or missing are skipped.

        Raises:
            ConfigurationError: a name is unknown, or the nesting differs.
        """
        return self._match(self._skeleton, values, "")

    def _match(self, skeleton: Any, values: Any, name: str) -> Iterator[tuple[str, Any]]:
        if values is None:
            return
        if isinstance(skeleton, str):
            yield skeleton, values
        elif isinstance(skeleton, dict):
            if not isinstance(values, Mapping):
                raise ConfigurationError(f"{name or 'arrays'}: expected a dict; found {type(values).__name__}")
            for key, value in values.items():
                if key not in skeleton:
                    known = ", ".join(list(self.shapes)[:8])
                    raise ConfigurationError(
                        f"{_join(name, key)}: no array of this name is registered; registered: {known}"
                    )
                yield from self._match(skeleton[key], value, _join(name, key))
        else:
            if not isinstance(values, (list, tuple)) or len(values) != len(skeleton):
                found = f"{len(values)}" if isinstance(values, (list, tuple)) else type(values).__name__
                raise ConfigurationError(f"{name or 'arrays'}: expected {len(skeleton)} in a list; found {found}")
            for index, (part, value) in enumerate(zip(skeleton, values, strict=True)):
                yield from self._match(part, value, _join(name, index))

    def nested(self, leaf: Callable[[str], Any]) -> Any:
        """Returns dicts, lists and tuples nested like the given arrays, with `leaf(name)` in place of each array."""
        return _built(self._skeleton, leaf)


def _built(skeleton: Any, leaf: Callable[[str], Any]) -> Any:
    if isinstance(skeleton, str):
        return leaf(skeleton)
    if isinstance(skeleton, dict):
        return {key: _built(part, leaf) for key, part in skeleton.items()}
    parts = [_built(part, leaf) for part in skeleton]
    return parts if isinstance(skeleton, list) else tuple(parts)


def as_array(found: Any, name: str) -> NDArray[Any]:
    """Returns an array, which shares memory with `found` if possible.

    Raises:
        ConfigurationError: it is not an array of numbers.
    """
    try:
        array = np.asarray(found)
    except Exception as error:  # other frameworks may raise anything
        raise ConfigurationError(f"{name}: expected an array; found {type(found).__name__}: {error}") from error
    if array.dtype.kind not in "fiu":
        raise ConfigurationError(f"{name}: expected an array of numbers; found {array.dtype}")
    return array


def make_tensors(shapes: Mapping[str, Sequence[int]]) -> tuple[Tensor, ...]:
    """Returns the tensors of a job for arrays of these shapes, in this order."""
    tensors: list[Tensor] = []
    offset = 0
    for name, shape in shapes.items():
        tensors.append(Tensor(name, 0, described_shape(shape), offset, "given", 0.0))
        offset += -(-prod(shape) // ALIGNMENT) * ALIGNMENT
    return tuple(tensors)


def described_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of an array in a layout, which is cut along its first axis.

    A scalar becomes [1]; an array with rows longer than a shard may be becomes one vector.
    """
    if not shape:
        return (1,)
    if prod(shape[1:]) * ELEMENT_BYTES > SHARD_BYTES_MAX:
        return (prod(shape),)
    return tuple(shape)


def check_same(job: str, layout: ParameterLayout, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises ConfigurationError, naming the differences, if a job's arrays are not these."""
    theirs = {tensor.name: tensor.shape for tensor in layout.tensors}
    ours = {name: described_shape(shape) for name, shape in shapes.items()}
    differing = [name for name in (*theirs, *(ours.keys() - theirs.keys())) if ours.get(name) != theirs.get(name)]
    if differing:
        found = "; ".join(
            f"{name}: expected {_shown(theirs, name)}, found {_shown(ours, name)}" for name in differing[:4]
        )
        more = f"; and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise ConfigurationError(f"job {job!r} has other arrays than given here: {found}{more}; use another job name")


def _shown(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "none"


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
