"""The two-loop recursion of L-BFGS on coefficients, from dot products alone (Chen, Wang and Zhou 2014, "vector-free").

A pair is s, a displacement of the parameters, and y, the change of the gradient over it. The recursion (Nocedal 1980)
only ever adds multiples of pairs and of the gradient, so it can work on the factors of these instead. Sums are over few
numbers, in float64 and a fixed order, so that the result has the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

CURVATURE_MIN = 1e-8
"""Least s.y of a pair, as a part of |s||y|. One of negative curvature would make directions go up."""


@dataclass(frozen=True)
class Pair:
    """Dot products of a pair's y with what is as old or older.

    Attributes:
        slot: the number of the vectors that hold it.
        s_y: s_i.y for each older pair i, oldest first, and for this one.
        y_y: y_i.y, likewise.
    """

    slot: int
    s_y: tuple[float, ...]
    y_y: tuple[float, ...]


@dataclass(frozen=True)
class Direction:
    """The factors of -H g: of the gradient, and of each pair's s and y, oldest first."""

    gradient: float
    s: tuple[float, ...]
    y: tuple[float, ...]


class History:
    """The pairs that are kept, at most `length` of them, oldest first."""

    def __init__(self, length: int, pairs: Sequence[Pair] = ()) -> None:
        self.length = length
        self.pairs = list(pairs)

    @classmethod
    def of_state(cls, length: int, state: Sequence[Any]) -> History:
        """Returns the history of the same length that `state` wrote."""
        return cls(length, [Pair(slot, tuple(s_y), tuple(y_y)) for slot, s_y, y_y in state])

    def state(self) -> list[list[Any]]:
        """Returns the history as JSON holds it."""
        return [[pair.slot, list(pair.s_y), list(pair.y_y)] for pair in self.pairs]

    @property
    def slots(self) -> list[int]:
        return [pair.slot for pair in self.pairs]

    @property
    def next_slot(self) -> int:
        """Where the next pair goes: a free slot, or that of the oldest pair."""
        if len(self.pairs) == self.length:
            return self.pairs[0].slot
        return min(set(range(self.length)) - set(self.slots))

    def clear(self) -> None:
        self.pairs = []

    def add(self, s_eta: Sequence[float], y_eta: Sequence[float], sigma_eta: float, eta_eta: float) -> None:
        """Adds the pair (sigma, eta) in `next_slot`; the oldest makes room for it.

        Args:
            s_eta, y_eta: s_i.eta and y_i.eta of the pairs before it, oldest first.
        """
        slot = self.next_slot
        new = Pair(slot, (*s_eta, sigma_eta), (*y_eta, eta_eta))
        assert len(new.s_y) == len(new.y_y) == len(self.pairs) + 1
        self.pairs.append(new)
        if len(self.pairs) > self.length:
            self.pairs = [Pair(pair.slot, pair.s_y[1:], pair.y_y[1:]) for pair in self.pairs[1:]]

    def direction(self, s_g: Sequence[float], y_g: Sequence[float]) -> Direction:
        """Returns the direction for a gradient g; -g without pairs.

        Args:
            s_g, y_g: s_i.g and y_i.g, oldest first.
        """
        pairs, count = self.pairs, len(self.pairs)
        if not pairs:
            return Direction(-1.0, (), ())
        alphas = [0.0] * count
        for i in reversed(range(count)):
            newer = range(i + 1, count)
            alphas[i] = fsum([s_g[i], *(-alphas[j] * pairs[j].s_y[i] for j in newer)]) / pairs[i].s_y[i]
        scale = pairs[-1].s_y[-1] / pairs[-1].y_y[-1]
        factors: list[float] = []
        for i in range(count):
            y_q = fsum([y_g[i], *(-alphas[j] * pairs[max(i, j)].y_y[min(i, j)] for j in range(count))])
            y_r = fsum([scale * y_q, *(factors[k] * pairs[i].s_y[k] for k in range(i))])
            factors.append(alphas[i] - y_r / pairs[i].s_y[i])
        return Direction(-scale, tuple(-factor for factor in factors), tuple(scale * alpha for alpha in alphas))


def has_curvature(sigma_eta: float, sigma_sigma: float, eta_eta: float) -> bool:
    """Whether a pair may be kept: sigma.eta is clearly above 0."""
    return sigma_eta > CURVATURE_MIN * sqrt(sigma_sigma) * sqrt(eta_eta)
