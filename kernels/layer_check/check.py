"""Whether a layer of the user's own keeps its promises: what it says of itself, and that parts make the whole.

Each check compares two ways to the same numbers, and names the first element in which they differ, with both values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from adamctl.errors import ConfigurationError, CustomError
from adamctl.kernels.backend import installed
from adamctl.kernels.layer_check.kept import changes, held_arrays
from adamctl.kernels.layer_check.runs import Floats, Given, Made, Thread, numbers_for, whole_of
from adamctl.kernels.native import can_compile
from adamctl.kernels.slicing import OutputSlice
from adamctl.model.custom.interface import Full, Layer, Same
from adamctl.model.custom.resolved import Resolved, resolved

BATCH = 3
SAMPLES = 40
"""Elements of each array whose numerical gradient is computed, and nodes whose connectivity is looked at."""
STEP = 1e-6
NUMERICAL, EXACT, NATIVE, SINGLE = 1e-5, 1e-9, 2e-5, 2e-4
"""Differences that are allowed, as a share of the largest value: of numerical gradients, in float64, between native
calls and numpy, and between float32 and float64.
"""


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a layer: which check found it, and what was found."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


def check_layer(layer: Layer, input_shape: Sequence[int], partitions: Sequence[int] = (2, 3), seed: int = 1) -> None:
    """Checks a layer on images or vectors of this shape, whole and cut over so many partitions.

    Numerical gradients; parts against the whole; that a node reads only what `connectivity` says; native calls against
    numpy; that nothing is kept between batches or shared by threads; that equal batches give equal bits; that every
    element is written and nothing else is changed.

    Raises:
        CustomError: the layer breaks a promise; each one is named with the element and both values.
        ConfigurationError: what the layer says of its shapes, parameters or connectivity does not fit.
    """
    found = findings(layer, input_shape, partitions, seed)
    if found:
        raise CustomError("\n".join([f"{_path(layer)} breaks a promise:", *map(str, found)]))


def findings(
    layer: Layer, input_shape: Sequence[int], partitions: Sequence[int] = (2, 3), seed: int = 1
) -> list[Finding]:
    """Returns what is wrong with a layer. Raises ConfigurationError as `check_layer`."""
    try:
        own = resolved(layer, tuple(input_shape))
    except ConfigurationError as error:
        raise ConfigurationError(f"{layer.name} ({_path(layer)}): {error}") from error
    checks: tuple[tuple[str, Callable[[Resolved, int], Iterator[str]]], ...] = (
        ("what is written", _written),
        ("the same batch twice", _deterministic),
        ("between batches", _between_batches),
        ("between threads", _between_threads),
        ("examples", _examples),
        ("connectivity", _connectivity),
        ("gradients", _gradients),
        ("float32", _single),
        ("partitions", lambda own, seed: _partitions(own, partitions, seed)),
        ("native calls", lambda own, seed: _native(own, partitions, seed)),
    )
    found: list[Finding] = []
    for name, check in checks:
        try:
            with np.errstate(all="ignore"):
                found += [Finding(name, text) for text in check(own, seed)]
        except (CustomError, ConfigurationError, TypeError, RuntimeError) as error:
            found.append(Finding(name, str(error)))
            if name == "what is written":
                break
    return found


def _written(own: Resolved, seed: int) -> Iterator[str]:
    """Every element is written, nothing else is changed, and the error at the inputs may be left out."""
    given = numbers_for(own, BATCH, seed)
    thread, kept = Thread(whole_of(own, own.name), BATCH, np.float64), given.as_type(np.float64)
    held = held_arrays(own.layer)
    made = thread.run(given)
    for what, array in made.arrays(_names(own)):
        if (place := _first(~np.isfinite(array))) is not None:
            yield f"{what} at {list(place)}: found {array[place]}; expected a finite number: was it written?"
    for what, before, after in (
        ("inputs", kept.inputs, given.inputs),
        *zip((f"parameter {name}" for name in _names(own)), kept.parameters, given.parameters, strict=True),
    ):
        yield from _differences(f"{what} must not be changed", before, after, 0)
    for text in changes(held, held_arrays(own.layer)):
        yield f"{text}: it is outside of state, and all threads share it; declare it in state"
    without = Thread(whole_of(own, own.name), BATCH, np.float64, wants_error=False).run(given)
    for name, one, other in zip(_names(own), made.gradients, without.gradients, strict=True):
        yield from _differences(f"gradient of {name} where downward's out is None", one, other, EXACT)


def _deterministic(own: Resolved, seed: int) -> Iterator[str]:
    given = numbers_for(own, BATCH, seed)
    one, other = (Thread(whole_of(own, own.name), BATCH, np.float64).run(given) for _ in range(2))
    yield from _compared(own, one, other, 0, "differs from one run to the next")


def _between_batches(own: Resolved, seed: int) -> Iterator[str]:
    """A run does not depend on the batch before, nor on how many examples it had."""
    given, another = numbers_for(own, BATCH, seed), numbers_for(own, BATCH - 1, seed + 1)
    thread = Thread(whole_of(own, own.name), BATCH, np.float64)
    first = thread.run(given)
    thread.run(another)
    yield from _compared(own, first, thread.run(given), 0, "depends on the batch before")


def _between_threads(own: Resolved, seed: int) -> Iterator[str]:
    """What one thread does between upward and downward of another changes nothing."""
    given, another = numbers_for(own, BATCH, seed), numbers_for(own, BATCH, seed + 1)
    operation = whole_of(own, own.name)
    one, other = Thread(operation, BATCH, np.float64), Thread(operation, BATCH, np.float64)
    alone = one.run(given)
    outputs = one.upward(given)
    other.run(another)
    yield from _compared(own, alone, Made(outputs, *one.downward(given)), 0, "depends on what another thread computes")


def _examples(own: Resolved, seed: int) -> Iterator[str]:
    """The outputs of an example do not depend on the others of its batch."""
    given = numbers_for(own, BATCH, seed)
    thread = Thread(whole_of(own, own.name), BATCH, np.float64)
    expected = thread.upward(given)
    given.inputs[1:] = np.nan
    found = thread.upward(given)
    yield from _differences("out with other examples of the batch", expected[:1], found[:1], EXACT)


def _connectivity(own: Resolved, seed: int) -> Iterator[str]:
    """NaN outside of what a node reads reaches neither its output nor, from its error, another input."""
    if isinstance(own.connectivity, Full):
        return
    given = numbers_for(own, 1, seed)
    thread = Thread(whole_of(own, own.name), 1, np.float64)
    expected = thread.upward(given)
    generator = np.random.default_rng(seed)
    for node in _places(own.output, generator):
        read = _read_by(own, node)
        inputs = np.full_like(given.inputs, np.nan)
        inputs[(slice(None), *read)] = given.inputs[(slice(None), *read)]
        found = thread.upward(Given(inputs, given.parameters, given.error))
        place = (0, *node)
        if not _close(expected[place], found[place], EXACT):
            shown = "[" + ", ".join(f"{part.start}:{part.stop}" for part in read) + "]"
            yield (
                f"upward: output {list(node)}: {expected[place]:.6g}, but {found[place]:.6g} with NaN in all inputs "
                f"outside of {shown}, which {own.connectivity} reads"
            )
            break
    for node in _places(own.output, generator):
        error = np.zeros_like(given.error)
        error[(0, *node)] = np.nan
        thread.upward(given)
        reached, _ = thread.downward(Given(given.inputs, given.parameters, error))
        assert reached is not None
        reached[(slice(None), *_read_by(own, node))] = 0
        if (strange := _first(~np.isfinite(reached))) is not None:
            yield (
                f"downward: the error at output {list(node)} reaches input {list(strange[1:])}, which it does not "
                f"read: expected 0, found {reached[strange]}"
            )
            break


def _gradients(own: Resolved, seed: int) -> Iterator[str]:
    """Compares downward with central differences of the sum of outputs * error, in float64."""
    given = numbers_for(own, 2, seed)
    thread = Thread(whole_of(own, own.name), 2, np.float64)
    made = thread.run(given)
    generator = np.random.default_rng(seed)
    single = bool((made.outputs == made.outputs.astype(np.float32)).all())
    hint = "; out has no more digits than float32: compute in the type of the inputs" if single else ""
    analytic = [made.input_error, *made.gradients]
    labels = ["error at inputs", *(f"gradient of {name}" for name in _names(own))]
    for what, array, found in zip(labels, [given.inputs, *given.parameters], analytic, strict=True):
        assert found is not None
        places = list(_places(array.shape, generator))
        numerical = [_slope(thread, given, array, place) for place in places]
        scale = max(np.abs(numerical).max(), np.abs(found).max(), 1.0)
        for place, right in zip(places, numerical, strict=True):
            if not abs(found[place] - right) <= NUMERICAL * scale:
                yield f"{what} at {list(place)}: found {found[place]:.8g}; numerically {right:.8g}{hint}"
                break


def _slope(thread: Thread, given: Given, array: Floats, place: tuple[int, ...]) -> float:
    kept, sums = array[place], []
    for step in (STEP, -STEP):
        array[place] = kept + step
        sums.append(float((thread.upward(given) * given.error).sum()))
    array[place] = kept
    return (sums[0] - sums[1]) / (2 * STEP)


def _single(own: Resolved, seed: int) -> Iterator[str]:
    """In float32 the same comes out but for rounding."""
    given = numbers_for(own, BATCH, seed).as_type(np.float32)
    exact = Thread(whole_of(own, own.name), BATCH, np.float64).run(given.as_type(np.float64))
    found = Thread(whole_of(own, own.name), BATCH, np.float32).run(given)
    yield from _compared(own, exact, found, SINGLE, "differs from float64 by more than rounding")


def _partitions(own: Resolved, partitions: Sequence[int], seed: int) -> Iterator[str]:
    """Parts make together what the whole makes: outputs side by side, errors and shared gradients added up."""
    given = numbers_for(own, BATCH, seed)
    whole = Thread(whole_of(own, own.name), BATCH, np.float64).run(given)
    for axis, count, cuts in _cuts(own, partitions):
        assert whole.input_error is not None
        made = Made(
            np.full_like(whole.outputs, np.nan),
            np.zeros_like(whole.input_error),
            tuple(np.zeros_like(gradient) for gradient in whole.gradients),
        )
        for part in cuts:
            sliced = whole_of(own, own.name).slice(part)
            thread = Thread(sliced.operation, BATCH, np.float64)  # type: ignore[arg-type]
            found = thread.run(given.of(sliced.inputs, sliced.outputs, sliced.parameters))
            made.outputs[(slice(None), *sliced.outputs)] = found.outputs
            assert made.input_error is not None and found.input_error is not None
            made.input_error[(slice(None), *sliced.inputs)] += found.input_error
            for total, region, gradient in zip(made.gradients, sliced.parameters, found.gradients, strict=True):
                total[region] += gradient
        yield from _compared(own, whole, made, EXACT, f"of {count} parts by {axis} differs from the whole's")


def _native(own: Resolved, partitions: Sequence[int], seed: int) -> Iterator[str]:
    """Native calls compute what numpy does, whole and in parts."""
    if "numba" not in installed() or not can_compile():
        return
    given = numbers_for(own, BATCH, seed).as_type(np.float32)
    whole, plain = whole_of(own, own.name, "numba"), whole_of(own, own.name)
    parts = [part for _, _, cuts in _cuts(own, partitions) for part in cuts]
    pieces: list[tuple[str, Any, Any, Given]] = [("whole", whole, plain, given)]
    for part in parts:
        sliced = whole.slice(part)
        named, own_given = (
            f"{part.axis} {part.start} to {part.stop}",
            given.of(sliced.inputs, sliced.outputs, sliced.parameters),
        )
        pieces.append((named, sliced.operation, plain.slice(part).operation, own_given))
    for named, operation, by_numpy, own_given in pieces:
        for wants_error in (True, False):
            thread = Thread(operation, BATCH, np.float32, wants_error)
            if not thread.has_native(own_given):
                return
            expected = Thread(by_numpy, BATCH, np.float32, wants_error).run(own_given)
            found = thread.run(own_given, "native")
            differing = list(_compared(own, expected, found, NATIVE, f"by native calls ({named}) differs from numpy's"))
            if differing:
                yield from differing
                return


def _cuts(own: Resolved, partitions: Sequence[int]) -> Iterator[tuple[str, int, list[OutputSlice]]]:
    for axis in own.axes:
        extent = own.output[-1 if axis == "maps" else 0]
        for count in partitions:
            bounds = [extent * number // count for number in range(count + 1)]
            if extent >= count:
                yield axis, count, [OutputSlice(axis, *one) for one in pairwise(bounds)]


def _read_by(own: Resolved, node: tuple[int, ...]) -> tuple[slice, ...]:
    """Returns the region of the input that a node reads."""
    if isinstance(own.connectivity, Same):
        return tuple(slice(place, place + 1) for place in node)
    rows, columns = (own.placed(axis, node[axis], node[axis] + 1).reads for axis in (0, 1))
    return slice(*rows), slice(*columns), slice(0, own.input[2])


def _places(shape: Sequence[int], generator: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Yields places of an array: all, or so many, the first and the last among them."""
    count = int(np.prod(shape))
    drawn = range(count) if count <= SAMPLES else generator.choice(count, SAMPLES, replace=False).tolist()
    for place in sorted({0, count - 1, *drawn}):
        yield tuple(int(along) for along in np.unravel_index(place, tuple(shape)))


