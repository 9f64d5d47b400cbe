"""OWL-QN as a program: L-BFGS for a loss with an L1 term, which makes parameters 0 (Andrew and Gao 2007).

Where a parameter is 0 the L1 term has no gradient; the pseudo-gradient p is that of the side on which the loss falls,
or 0. Directions go where -p does, and a step does not cross 0: it ends there. Pairs are of the smooth loss alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec

from adamctl.model.commands import Command
from adamctl.optimizers.descent import evaluate_start, first_step
from adamctl.optimizers.line_search import SUFFICIENT_DECREASE
from adamctl.optimizers.quasi_newton import Iterate, QuasiNewton, QuasiNewtonSettings, Trial
from adamctl.optimizers.registry import BatchAlgorithm
from adamctl.optimizers.vectors import (
    Commit,
    Requests,
    State,
    Vector,
    Vectors,
    count_nonzero,
    dot,
    max_abs,
    multiply,
    sign,
    sum_of,
    where,
)

BACKTRACKING, FIRST_BACKTRACKING = 0.5, 0.1
"""What a refused step is multiplied by; without pairs the scale of a step is not known."""


class OWLQNSettings(QuasiNewtonSettings, frozen=True, kw_only=True):
    """Settings of OWL-QN; `l1`: factor of the sum of |parameters| in the loss."""

    l1: Annotated[float, msgspec.Meta(ge=0)] = 1e-4


@dataclass(frozen=True)
class OWLQNTrial(Trial):
    """What is known at a trial, with the L1 term; gradients are pseudo-gradients.

    Attributes:
        nonzero: parameters that are not 0.
        slope: p.(t - x), of the displacement that happened.
    """

    nonzero: float
    slope: float


@dataclass
class OWLQNIterate(Iterate):
    """What is known of the accepted point, likewise."""

    nonzero: float = math.nan


def owlqn(v: Vectors, settings: OWLQNSettings, state: State) -> Requests[str]:
    """Minimises the loss and the L1 term from x. Returns why it stopped.

    Raises:
        NotFiniteError: the loss or the gradient is not finite where it begins.
    """
    return _OWLQN(v, settings).run(settings, state)


class _OWLQN(QuasiNewton[OWLQNIterate, OWLQNTrial]):
    def __init__(self, v: Vectors, settings: OWLQNSettings) -> None:
        super().__init__(v, settings.history, OWLQNIterate())
        self.settings = settings
        self.p, self.q = v.scratch("p"), v.scratch("q")
        self.orthant, self.zero = v.scratch("orthant"), v.scratch("zero")
        self.a, self.b, self.c = map(v.scratch, "abc")

    def begin(self) -> Requests[None]:
        loss = yield from evaluate_start(self.v, self.h)
        x, p = self.v.x, self.p
        commands = self.pseudo_gradient(p, x, self.h)
        size, square, largest, nonzero = yield self.v.round(
            *commands, self.a.set(abs(x)), sum_of(self.a), dot(p, p), max_abs(p), count_nonzero(x)
        )
        self.at = OWLQNIterate(loss + self.settings.l1 * size, square, largest, nonzero=nonzero)
        yield self.commit(self.g.set(self.h))

    def search(self) -> Requests[OWLQNTrial | None]:
        """By backtracking."""
        step, shrink = 1.0, BACKTRACKING
        if not self.pairs:
            step, shrink = first_step(self.at.gradient_square), FIRST_BACKTRACKING
        commands = [*self.pseudo_gradient(self.p, self.v.x, self.g), *self.direction()]
        for _ in range(self.settings.evaluations_max):
            yield self.v.round(*commands, *self.trial(step))
            found = yield from self.measure()
            if found is not None and found.slope < 0:
                allowed = self.at.loss + SUFFICIENT_DECREASE * found.slope
                if found.loss <= allowed:
                    return found
            commands, step = [], step * shrink
        return None

    def pseudo_gradient(self, target: Vector, at: Vector, gradient: Vector) -> list[Command]:
        """target = the pseudo-gradient (equation 4). Where `at` is 0 the gradient is moved towards 0 by l1."""
        a, b, c, l1 = self.a, self.b, self.c, self.settings.l1
        return [
            self.zero.set(), b.set(sign(gradient)), c.set(gradient - l1 * b),
            b.set(abs(b)), a.set(abs(gradient)), a.set(a - l1 * b), c.set(where(a, c, self.zero)),
            b.set(sign(at)), b.set(gradient + l1 * b), a.set(abs(at)), target.set(where(a, b, c)),
        ]  # fmt: skip

    def direction(self) -> list[Command]:
        """d = -H p where that has the sign of -p, else 0; the orthant is that of x, or of -p where x is 0."""
        a, b, d, p = self.a, self.b, self.d, self.p
        return [
            d.set(self.pairs.direction(p)), a.set(sign(d)), b.set(sign(p)), b.set(-b), a.set(multiply(a, b)),
            d.set(where(a, d, self.zero)),
            a.set(sign(self.v.x)), self.orthant.set(abs(a)), self.orthant.set(where(self.orthant, a, b)),
        ]  # fmt: skip

    def trial(self, step: float) -> list[Command]:
        """t = x + step d, and 0 where that has left the orthant."""
        a, t = self.a, self.t
        inside = multiply(a, self.orthant)
        return [t.set(self.v.x + step * self.d), a.set(sign(t)), a.set(inside), t.set(where(a, t, self.zero))]

    def measure(self) -> Requests[OWLQNTrial | None]:
        """Evaluates at t into h and measures; None if anything is not finite."""
        loss = yield self.v.evaluate(at=self.t, into=self.h)
        if not math.isfinite(loss):
            return None
        q, t = self.q, self.t
        size, *numbers = yield self.v.round(
            *self.pseudo_gradient(q, t, self.h), self.a.set(abs(t)), sum_of(self.a),
            dot(q, q), max_abs(q), count_nonzero(t), dot(t - self.v.x, self.p), *self.pairs.reductions(q),
        )  # fmt: skip
        if not all(map(math.isfinite, (size, *numbers))):
            return None
        total = loss + self.settings.l1 * size
        return OWLQNTrial(total, self.pairs.measured(numbers[4:]), *numbers[:4])

    def accept(self, found: OWLQNTrial) -> Commit:
        self.at.nonzero = found.nonzero
        return super().accept(found)


ALGORITHM = BatchAlgorithm("OWL-QN: L-BFGS with an L1 term, which makes parameters 0", owlqn, OWLQNSettings)
