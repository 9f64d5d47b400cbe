"""Batch algorithms of other packages, for simulated runs: they do what the built-in ones happen not to do."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec

from adamctl.optimizers.registry import BatchAlgorithm
from adamctl.optimizers.vectors import Requests, State, Vectors, dot

STEP, SHARE = 0.05, 0.5


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """They have none."""


def descent(v: Vectors, settings: Any, state: State) -> Requests[str]:
    """Writes over the point that it has evaluated: its numbers are nowhere where a commit is done."""
    h = v.scratch("h")
    while True:
        loss = yield v.evaluate(at=v.x, into=h)
        if loss == inf:
            return "not finite"
        (square,) = yield v.round(dot(h, h))
        yield v.commit(v.x.set(v.x - STEP * h), state={"loss": loss, "square": square})


def averaged(v: Vectors, settings: Any, state: State) -> Requests[str]:
    """Writes a vector twice between two commits, the second time in place."""
    g, h, t = v.kept("g"), v.scratch("h"), v.scratch("t")
    if not state:
        loss = yield v.evaluate(at=v.x, into=h)
        if loss == inf:
            return "not finite"
        yield v.commit(g.set(h), state={"loss": loss})
    while True:
        yield v.round(t.set(v.x - STEP * g))
        loss = yield v.evaluate(at=t, into=h)
        if loss == inf:
            return "not finite"
        (square,) = yield v.round(dot(h, h))
        (mean,) = yield v.round(h.set(h + SHARE * g), dot(h, h))
        yield v.commit(g.set(h), v.x.set(t), state={"loss": loss, "square": square, "mean": mean})


ALGORITHMS = {
    "descent": BatchAlgorithm("Writes over what it has evaluated", descent, Settings),
    "averaged": BatchAlgorithm("Writes a vector twice", averaged, Settings),
}