def _path(layer: Layer) -> str:
    """Returns `module:Class`."""
    return f"{type(layer).__module__}:{type(layer).__qualname__}"


def _names(own: Resolved) -> list[str]:
    return [name for name, _ in own.parameters]


def _compared(own: Resolved, expected: Made, found: Made, tolerance: float, how: str) -> Iterator[str]:
    names = _names(own)
    for (what, one), (_, other) in zip(expected.arrays(names), found.arrays(names), strict=True):
        yield from _differences(f"{what} {how}", one, other, tolerance)


def _differences(what: str, expected: Floats, found: Floats, tolerance: float) -> Iterator[str]:
    """Yields the first element that differs by more than a share of the largest value, if one does."""
    scale = max(float(np.abs(expected).max(initial=0)), 1.0)
    same = np.abs(expected - found) <= tolerance * scale
    if (place := _first(~(same | (np.isnan(expected) & np.isnan(found))))) is not None:
        yield f"{what} at {list(place)}: expected {expected[place]:.8g}; found {found[place]:.8g}"


def _close(one: Any, other: Any, tolerance: float) -> bool:
    return bool(abs(one - other) <= tolerance * max(abs(one), 1.0))


def _first(wrong: Any) -> tuple[int, ...] | None:
    places = np.argwhere(wrong)
    return tuple(int(along) for along in places[0]) if len(places) else None
