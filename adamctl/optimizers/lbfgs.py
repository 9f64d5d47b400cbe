"""L-BFGS as a program (DistBelief 4.2 and appendix; Nocedal 1980; Chen, Wang and Zhou 2014).

An iteration is three rounds: measure the new gradient against all that is kept, commit, step along the new direction.
A further trial of the line search is two more. Numbers alone come to whoever runs the program: 4m + 8 of them from a
measurement with m pairs.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from adamctl.errors import NotFiniteError
from adamctl.model.commands import Command
from adamctl.optimizers.line_search import EVALUATIONS_MAX, LineSearch
from adamctl.optimizers.recursion import History, has_curvature
from adamctl.optimizers.vectors import Combination, Commit, Request, State, Vectors, dot, max_abs

GRADIENT, CHANGE, PRECISION = "gradient", "change", "precision"
"""Reasons to stop: max|g| or the change of the loss is small, or float32 tells no better step."""

T = TypeVar("T")
Requests: TypeAlias = Generator[Request, Any, T]


class LBFGSSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of L-BFGS.

    Attributes:
        history: pairs that are kept; each is two vectors.
        gradient_tolerance: stop once max|g| is at most this.
        change_tolerance: stop once the loss changes by at most this part of max(|loss|, 1) in an iteration.
        evaluations_max: most evaluations of one line search.
    """

    history: Annotated[int, msgspec.Meta(ge=1, le=31)] = 10
    gradient_tolerance: Annotated[float, msgspec.Meta(ge=0)] = 1e-5
    change_tolerance: Annotated[float, msgspec.Meta(ge=0)] = 1e-7
    evaluations_max: Annotated[int, msgspec.Meta(ge=1)] = EVALUATIONS_MAX


@dataclass(frozen=True)
class Measured:
    """What the first round of an iteration found at a trial: h is its gradient, sigma = t - x, eta = h - g."""

    loss: float
    h_d: float
    h_h: float
    h_max: float
    sigma_h: float
    eta_h: float
    sigma_eta: float
    eta_eta: float
    sigma_sigma: float
    s_h: tuple[float, ...] = ()
    y_h: tuple[float, ...] = ()
    s_eta: tuple[float, ...] = ()
    y_eta: tuple[float, ...] = ()


@dataclass
class Iterate:
    """What is known of the accepted point: all of it is in the state of its commit.

    Attributes:
        change: of the loss in the latest iteration, as a part of max(|loss|, 1).
        step: length of the latest displacement.
        s_g, y_g: s_i.g and y_i.g, oldest pair first.
        restarts: how often the history was dropped because a search failed.
    """

    loss: float
    gradient_square: float
    gradient_max: float
    iteration: int = 0
    change: float = 1.0
    step: float = 0.0
    s_g: list[float] = field(default_factory=list)
    y_g: list[float] = field(default_factory=list)
    pairs_skipped: int = 0
    restarts: int = 0


def lbfgs(v: Vectors, settings: LBFGSSettings, state: State) -> Requests[str]:
    """Minimises the loss from x. Returns why it stopped.

    Raises:
        NotFiniteError: the loss or the gradient is not finite where it begins.
    """
    program = _LBFGS(v, settings)
    if state:
        program.resume(state)
    else:
        yield from program.begin()
    return (yield from program.iterate())


