"""The arrays that a layer of the user's own holds outside of its state, and that all threads share.

They lie in the object, its classes, its module, or in a closure or default of one of its methods: there themselves, or
in dictionaries, lists and objects of the module's own classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.model.custom.interface import Layer

Held: TypeAlias = dict[str, NDArray[Any]]
DEPTH_MAX = 3
"""Dictionaries, lists and objects in each other that are looked into."""


def held_arrays(layer: Layer) -> Held:
    """Returns copies of the arrays of numbers that a layer holds, by where they are."""
    kind = type(layer)
    classes = [one for one in kind.__mro__ if one is not object and one is not Layer]
    modules = dict.fromkeys((kind.__module__, *(one.__module__ for one in classes)))
    found: Held = {}
    for name, value in (
        ("self", vars(layer)),
        *((module, vars(sys.modules[module])) for module in modules),
        *((one.__qualname__, dict(vars(one))) for one in classes),
    ):
        for key, inside in value.items():
            if not key.startswith("__"):
                found.update(_arrays(f"{name}.{key}", inside, frozenset(modules), 0))
    return found


def changes(before: Held, after: Held) -> Iterator[str]:
    """Yields where an array has changed, with the first element and both values, or is another one than before."""
    for name in sorted(after):
        one, other = before.get(name), after[name]
        if one is None or one.shape != other.shape or one.dtype != other.dtype:
            was = "none" if one is None else f"{one.dtype} {list(one.shape)}"
            yield f"{name}: another array than before: {was} before and {other.dtype} {list(other.shape)} after"
            continue
        differs = (one != other) & ~((one != one) & (other != other))
        if len(places := np.argwhere(differs)):
            place = tuple(int(along) for along in places[0])
            yield f"{name} at {list(place)}: {_shown(one[place])} before and {_shown(other[place])} after"


def _shown(number: Any) -> str:
    return f"{number:.8g}" if isinstance(number, np.floating) else str(number)


def _arrays(name: str, value: Any, modules: frozenset[str], depth: int) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biufc":
            yield name, value.copy()
        return
    if depth > DEPTH_MAX:
        return
    for key, inside in _inside(value, modules):
        yield from _arrays(f"{name}{key}", inside, modules, depth + 1)


def _is_set(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that has no value yet
        return False


def _inside(value: Any, modules: frozenset[str]) -> list[tuple[str, Any]]:
    """Returns (what is appended to the name, value) of what a container, function or object holds."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", inside) for key, inside in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", inside) for place, inside in enumerate(value)]
    if isinstance(value, FunctionType):
        if value.__module__ not in modules:
            return []
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        closure = [(f": {key}", cell.cell_contents) for key, cell in cells if key != "__class__" and _is_set(cell)]
        defaults = [(f": default {place}", inside) for place, inside in enumerate(value.__defaults__ or ())]
        return [*closure, *defaults, *((f".{key}", inside) for key, inside in vars(value).items())]
    if type(value).__module__ in modules and hasattr(value, "__dict__"):
        return [(f".{key}", inside) for key, inside in vars(value).items()]
    return []
