"""Sets of named arrays as users hold them, and the parameter layout that they become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.model.layout import ALIGNMENT, ELEMENT_BYTES, SHARD_BYTES_MAX, ParameterLayout, Tensor

Arrays: TypeAlias = Any
"""A dict, list or tuple of arrays, or of such again; an array is whatever `numpy.asarray` takes without copying."""

Floats: TypeAlias = NDArray[np.float32]
NAME_LENGTH_MAX = 200


class NamedArrays:
    """The structure of a set of arrays: names, shapes and how they are nested.

    Names are the keys and positions on the way to an array, joined by dots.

    Attributes:
        shapes: name -> shape, in the order in which the arrays were given.
    """

    def __init__(self, arrays: Arrays) -> None:
        """Raises ConfigurationError: there are none, two have one name, or one is empty or holds no numbers."""
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
        """Yields (name, value) of values nested like these arrays; what is None or left out of a dict is left out.

        Raises:
            ConfigurationError: a name that is not one of these, or another nesting.
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
                    raise ConfigurationError(f"{_join(name, key)}: no array of this name is registered; there: {known}")
                yield from self._match(skeleton[key], value, _join(name, key))
        else:
            if not isinstance(values, (list, tuple)) or len(values) != len(skeleton):
                found = f"{len(values)}" if isinstance(values, (list, tuple)) else type(values).__name__
                raise ConfigurationError(f"{name or 'arrays'}: expected {len(skeleton)} in a list; found {found}")
            for index, (part, value) in enumerate(zip(skeleton, values, strict=True)):
                yield from self._match(part, value, _join(name, index))

    def nested(self, leaf: Callable[[str], Any]) -> Any:
        """Returns dicts, lists and tuples nested as the arrays were given, with `leaf(name)` in the place of each."""
        return _built(self._skeleton, leaf)


def _built(skeleton: Any, leaf: Callable[[str], Any]) -> Any:
    if isinstance(skeleton, str):
        return leaf(skeleton)
    if isinstance(skeleton, dict):
        return {key: _built(part, leaf) for key, part in skeleton.items()}
    parts = [_built(part, leaf) for part in skeleton]
    return parts if isinstance(skeleton, list) else tuple(parts)


def as_array(found: Any, name: str) -> NDArray[Any]:
    """Returns an array, which shares memory with what was given where that is possible.

    Raises:
        ConfigurationError: it is no array of numbers.
    """
    try:
        array = np.asarray(found)
    except Exception as error:  # whatever another framework raises
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
    """Returns the shape under which an array stands in a layout, which is cut along its first axis.

    That of a scalar is [1]; rows longer than a shard may be are laid out as one vector.
    """
    if not shape:
        return (1,)
    if prod(shape[1:]) * ELEMENT_BYTES > SHARD_BYTES_MAX:
        return (prod(shape),)
    return tuple(shape)


def check_same(job: str, layout: ParameterLayout, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises ConfigurationError if a job's arrays are not these, naming those that differ."""
    theirs = {tensor.name: tensor.shape for tensor in layout.tensors}
    ours = {name: described_shape(shape) for name, shape in shapes.items()}
    differing = [name for name in (*theirs, *(ours.keys() - theirs.keys())) if ours.get(name) != theirs.get(name)]
    if differing:
        found = "; ".join(
            f"{name}: expected {_shown(theirs, name)}, found {_shown(ours, name)}" for name in differing[:4]
        )
        more = f"; and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise ConfigurationError(f"job {job!r} has other arrays than were given: {found}{more}; use another job's name")


def _shown(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "none"


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
