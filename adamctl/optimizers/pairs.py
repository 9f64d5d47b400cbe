"""The pairs of L-BFGS as kept vectors: what is asked about them, and what is committed of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adamctl.model.commands import Command, Reduce
from adamctl.optimizers.recursion import History, has_curvature
from adamctl.optimizers.vectors import Combination, Vector, Vectors, dot


@dataclass(frozen=True)
class Measured:
    """Dot products at a trial: h is its gradient, sigma its displacement, eta the change of the gradient.

    Attributes:
        s_h, y_h, s_eta, y_eta: of each pair, oldest first.
    """

    sigma_h: float
    eta_h: float
    sigma_eta: float
    eta_eta: float
    sigma_sigma: float
    s_h: tuple[float, ...]
    y_h: tuple[float, ...]
    s_eta: tuple[float, ...]
    y_eta: tuple[float, ...]

    @property
    def step(self) -> float:
        """Length of the displacement."""
        return math.sqrt(self.sigma_sigma)


class Pairs:
    """The pairs of one program.

    Attributes:
        skipped: how many were not kept, because the loss does not curve up along them.
    """

    def __init__(self, v: Vectors, length: int, sigma: Combination, eta: Combination) -> None:
        """Declares the vectors s0, y0 and so on.

        Args:
            sigma, eta: what a commit keeps: differences of two vectors.
        """
        self._sigma, self._eta = sigma, eta
        self._s = [v.kept(f"s{slot}") for slot in range(length)]
        self._y = [v.kept(f"y{slot}") for slot in range(length)]
        self._history = History(length)
        self._s_g: tuple[float, ...] = ()
        self._y_g: tuple[float, ...] = ()
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._history.pairs)

    def state(self) -> dict[str, Any]:
        return {
            "history": self._history.state(), "s_g": list(self._s_g), "y_g": list(self._y_g),
            "pairs_skipped": self.skipped,
        }  # fmt: skip

    def resume(self, fields: dict[str, Any]) -> None:
        """Takes what `state` wrote out of a state."""
        self._history = History.of_state(self._history.length, fields.pop("history"))
        self._s_g, self._y_g = tuple(fields.pop("s_g")), tuple(fields.pop("y_g"))
        self.skipped = fields.pop("pairs_skipped")

    def drop(self) -> None:
        self._history.clear()
        self._s_g = self._y_g = ()

    def direction(self, gradient: Vector) -> Combination:
        """Returns -H g for the gradient of the accepted point."""
        found = self._history.direction(self._s_g, self._y_g)
        total = found.gradient * gradient
        for slot, s, y in zip(self._history.slots, found.s, found.y, strict=True):
            total = total + s * self._s[slot] + y * self._y[slot]
        return total

    def reductions(self, h: Vector) -> list[Reduce]:
        """Returns what is to be known of a trial with the gradient h: 4m + 5 numbers with m pairs."""
        sigma, eta, slots = self._sigma, self._eta, self._history.slots
        vectors = [*(self._s[slot] for slot in slots), *(self._y[slot] for slot in slots)]
        own = [dot(sigma, h), dot(eta, h), dot(sigma, eta), dot(eta, eta), dot(sigma, sigma)]
        return [*own, *(dot(one, h) for one in vectors), *(dot(one, eta) for one in vectors)]

    def measured(self, numbers: Sequence[float]) -> Measured:
        """Returns the answers to `reductions` under their names."""
        sigma_h, eta_h, sigma_eta, eta_eta, sigma_sigma, *rest = numbers
        s_h, y_h, s_eta, y_eta = (tuple(rest[part * len(self) : (part + 1) * len(self)]) for part in range(4))
        return Measured(sigma_h, eta_h, sigma_eta, eta_eta, sigma_sigma, s_h, y_h, s_eta, y_eta)

    def accept(self, found: Measured) -> list[Command]:
        """Moves to the trial; returns the commands that keep its pair, if the loss curves up along it."""
        self._s_g, self._y_g = found.s_h, found.y_h
        if not has_curvature(found.sigma_eta, found.sigma_sigma, found.eta_eta):
            self.skipped += 1
            return []
        slot, length = self._history.next_slot, self._history.length
        self._history.add(found.s_eta, found.y_eta, found.sigma_eta, found.eta_eta)
        self._s_g = (*found.s_h, found.sigma_h)[-length:]
        self._y_g = (*found.y_h, found.eta_h)[-length:]
        return [self._s[slot].set(self._sigma), self._y[slot].set(self._eta)]
