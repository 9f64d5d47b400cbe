"""`check_loss`: whether a loss of one's own is what its methods promise, on random outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adamctl.errors import ConfigurationError, CustomError
from adamctl.kernels.backend import installed
from adamctl.kernels.custom_kernel import checked_calls
from adamctl.kernels.native import address_of, can_compile
from adamctl.kernels.native_function import compile_calls
from adamctl.model.custom.asking import ask
from adamctl.model.custom.loss import Loss, custom_loss, finished_by, made, measured_by, target_numbers_of, write_error
from adamctl.model.tally import Tally, added

Array = NDArray[np.float32]
Answers = NDArray[Any]

STEP: Final = 2e-3
TOLERANCE: Final = 2e-2
"""Largest difference of a derivative, as a share of the largest one; float32 losses are exact to about a thousandth."""

NATIVE: Final = 1e-4
"""Largest difference of native calls from numpy, as a share of the largest value."""


def check_loss(
    loss: str | type[Loss] | Loss,
    *,
    units: int = 4,
    batch: int = 6,
    seed: int = 0,
    outputs: ArrayLike | None = None,
    targets: ArrayLike | None = None,
) -> None:
    """Checks shapes, the derivative against differences, that nothing is kept or changed, and that sums add up.

    Native calls, where the loss has any, are compared with numpy.

    Args:
        units, batch, seed: of random outputs [batch, units] and targets, normally distributed; labels are drawn evenly.
        outputs, targets: in their place, where a loss takes only certain numbers. They are taken as float32, and labels
            as int32, as in training.

    Raises:
        CustomError: the loss breaks a promise, or a method failed; the message says which one, at which index, and both
            values.
        ConfigurationError: there is no such loss, it cannot be made, its kernel cannot be compiled, or `outputs` or
            `targets` are no numbers, or have another shape.
    """
    own = custom_loss(loss) if isinstance(loss, str) else _made(loss) if isinstance(loss, type) else loss
    random = np.random.default_rng(seed)
    numbers = random.standard_normal((batch, units)) if outputs is None else outputs
    given = _in_type("outputs", numbers, np.float32)
    _expect("outputs", given, "numbers of each example, [n, units]", given.ndim == 2 and given.size > 0)
    wanted = np.int32 if own.answers == "labels" else np.float32
    answers = _answers(own, random, *given.shape) if targets is None else _in_type("targets", targets, wanted)
    kind, ndim = ("a label of each example, [n]", 1) if own.answers == "labels" else ("numbers of each, [n, k]", 2)
    _expect("targets", answers, f"{kind}, n = {len(given)}", answers.ndim == ndim and len(answers) == len(given))
    between = -given[::-1].copy() if outputs is None else (given[::-1] + given.mean(axis=0)) / 2
    _Check(own, given, answers, between).run()


def _made(loss: type[Loss]) -> Loss:
    try:
        return made(loss)
    except ConfigurationError as error:
        raise ConfigurationError(f"{loss.__name__}: {error}") from error


def _expect(name: str, numbers: Answers, what: str, right: bool) -> None:
    if not right:
        raise ConfigurationError(f"{name}: expected {what}; found shape {list(numbers.shape)}")


def _in_type(name: str, numbers: ArrayLike, wanted: type[np.float32] | type[np.int32]) -> Answers:
    """Returns what is given in the type that a loss gets in training."""
    kinds, said = ("iu", "labels, whole numbers") if wanted is np.int32 else ("fiu", "real numbers")
    try:
        found = np.asarray(numbers)
    except ValueError as error:  # lists of different lengths
        raise ConfigurationError(f"{name}: expected {said} in an array; found: {error}") from error
    if found.dtype.kind not in kinds:
        raise ConfigurationError(f"{name}: expected {said}; found {found.dtype} {list(found.shape)}")
    return found.astype(wanted, copy=False)


def _answers(own: Loss, random: np.random.Generator, batch: int, units: int) -> Answers:
    if own.answers == "labels":
        return random.integers(0, units, batch).astype(np.int32)
    return random.standard_normal((batch, target_numbers_of(own, units))).astype(np.float32)


class _Check:
    def __init__(self, own: Loss, outputs: Array, answers: Answers, between: Array) -> None:
        """`between`: other outputs that the loss takes, by which it is seen what it keeps."""
        self._own, self._outputs, self._answers, self._between = own, outputs, answers, between
        self._name = type(own).__name__

    def run(self) -> None:
        losses = self._same_twice("evaluate", lambda: self._losses(self._outputs))
        error = self._same_twice("error", self._error)
        self._examples_alone(losses)
        self._derivative(error)
        self._metric()
        finished_by(self._own, self._outputs.copy())
        self._native(losses, error)

    def _refuse(self, method: str, what: str) -> CustomError:
        return CustomError(f"{self._name}.{method}: {what}")

    def _ask(self, method: str, *arguments: Any) -> Any:
        return ask(f"{self._name}.{method}", getattr(self._own, method), *arguments)

    def _losses(self, outputs: Array, answers: Answers | None = None) -> NDArray[np.float64]:
        answers = self._answers if answers is None else answers
        losses = np.asarray(self._ask("evaluate", outputs, answers))
        if losses.dtype.kind not in "fiu":
            raise self._refuse("evaluate", f"expected real numbers; found {losses.dtype}")
        if losses.shape != outputs.shape[:1]:
            shapes = f"[{len(outputs)}]; found {list(losses.shape)}"
            raise self._refuse("evaluate", f"expected the loss of each example, shape {shapes}")
        found = losses.astype(np.float64)
        if not np.isfinite(found).all():
            place = int(np.flatnonzero(~np.isfinite(found))[0])
            raise self._refuse("evaluate", f"[{place}]: expected a finite number; found {found[place]}")
        return found

    def _error(self) -> NDArray[np.float64]:
        out = np.full(self._outputs.shape, np.nan, np.float32)
        write_error(self._own, self._outputs, self._answers, out)
        bad = np.argwhere(~np.isfinite(out))
        if len(bad):
            place = bad[0].tolist()
            raise self._refuse("error", f"{place}: expected a finite number in out; found {out[tuple(place)]}")
        return out.astype(np.float64)

    def _same_twice(self, method: str, call: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Calls twice, on other examples in between; refuses other results, and changes of what was given."""
        outputs, answers = self._outputs.copy(), self._answers.copy()
        first = call()
        for before, now, name in ((outputs, self._outputs, "outputs"), (answers, self._answers, "targets")):
            self._equal(method, before, now, f"{name} are to be read only: before and after")
        kept = self._outputs
        self._outputs = self._between
        call()
        self._outputs = kept
        self._equal(method, first, call(), "the same examples give other results: at first and again")
        return first

    def _equal(self, method: str, one: Answers, other: Answers, what: str) -> None:
        different = np.argwhere(one != other)
        if len(different):
            place = tuple(different[0].tolist())
            raise self._refuse(method, f"{list(place)}: {what}, {one[place]} and {other[place]}")

    def _examples_alone(self, losses: NDArray[np.float64]) -> None:
        """Each example's loss must not depend on which others share its batch, or it depends on how work is cut."""
        for row in range(len(losses)):
            alone = self._losses(self._outputs[row : row + 1], self._answers[row : row + 1])[0]
            if not np.isclose(alone, losses[row], rtol=1e-4, atol=1e-6):
                what = "depends on the others in its batch: there and alone"
                raise self._refuse("evaluate", f"[{row}]: the loss of an example {what}, {losses[row]:g} and {alone:g}")

    def _derivative(self, error: NDArray[np.float64]) -> None:
        """Compares with differences on both sides, of float32 outputs, as a step has them."""
        largest = max(float(np.abs(error).max()), 1e-12)
        for place in np.ndindex(*self._outputs.shape):
            values = []
            for step in (STEP, -STEP):
                moved = self._outputs.copy()
                moved[place] += np.float32(step)
                values.append((float(moved[place]), float(self._losses(moved).mean())))
            (above, of_above), (below, of_below) = values
            expected = (of_above - of_below) / (above - below)
            if abs(expected - error[place]) > TOLERANCE * max(largest, abs(expected)):
                raise self._refuse(
                    "error",
                    f"{list(place)}: expected the derivative of the mean loss, {expected:.6g} by differences; found "
                    f"{error[place]:.6g}",
                )

    def _native(self, losses: NDArray[np.float64], error: NDArray[np.float64]) -> None:
        """Native calls, compiled as a step compiles them, write what numpy computes, and nothing else."""
        if "numba" not in installed() or not can_compile():
            return
        outputs, answers = np.ascontiguousarray(self._outputs), np.ascontiguousarray(self._answers)
        losses_made, out = np.full(len(outputs), np.nan, np.float32), np.full(outputs.shape, np.nan, np.float32)
        asked = self._ask("native_error", outputs, answers, out, losses_made)
        calls = checked_calls(f"{self._name}.native_error", asked)
        if calls is None:
            return
        kept, kept_answers, row = outputs.copy(), answers.copy(), np.zeros(1, np.int64)
        try:
            native = compile_calls(calls)
        except TypeError as misfit:  # arguments that do not fit the kernel
            raise self._refuse("native_error", str(misfit)) from misfit
        if status := native(address_of(row), 1):
            raise self._refuse("native_error", f"a kernel failed with status {status}")
        for before, now, name in ((kept, outputs, "outputs"), (kept_answers, answers, "targets")):
            self._equal("native_error", before, now, f"{name} are to be read only: before and after")
        for name, expected, found in (("losses", losses, losses_made), ("out", error, out)):
            close = np.isclose(found, expected, rtol=NATIVE, atol=NATIVE * max(float(np.abs(expected).max()), 1e-12))
            if len(places := np.argwhere(~close)):
                place = tuple(places[0].tolist())
                what = f"expected {expected[place]:.6g}, as by numpy; found {found[place]:.6g}"
                raise self._refuse("native_error", f"{name} {list(place)}: {what}")

    def _metric(self) -> None:
        """The metric of two halves' sums must be that of the whole."""
        losses, half = self._losses(self._outputs), max(len(self._outputs) // 2, 1)
        whole = self._tally(slice(None), losses)
        first, second = self._tally(slice(half), losses), self._tally(slice(half, None), losses)
        if len(first.sums) != len(whole.sums):
            counts = f"{len(first.sums)} of {first.examples} examples and {len(whole.sums)} of {whole.examples}"
            raise self._refuse("measure", f"expected always as many numbers; found {counts}")
        joined = added(first.sums, second.sums) if second.examples else first.sums
        for place, (one, other) in enumerate(zip(joined, whole.sums, strict=True)):
            if not np.isclose(one, other, rtol=1e-4, atol=1e-6):
                what = "sums of two halves must add up to that of the whole"
                raise self._refuse("measure", f"[{place}]: {what}, {other:g}; found {one:g}")
        value = self._ask("metric", whole)
        if not isinstance(value, (int, float, np.floating)) or not np.isfinite(value):
            raise self._refuse("metric", f"expected a finite number; found {value!r}")

    def _tally(self, part: slice, losses: NDArray[np.float64]) -> Tally:
        outputs, answers = self._outputs[part], self._answers[part]
        sums = measured_by(self._own, outputs, answers) if len(outputs) else ()
        return Tally(len(outputs), float(losses[part].sum()), 0, sums)