class _LBFGS:
    def __init__(self, v: Vectors, settings: LBFGSSettings) -> None:
        self.v, self.settings = v, settings
        self.g = v.kept("g")
        self.s = [v.kept(f"s{slot}") for slot in range(settings.history)]
        self.y = [v.kept(f"y{slot}") for slot in range(settings.history)]
        self.d, self.t, self.h = v.scratch("d"), v.scratch("t"), v.scratch("h")
        self.history = History(settings.history)
        self.at = Iterate(math.nan, math.nan, math.nan)

    def resume(self, state: State) -> None:
        fields = dict(state)
        self.history = History.of_state(self.settings.history, fields.pop("history"))
        self.at = Iterate(**fields)

    def begin(self) -> Requests[None]:
        loss = yield self.v.evaluate(at=self.v.x, into=self.h)
        if not math.isfinite(loss):
            raise NotFiniteError("the loss at the start is not finite; begin elsewhere, or with smaller parameters")
        square, largest = yield self.v.round(dot(self.h, self.h), max_abs(self.h))
        self.at = Iterate(loss, square, largest)
        yield self.commit(self.g.set(self.h))

    def iterate(self) -> Requests[str]:
        while True:
            if self.at.gradient_max <= self.settings.gradient_tolerance:
                return GRADIENT
            if self.at.change <= self.settings.change_tolerance:
                return CHANGE
            found = yield from self.search()
            if found is None and self.history.pairs:
                self.history.clear()
                self.at.restarts += 1
                found = yield from self.search()
            if found is None:
                return PRECISION
            yield self.accept(found)

    def search(self) -> Requests[Measured | None]:
        """Leaves in t and h a better point and its gradient, measured; None if there is none along the direction."""
        v, d, t = self.v, self.d, self.t
        first = 1.0 if self.history.pairs else min(1.0, 1.0 / math.sqrt(self.at.gradient_square))
        (slope,) = yield v.round(d.set(self.direction()), t.set(v.x + first * d), dot(self.g, d))
        if not -math.inf < slope < 0:
            return None
        search = LineSearch(self.at.loss, slope, first, evaluations_max=self.settings.evaluations_max)
        while True:
            found = yield from self.measure()
            tried = search.step
            if found is None:
                search.tried(math.inf, math.inf)
            else:
                search.tried(found.loss, found.h_d)
            if search.ended:
                break
            yield v.round(t.set(v.x + search.step * d))
        if not search.succeeded:
            if search.best is None:
                return None
            if search.best.step != tried:
                yield v.round(t.set(v.x + search.best.step * d))
                found = yield from self.measure()
        return found

    def direction(self) -> Combination:
        found = self.history.direction(self.at.s_g, self.at.y_g)
        total = found.gradient * self.g
        for slot, s, y in zip(self.history.slots, found.s, found.y, strict=True):
            total = total + s * self.s[slot] + y * self.y[slot]
        return total

    def measure(self) -> Requests[Measured | None]:
        """Evaluates at t into h and measures; None if anything is not finite."""
        loss = yield self.v.evaluate(at=self.t, into=self.h)
        if not math.isfinite(loss):
            return None
        h, sigma, eta = self.h, self.t - self.v.x, self.h - self.g
        s, y = [self.s[slot] for slot in self.history.slots], [self.y[slot] for slot in self.history.slots]
        numbers = yield self.v.round(
            dot(h, self.d), dot(h, h), max_abs(h), dot(sigma, h), dot(eta, h), dot(sigma, eta), dot(eta, eta),
            dot(sigma, sigma), *(dot(one, h) for one in s + y), *(dot(one, eta) for one in s + y),
        )  # fmt: skip
        if not all(map(math.isfinite, numbers)):
            return None
        rest, count = numbers[8:], len(s)
        of_pairs = [tuple(rest[start : start + count]) for start in range(0, 4 * count, count)] if count else []
        return Measured(loss, *numbers[:8], *of_pairs)

    def accept(self, found: Measured) -> Commit:
        """Moves to the point that was found; keeps the pair if it has curvature."""
        self.at.change = abs(self.at.loss - found.loss) / max(abs(self.at.loss), abs(found.loss), 1.0)
        self.at.loss, self.at.gradient_square, self.at.gradient_max = found.loss, found.h_h, found.h_max
        self.at.step = math.sqrt(found.sigma_sigma)
        self.at.iteration += 1
        self.at.s_g, self.at.y_g = list(found.s_h), list(found.y_h)
        commands: list[Command] = []
        if has_curvature(found.sigma_eta, found.sigma_sigma, found.eta_eta):
            slot = self.history.next_slot
            self.history.add(found.s_eta, found.y_eta, found.sigma_eta, found.eta_eta)
            length = self.settings.history
            self.at.s_g = [*self.at.s_g, found.sigma_h][-length:]
            self.at.y_g = [*self.at.y_g, found.eta_h][-length:]
            commands += [self.s[slot].set(self.t - self.v.x), self.y[slot].set(self.h - self.g)]
        else:
            self.at.pairs_skipped += 1
        return self.commit(*commands, self.v.x.set(self.t), self.g.set(self.h))

    def commit(self, *commands: Command) -> Commit:
        return self.v.commit(*commands, state={**vars(self.at), "history": self.history.state()})
