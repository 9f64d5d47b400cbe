"""Nonlinear conjugate gradient as a program: Polak and Ribiere's formula, never below 0, with Powell's restarts.

Nocedal and Wright, "Numerical Optimization", sections 3.5 (first steps) and 5.2. The direction is kept, so that nothing
is lost between commits: 8 bytes a parameter besides the parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adamctl.optimizers.descent import (
    PRECISION,
    DescentSettings,
    evaluate_start,
    first_step,
    relative_change,
    search_along,
)
from adamctl.optimizers.line_search import STEP_MAX, LineSearch
from adamctl.optimizers.registry import BatchAlgorithm
from adamctl.optimizers.vectors import Requests, State, Vectors, dot, max_abs

CURVATURE = 0.1
"""c2 of the line search: conjugate directions need nearly exact steps."""
ORTHOGONAL = 0.2
"""Successive gradients whose product is a larger part of the square are not orthogonal, so directions not conjugate."""


@dataclass(frozen=True)
class Measured:
    """What is known at a trial, whose gradient is h; g is that of the accepted point, d the direction."""

    loss: float
    h_d: float
    h_h: float
    h_max: float
    h_g: float
    eta_h: float
    sigma_sigma: float


@dataclass
class Iterate:
    """What is known of the accepted point: all of it is in the state of its commit.

    Attributes:
        slope: g.d.
        expected: the step times slope of the latest iteration, which first steps are guessed from; 0 after a restart.
        step: length of the latest displacement.
    """

    loss: float
    gradient_square: float
    gradient_max: float
    slope: float
    expected: float = 0.0
    change: float = 1.0
    step: float = 0.0
    iteration: int = 0
    restarts: int = 0

    def first_step(self) -> float:
        guess = self.expected / self.slope
        return guess if 0 < guess <= STEP_MAX else first_step(self.gradient_square)

    def accept(self, found: Measured, step: float) -> float:
        """Moves to the point that was found; returns the part of the old direction in the new one."""
        self.expected = step * self.slope
        factor = max(0.0, found.eta_h / self.gradient_square)
        self.slope = -found.h_h + factor * found.h_d
        if abs(found.h_g) >= ORTHOGONAL * found.h_h or self.slope >= 0:
            factor, self.slope = 0.0, -found.h_h
        self.change = relative_change(self.loss, found.loss)
        self.loss, self.gradient_square, self.gradient_max = found.loss, found.h_h, found.h_max
        self.step = math.sqrt(found.sigma_sigma)
        self.iteration += 1
        return factor


def conjugate_gradient(v: Vectors, settings: DescentSettings, state: State) -> Requests[str]:
    """Minimises the loss from x. Returns why it stopped.

    Raises:
        NotFiniteError: the loss or the gradient is not finite where it begins.
    """
    g, d, t, h = v.kept("g"), v.kept("d"), v.scratch("t"), v.scratch("h")

    def measure() -> Requests[Measured | None]:
        loss = yield v.evaluate(at=t, into=h)
        if not math.isfinite(loss):
            return None
        numbers = yield v.round(
            dot(h, d), dot(h, h), max_abs(h), dot(h, g), dot(h - g, h), dot(t - v.x, t - v.x)
        )  # fmt: skip
        return Measured(loss, *numbers) if all(map(math.isfinite, numbers)) else None

    if state:
        at = Iterate(**state)
    else:
        loss = yield from evaluate_start(v, h)
        square, largest = yield v.round(dot(h, h), max_abs(h))
        at = Iterate(loss, square, largest, slope=-square)
        yield v.commit(g.set(h), d.set(-h), state=vars(at))
    while True:
        reason = settings.reason_to_stop(at.gradient_max, at.change)
        if reason is not None:
            return reason
        first = at.first_step()
        yield v.round(t.set(v.x + first * d))
        search = LineSearch(
            at.loss, at.slope, first, curvature=CURVATURE, evaluations_max=settings.evaluations_max
        )  # fmt: skip
        found = yield from search_along(v, t, d, search, measure)
        if found is not None:
            factor = at.accept(found, search.step if search.succeeded or search.best is None else search.best.step)
            yield v.commit(v.x.set(t), g.set(h), d.set(factor * d - h), state=vars(at))
        elif at.slope != -at.gradient_square or at.expected:
            at.slope, at.expected = -at.gradient_square, 0.0
            at.restarts += 1
            yield v.commit(d.set(-g), state=vars(at))
        else:
            return PRECISION


ALGORITHM = BatchAlgorithm(
    "Conjugate gradient: two vectors of memory, more evaluations", conjugate_gradient, DescentSettings
)
