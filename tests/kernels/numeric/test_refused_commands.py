"""Rounds and vectors that are refused, after which nothing is changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.kernels.numeric.accumulate import Accumulator
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.model.commands import ACCUMULATOR, Apply, Command, Parts, Reduce, Set
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.numeric.rounds import (
    FRACTION_BITS,
    VECTORS,
    accumulated,
    applied,
    bits,
    carry_out,
    command,
    numbers,
    reduced,
)


def refused(vectors: dict[str, np.ndarray], row_size: int = 5, accumulator: Accumulator | None = None) -> str:
    """Carries out a round that must be refused; nothing is changed."""
    commands = [Set("a", ((1.0, "b"), (1.0, ACCUMULATOR))), Reduce("dot", (("a",), ("c",)))]
    before = {name: vector.copy() for name, vector in vectors.items()}
    prepared = PreparedRound(commands)
    totals = prepared.new_totals()
    with pytest.raises(ValueError, match="commands: ") as raised:
        prepared.run(vectors, row_size, totals, accumulator)
    for name, vector in vectors.items():
        np.testing.assert_array_equal(vector, before[name])
    assert totals.parts() == [Parts((0.0,))]
    return str(raised.value)


def test_vectors_that_do_not_fit_are_refused_and_nothing_is_changed() -> None:
    good, accumulator = numbers(20), accumulated(20)
    both = np.arange(30, dtype=np.float32)
    read_only = good["a"].copy()
    read_only.flags.writeable = False
    assert "expected the vector 'c'; found a, b" in refused({name: good[name] for name in "ab"}, 5, accumulator)
    assert "one length" in refused(good | {"b": np.ones(25, np.float32)}, 5, accumulator)
    assert "float64" in refused(good | {"b": np.ones(20)}, 5, accumulator)
    assert "strides (8,)" in refused(good | {"b": np.ones(40, np.float32)[::2]}, 5, accumulator)
    assert "read-only" in refused(good | {"a": read_only}, 5, accumulator)
    assert "share memory" in refused(good | {"a": both[:20], "c": both[10:]}, 5, accumulator)
    assert "share memory" in refused(good | {"a": both[:20], "c": both[:20]}, 5, accumulator)
    assert "whole rows of 6" in refused(good, 6, accumulator)
    assert "whole rows of 0" in refused(good, 0, accumulator)
    assert "expected an accumulator" in refused(good)
    assert "int64" in refused(good, 5, Accumulator(np.zeros(20), FRACTION_BITS))
    assert "one length" in refused(good, 5, accumulated(19))


@pytest.mark.parametrize(
    "command",
    [
        Set(ACCUMULATOR, ((1.0, "a"),)),
        Set("a", ((math.nan, "b"),)),
        Apply("a", "sqrt", ((ACCUMULATOR,),)),
        Reduce("dot", (("a",),)),
        Reduce("sum", (("a", "b", "c"),)),
    ],
)
def test_malformed_commands_are_refused_before_there_are_vectors(command: Command) -> None:
    with pytest.raises(ConfigurationError, match="command 1"):
        PreparedRound([Set("a"), command])


def test_vectors_that_are_only_read_may_be_the_same_and_read_only() -> None:
    vectors = numbers(20)
    vectors["b"] = vectors["a"]
    vectors["a"].flags.writeable = False
    [part] = carry_out([Reduce("dot", (("a",), ("b",)))], vectors, 1, BACKENDS[-1])
    assert part.numbers[0] == math.fsum(vectors["a"].astype(np.float64) ** 2)


wrong_name = st.sampled_from((*VECTORS, "z", "", ACCUMULATOR))
wrong_operands = st.lists(st.lists(wrong_name, max_size=3).map(tuple), max_size=4).map(tuple)
anything = st.one_of(
    command,
    st.builds(Set, wrong_name, st.lists(st.tuples(st.floats(), wrong_name), max_size=70).map(tuple)),
    st.builds(Apply, wrong_name, applied, wrong_operands),
    st.builds(Reduce, reduced, wrong_operands),
)


@given(st.lists(anything, max_size=6), st.sampled_from([0, 1, 3, 4]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_whatever_is_refused_changes_nothing(commands: list[Command], row_size: int, accumulating: bool) -> None:
    vectors = numbers(12)
    before = bits(vectors)
    try:
        prepared = PreparedRound(commands)
    except ConfigurationError:
        return
    totals = prepared.new_totals()
    nothing = totals.parts()
    try:
        prepared.run(vectors, row_size, totals, accumulated(12) if accumulating else None)
    except ValueError:
        assert bits(vectors) == before
        assert totals.parts() == nothing
    else:
        assert row_size > 0
