"""Programs on numpy: what commands mean, and that a program made again from a commit goes on as if it never stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from adamctl.errors import ProgramError
from adamctl.kernels.array import Array
from adamctl.optimizers.execution import Progress
from adamctl.optimizers.local import LocalVectors, Snapshot
from adamctl.optimizers.vectors import (
    State,
    Vectors,
    count_nonzero,
    divide,
    dot,
    max_abs,
    maximum,
    minimum,
    multiply,
    sign,
    sqrt,
    sum_of,
    where,
)

SCALES = np.array([1.0, 4.0, 0.5], np.float32)


def bowl(x: Array) -> tuple[float, Array]:
    return 0.5 * float(np.sum(SCALES.astype(float) * x * x)), SCALES * x


def descend(v: Vectors, settings: float, state: State) -> Iterator[Any]:
    """Gradient descent with momentum; the velocity is kept."""
    u, g, t = v.kept("u"), v.scratch("g"), v.scratch("t")
    done = state.get("done", 0)
    while done < 30:
        f = yield v.evaluate(at=v.x, into=g)
        yield v.round(t.set(0.5 * u - settings * g))
        done += 1
        yield v.commit(u.set(t), v.x.set(v.x + t), state={"done": done, "loss": f})
    return "done"


def test_a_program_finds_the_minimum_and_is_counted() -> None:
    seen: list[float] = []
    outcome = LocalVectors(bowl, np.array([1, 1, 1])).run(descend, 0.3, on_evaluation=seen.append)
    assert (outcome.stop_reason, outcome.evaluations, outcome.rounds, outcome.further_trials) == ("done", 30, 60, 0)
    assert np.abs(outcome.x).max() < 1e-2
    assert seen[0] == 2.75
    assert outcome.state == {"done": 30, "loss": seen[-1]}


def test_weight_decay_moves_the_minimum_as_an_l2_term_does() -> None:
    def line(x: Array) -> tuple[float, Array]:
        return float(x[0]), np.ones(1, np.float32)

    outcome = LocalVectors(line, np.zeros(1), weight_decay=2.0).run(descend, 0.3)
    assert outcome.x == pytest.approx([-0.5], rel=1e-4)  # of p + p^2
    assert outcome.state["loss"] == pytest.approx(-0.25, rel=1e-4)


def test_made_again_from_any_commit_it_ends_in_the_same_bits() -> None:
    snapshots: list[Snapshot] = []
    whole = LocalVectors(bowl, np.array([1, 1, 1])).run(descend, 0.3, on_commit=snapshots.append)
    assert len(snapshots) == 30
    for snapshot in snapshots:
        again = LocalVectors(bowl, snapshot).run(descend, 0.3)
        assert (again.x.tobytes(), again.state, again.evaluations) == (whole.x.tobytes(), whole.state, 30)


def test_the_given_array_and_the_vectors_stay_apart() -> None:
    start = np.ones(3, np.float32)

    def spoiling(x: Array) -> tuple[float, Array]:
        loss, gradient = bowl(x)
        x[:] = math.nan
        return loss, gradient

    spoilt = LocalVectors(spoiling, start).run(descend, 0.3)
    assert spoilt.x.tobytes() == LocalVectors(bowl, np.ones(3)).run(descend, 0.3).x.tobytes()
    assert (start == 1).all()


def test_a_gradient_that_is_not_finite_makes_the_loss_infinite() -> None:
    found = []

    def run(v: Vectors, _: Any, __: State) -> Iterator[Any]:
        found.append((yield v.evaluate(at=v.x, into=v.scratch("g"))))
        return "done"

    LocalVectors(lambda x: (1.0, x * math.nan), np.zeros(3)).run(run, None)
    LocalVectors(lambda x: (1.0, np.full(3, 1e300)), np.zeros(3)).run(run, None)
    assert found == [math.inf, math.inf]


def test_a_kept_vector_begins_with_zeros_and_a_scratch_vector_with_nothing() -> None:
    found = []

    def run(v: Vectors, _: Any, __: State) -> Iterator[Any]:
        g, t = v.kept("g"), v.scratch("t")
        found.extend((yield v.round(sum_of(g))))
        yield v.round(sum_of(t))

    with pytest.raises(ProgramError, match="reads 't', not written since the last commit"):
        LocalVectors(bowl, np.ones(3)).run(run, None)
    assert found == [0]


def test_what_every_command_computes() -> None:
    a, b = np.array([4, -9, 0], np.float32), np.array([0.1, 3, -2], np.float32)
    found: dict[str, Any] = {}

    def run(v: Vectors, _: Any, __: State) -> Iterator[Any]:
        values = {
            "multiply": multiply(v.x, w), "divide": divide(v.x, w), "sqrt": sqrt(abs_x), "sign": sign(v.x),
            "maximum": maximum(v.x, w), "minimum": minimum(v.x, w), "where": where(v.x, v.x - w, w),
            "sum": v.x + 0.1 * w - 3 * v.x, "zero": None,
        }  # fmt: skip
        for name, value in values.items():
            sums = yield v.round(
                abs_x.set(abs(v.x)), t.set(value), dot(v.x - w, t), sum_of(t), max_abs(t), count_nonzero(t)
            )
            yield v.commit(r.set(t), state={})
            found[name] = sums
        return "done"

    # Declared here so that the formulas above read as such.
    shared = Vectors()
    w, abs_x, t, r = shared.kept("w"), shared.scratch("abs_x"), shared.scratch("t"), shared.kept("r")

    def declared(v: Vectors, settings: Any, state: State) -> Iterator[Any]:
        v.kept("w"), v.kept("r"), v.scratch("abs_x"), v.scratch("t")
        return run(v, settings, state)

    results: list[Array] = []
    start = Snapshot({"x": a, "w": b}, Progress({}))
    LocalVectors(bowl, start).run(declared, None, on_commit=lambda snapshot: results.append(snapshot.kept["r"]))
    expected = {
        "multiply": a * b, "divide": a / b, "sqrt": np.sqrt(np.abs(a)), "sign": np.sign(a), "maximum": np.maximum(a, b),
        "minimum": np.minimum(a, b), "where": np.where(a > 0, a - b, b),
        "sum": (a.astype(float) + 0.1 * b.astype(float) - 3.0 * a.astype(float)).astype(np.float32), "zero": 0 * b,
    }  # fmt: skip
    assert list(found) == list(expected)
    for name, result in zip(expected, results, strict=True):
        value = expected[name]
        np.testing.assert_array_equal(result, value, err_msg=name)
        double = value.astype(float)
        assert found[name] == pytest.approx(
            [float((a - b).astype(float) @ double), double.sum(), np.abs(double).max(), (double != 0).sum()], rel=1e-12
        ), name
