"""What the iterations of batch algorithms have in common: a beginning, trials along a direction, reasons to stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar

import msgspec

from adamctl.errors import NotFiniteError
from adamctl.optimizers.line_search import EVALUATIONS_MAX, STEP_MAX, LineSearch
from adamctl.optimizers.vectors import Requests, Vector, Vectors, dot

GRADIENT, CHANGE, PRECISION = "gradient", "change", "precision"
"""Reasons to stop: max|g| or the change of the loss is small, or float32 tells no better step."""


class DescentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every algorithm that searches along directions.

    Attributes:
        gradient_tolerance: stop once max|g| is at most this.
        change_tolerance: stop once the loss changes by at most this part of max(|loss|, 1) in an iteration.
        evaluations_max: most evaluations of one line search.
    """

    gradient_tolerance: Annotated[float, msgspec.Meta(ge=0)] = 1e-5
    change_tolerance: Annotated[float, msgspec.Meta(ge=0)] = 1e-7
    evaluations_max: Annotated[int, msgspec.Meta(ge=1)] = EVALUATIONS_MAX

    def reason_to_stop(self, gradient_max: float, change: float) -> str | None:
        if gradient_max <= self.gradient_tolerance:
            return GRADIENT
        return CHANGE if change <= self.change_tolerance else None


class Measurement(Protocol):
    """What a trial found, at least.

    Attributes:
        loss: at the trial.
        h_d: the trial's gradient times the direction.
    """

    @property
    def loss(self) -> float: ...
    @property
    def h_d(self) -> float: ...


M = TypeVar("M", bound=Measurement)


def evaluate_start(v: Vectors, into: Vector) -> Requests[float]:
    """Returns the loss at x. Raises NotFiniteError if it, or its gradient, is not finite."""
    loss: float = yield v.evaluate(at=v.x, into=into)
    if not math.isfinite(loss):
        raise NotFiniteError("the loss at the start is not finite; begin elsewhere, or with smaller parameters")
    return loss


def first_step(gradient_square: float) -> float:
    """Returns the step along -g that moves by a length of 1, since nothing is known of scales yet, as in L-BFGS-B."""
    return min(STEP_MAX, 1.0 / math.sqrt(gradient_square))


def relative_change(before: float, after: float) -> float:
    return abs(before - after) / max(abs(before), abs(after), 1.0)


def search_along(
    v: Vectors, t: Vector, d: Vector, search: LineSearch, measure: Callable[[], Requests[M | None]]
) -> Requests[M | None]:
    """Searches from x along d; t is at the first step already. A step that float32 does not show ends the search.

    Args:
        measure: evaluates at t and asks for what is to be known there; returns None if anything is not finite.

    Returns:
        What was measured where t is left: at a step that fulfils the conditions, or else the best one that lowers the
        loss; None if there is none.
    """
    while True:
        tried, found = search.step, (yield from measure())
        if found is None:
            search.tried(math.inf, math.inf)
        else:
            search.tried(found.loss, found.h_d)
        if search.ended:
            break
        (moved,) = yield v.round(t.set(v.x + search.step * d), dot(t - v.x, t - v.x))
        if moved == 0:
            tried = 0.0
            break
    if search.succeeded:
        return found
    if search.best is None:
        return None
    if search.best.step != tried:
        yield v.round(t.set(v.x + search.best.step * d))
        found = yield from measure()
    return found
