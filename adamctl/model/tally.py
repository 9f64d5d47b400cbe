"""What is added up over the examples of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from adamctl.errors import CustomError


class Tally(NamedTuple):
    """Sums over examples: of their losses, of those with the largest output at their label, and those of a metric."""

    examples: int
    loss_sum: float
    correct: int = 0
    sums: tuple[float, ...] = ()

    def plus(self, other: Tally) -> Tally:
        """Returns the sums over both."""
        sums = added(self.sums, other.sums)
        return Tally(self.examples + other.examples, self.loss_sum + other.loss_sum, self.correct + other.correct, sums)


def added(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    """Returns sums over both; an empty one is of no examples, or of a metric that has none.

    Raises:
        CustomError: they have another number of parts.
    """
    if not one or not other:
        return tuple(one or other)
    if len(one) != len(other):
        raise CustomError(f"the metric's sums: expected as many from everybody; found {len(one)} and {len(other)}")
    return tuple(a + b for a, b in zip(one, other, strict=True))
