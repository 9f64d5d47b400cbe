"""What rounds and seeds come to, and whether a bar is met (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import inf, sqrt
from typing import NamedTuple

from adamctl.bench.figures.figure import Judged, Outcome, Point

SETTLED = 2.0
"""Standard errors that a mean must be away from a limit to be on one side of it, where nothing else is said."""
DIGITS = 4
"""Of what was found: one more than limits have, so that a bar that is missed by little is not shown at its limit."""


class Mean(NamedTuple):
    """A mean over seeds.

    Attributes:
        error: its standard error; infinite of one value.
    """

    value: float
    error: float
    low: float
    high: float
    seeds: int

    def point(self, x: float) -> Point:
        """Returns it with whiskers of one standard error; of a single value without."""
        if self.seeds < 2:
            return Point(x, self.value)
        return Point(x, self.value, self.value - self.error, self.value + self.error)


def mean_of(values: Sequence[float]) -> Mean:
    """Returns the mean of at least one value."""
    error = statistics.stdev(values) / sqrt(len(values)) if len(values) > 1 else inf
    return Mean(statistics.fmean(values), error, min(values), max(values), len(values))


def paired(ones: Sequence[float], others: Sequence[float]) -> Mean:
    """Returns the mean of the differences of two methods, seed by seed."""
    return mean_of(differences(ones, others))


def differences(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """Returns how much the first are above the second, seed by seed."""
    return [one - other for one, other in zip(ones, others, strict=True)]


def median_point(x: float, rounds: Sequence[float]) -> Point:
    """Returns the median of rounds, with the smallest and the largest."""
    return Point(x, statistics.median(rounds), min(rounds), max(rounds))


def at_least(what: str, value: float, limit: float, unit: str = "") -> Judged:
    """Judges a number that has to be at least `limit`."""
    return _judged(what, f"at least {limit:g}{unit}", value, value >= limit, unit)


def at_most(what: str, value: float, limit: float, unit: str = "") -> Judged:
    """Judges a number that has to be at most `limit`."""
    return _judged(what, f"at most {limit:g}{unit}", value, value <= limit, unit)


def between(what: str, value: float, least: float, most: float, unit: str = "") -> Judged:
    """Judges a number that has to be in a range, ends included."""
    return _judged(what, f"{least:g} to {most:g}{unit}", value, least <= value <= most, unit)


def above(what: str, mean: Mean, limit: float, errors: float = SETTLED) -> Judged:
    """Judges a mean that has to be above `limit`; not settled: it is within so many standard errors of it."""
    away = mean.value - limit
    outcome: Outcome = "met" if away > 0 else "missed"
    if abs(away) <= errors * mean.error:
        outcome = "not settled"
    found = f"{mean.value:.{DIGITS}g}" + (f" ± {mean.error:.2g}" if mean.seeds > 1 else ", one value")
    return Judged(f"{what}: above {limit:g}", found, outcome)


def near(what: str, ratios: Sequence[float], within: float, share: float = 1.0) -> Judged:
    """Judges ratios of measured to planned, of which a share must be within a distance of 1."""
    hit = sum(abs(ratio - 1) <= within for ratio in ratios)
    bar = f"{what}: within {within:.0%}" + ("" if share == 1 else f" of {share:.0%} of the points")
    furthest = max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)
    found = f"{hit} of {len(ratios)}, the furthest at {furthest:.{DIGITS}g}"
    return judged(bar, found, bool(ratios) and hit >= share * len(ratios))


def judged(what: str, found: str, is_met: bool) -> Judged:
    """Judges what is no single number: met or missed."""
    return Judged(what, found, "met" if is_met else "missed")


def _judged(what: str, bar: str, value: float, is_met: bool, unit: str) -> Judged:
    return judged(f"{what}: {bar}", f"{value:.{DIGITS}g}{unit}", is_met)
