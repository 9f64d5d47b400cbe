"""Commands on vectors: what is refused before anything is changed, and that they survive a message."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.commands import (
    ACCUMULATOR,
    COMMANDS_MAX,
    OPERANDS_MAX,
    Apply,
    Command,
    Reduce,
    Set,
    check_commands,
    inputs_of,
)

READABLE, WRITABLE = {"x", "g", "t"}, {"t"}
GOOD: list[Command] = [
    Set("t"),
    Set("t", ((1.0, "x"), (-0.5, "g"), (2.0, ACCUMULATOR))),
    Apply("t", "where", (("x",), ("g", "x"), ("t",))),
    Apply("t", "sqrt", (("x",),)),
    Reduce("dot", (("x", "t"), ("g",))),
    Reduce("max_abs", (("g",),)),
]


def test_good_commands_pass_and_survive_a_message() -> None:
    check_commands(GOOD, READABLE, WRITABLE)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(GOOD), type=list[Command]) == GOOD


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Set("x"), "command 0 writes 'x'; expected one of t"),
        (Set("t", ((1.0, "y"),)), "command 0 reads 'y'"),
        (Set("t", ((float("inf"), "x"),)), "finite"),
        (Set("t", ((float("nan"), "x"),)), "finite"),
        (Set("t", ((1.0, "x"),) * (OPERANDS_MAX + 1)), f"at most {OPERANDS_MAX}"),
        (Set(ACCUMULATOR), "writes"),
        (Apply("t", "multiply", (("x",),)), "expected 2 operands of multiply; found 1"),
        (Apply("t", "abs", ((),)), "found 0 names"),
        (Apply("t", "abs", (("x", "g", "t"),)), "found 3 names"),
        (Apply("g", "abs", (("x",),)), "writes 'g'"),
        (Reduce("dot", (("x",), (ACCUMULATOR,))), "reads 'accumulator'"),
        (Reduce("sum", (("x",), ("g",))), "expected 1 operands"),
    ],
)
def test_others_are_refused_with_the_reason(bad: Command, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_commands([bad], READABLE, WRITABLE)


def test_a_round_has_an_end() -> None:
    check_commands([Set("t")] * COMMANDS_MAX, READABLE, WRITABLE)
    with pytest.raises(ConfigurationError, match=f"at most {COMMANDS_MAX}"):
        check_commands([Set("t")] * (COMMANDS_MAX + 1), READABLE, WRITABLE)


def test_operations_that_nobody_knows_are_no_message() -> None:
    wrong = msgspec.msgpack.encode([["apply", "t", "exec", [["x"]]]])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(wrong, type=list[Command])


def test_inputs_are_what_is_read_before_it_is_written() -> None:
    commands = [
        Set("t", ((1.0, "x"), (1.0, ACCUMULATOR))),
        Apply("d", "where", (("t",), ("g", "h"), ("d",))),
        Reduce("dot", (("d",), ("s", "t"))),
    ]
    assert inputs_of(commands) == {"x", ACCUMULATOR, "g", "h", "d", "s"}
    assert inputs_of([]) == frozenset()
