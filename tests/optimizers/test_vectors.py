"""What programs are written with: expressions that read as formulas become commands; what is none is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from adamctl.errors import ProgramError
from adamctl.model.commands import Apply, Command, Reduce, Set
from adamctl.optimizers.vectors import (
    Commit,
    Evaluate,
    Round,
    Vector,
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

X, G, T = Vector("x"), Vector("g"), Vector("t")


@pytest.mark.parametrize(
    ("written", "command"),
    [
        (T.set(), Set("t")),
        (T.set(X), Set("t", ((1.0, "x"),))),
        (T.set(-1.0 * G), Set("t", ((-1.0, "g"),))),
        (T.set(X - 0.5 * G), Set("t", ((1.0, "x"), (-0.5, "g")))),
        (T.set(-(2 * X + G) * 0.25 + T), Set("t", ((-0.5, "x"), (-0.25, "g"), (1.0, "t")))),
        (T.set(abs(X)), Apply("t", "abs", (("x",),))),
        (T.set(multiply(X, G)), Apply("t", "multiply", (("x",), ("g",)))),
        (T.set(divide(X - G, T)), Apply("t", "divide", (("x", "g"), ("t",)))),
        (T.set(sqrt(X)), Apply("t", "sqrt", (("x",),))),
        (T.set(sign(X)), Apply("t", "sign", (("x",),))),
        (T.set(maximum(X, G)), Apply("t", "maximum", (("x",), ("g",)))),
        (T.set(minimum(X, G)), Apply("t", "minimum", (("x",), ("g",)))),
        (T.set(where(X, G, T)), Apply("t", "where", (("x",), ("g",), ("t",)))),
        (dot(T - X, G), Reduce("dot", (("t", "x"), ("g",)))),
        (sum_of(X), Reduce("sum", (("x",),))),
        (max_abs(X), Reduce("max_abs", (("x",),))),
        (count_nonzero(X), Reduce("count_nonzero", (("x",),))),
    ],
)
def test_a_formula_becomes_a_command(written: Command, command: Command) -> None:
    assert written == command


def test_requests_name_vectors() -> None:
    v = Vectors()
    g = v.kept("g")
    assert v.evaluate(at=v.x, into=g) == Evaluate("x", "g")
    assert v.round(g.set(), dot(g, g)) == Round((Set("g"), Reduce("dot", (("g",), ("g",)))))
    assert v.commit(v.x.set(g), state={"f": 1.0}) == Commit((Set("x", ((1.0, "g"),)),), {"f": 1.0})


@pytest.mark.parametrize("bad", [lambda: dot(2.0 * X, G), lambda: sqrt(X - G - T), lambda: abs(X + G)])
def test_an_operand_is_a_vector_or_a_difference(bad: Callable[[], object]) -> None:
    with pytest.raises(ProgramError, match="difference of two"):
        bad()


@pytest.mark.parametrize("name", ["x", "accumulator", "G", "", "1a", "a" * 33, "s"])
def test_names_that_cannot_be_used_are_refused(name: str) -> None:
    v = Vectors()
    v.kept("s")
    with pytest.raises(ProgramError):
        v.scratch(name)


def test_vectors_are_declared_before_the_first_request() -> None:
    v = Vectors()
    v.kept("g")
    v.scratch("t")
    v.close()
    assert (v.kept_names, v.scratch_names) == (("x", "g"), ("t",))
    with pytest.raises(ProgramError, match="before the first request"):
        v.kept("h")
