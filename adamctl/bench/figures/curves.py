"""Accuracy over time: the curve of a run, the mean of several, and when they get where (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from adamctl.bench.figures.figure import Point

GRID = 120
"""Points of a mean curve."""


class Moment(NamedTuple):
    """An accuracy, 0 to 1, after so many seconds of training."""

    seconds: float
    top1: float


@dataclass(frozen=True)
class Curve:
    """A run.

    Attributes:
        tested: evaluations; `trained`: of the training batches of the last moments.
        limit_s: how long it could train, at most.
        ended: `time`, `diverged`, or why the run says that it ended.
    """

    tested: tuple[Moment, ...]
    trained: tuple[Moment, ...]
    limit_s: float
    ended: str = "time"

    def seconds_to(self, target: float) -> float | None:
        """Returns when the accuracy was reached first, between two evaluations by their straight line; None: never."""
        if self.tested and self.tested[0].top1 >= target:
            return self.tested[0].seconds
        for before, after in pairwise(self.tested):
            if after.top1 >= target:
                share = (target - before.top1) / (after.top1 - before.top1)
                return before.seconds + share * (after.seconds - before.seconds)
        return None

    def seconds_or_limit(self, target: float) -> float:
        """Likewise; its whole time if it was never reached."""
        reached = self.seconds_to(target)
        return self.limit_s if reached is None else reached


def curve_of(found: Mapping[str, Any], before_s: float, limit_s: float, ended: str) -> Curve:
    """Returns the curve of a run.

    Args:
        found: its `evaluations` and `progress`, lines of metrics.jsonl.
        before_s: of training, before it began: with a warm start.
        limit_s: with what was before.
    """
    tested = [Moment(before_s + one["train_seconds"], one["top1"] or 0.0) for one in found["evaluations"]]
    trained = [
        Moment(before_s + one["train_seconds"], one["train_top1"])
        for one in found["progress"]
        if one.get("train_top1") is not None
    ]
    return Curve(_growing(tested), _growing(trained), limit_s, ended)


def _growing(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Returns the last of moments at the same time."""
    return tuple({moment.seconds: moment for moment in moments}.values())


def to_json(curve: Curve) -> dict[str, Any]:
    """Returns what a round keeps of it."""
    rounded = {
        side: [[round(seconds, 3), round(top1, 5)] for seconds, top1 in moments]
        for side, moments in (("tested", curve.tested), ("trained", curve.trained))
    }
    return {**rounded, "limit_s": round(curve.limit_s, 3), "ended": curve.ended}


def from_json(value: Mapping[str, Any]) -> Curve:
    """Returns it again."""
    tested, trained = (tuple(Moment(*moment) for moment in value[side]) for side in ("tested", "trained"))
    return Curve(tested, trained, value["limit_s"], value["ended"])


def band(curves: Sequence[Sequence[Moment]]) -> tuple[Point, ...]:
    """Returns the mean of curves where all of them are, with the lowest and the highest."""
    there = [curve for curve in curves if curve]
    if not there:
        return ()
    first, last = max(curve[0].seconds for curve in there), min(curve[-1].seconds for curve in there)
    if last < first:
        return ()
    count = GRID if last > first else 1
    points = []
    for number in range(count):
        at_s = first + (last - first) * number / max(count - 1, 1)
        values = [_at(curve, at_s) for curve in there]
        points.append(Point(at_s, statistics.fmean(values), min(values), max(values)))
    return tuple(points)


def _at(curve: Sequence[Moment], at_s: float) -> float:
    """Returns the accuracy at a time, between two moments by their straight line."""
    for before, after in pairwise(curve):
        if at_s <= after.seconds:
            share = (at_s - before.seconds) / (after.seconds - before.seconds)
            return before.top1 + min(max(share, 0.0), 1.0) * (after.top1 - before.top1)
    return curve[-1].top1
