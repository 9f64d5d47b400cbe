"""What a server that lost its scratch vectors does again: what is read later, and nothing else."""

from __future__ import annotations

from adamctl.model.commands import ACCUMULATOR, Command, Reduce, Set
from adamctl.roles.coordinator.core.journal import Entry, EvaluationEntry, RoundEntry, needed_again, where_left, written

DIRECTION: tuple[Command, ...] = (Set("d", ((-1.0, "g"),)), Set("t", ((1.0, "x"), (1.0, "d"))))
MEASURE: tuple[Command, ...] = (Set("h", ((1.0, ACCUMULATOR),)), Reduce("dot", (("h",), ("d",))))
SHORTER: tuple[Command, ...] = (Set("t", ((1.0, "x"), (0.5, "d"))), Reduce("max_abs", (("t",),)))
JOURNAL: list[Entry] = [
    RoundEntry(DIRECTION), EvaluationEntry("t"), RoundEntry(MEASURE),
    RoundEntry(SHORTER), EvaluationEntry("t"), RoundEntry(MEASURE),
]  # fmt: skip


def test_a_trial_that_was_rejected_is_left_out() -> None:
    assert needed_again(JOURNAL, {"t", "h", "x", "g"}) == [
        (0, RoundEntry(DIRECTION[:1])),
        (3, RoundEntry(SHORTER[:1])),
        (4, EvaluationEntry("t")),
        (5, RoundEntry(MEASURE[:1])),
    ]


def test_gradients_are_taken_again_only_if_they_are_read() -> None:
    assert needed_again(JOURNAL, {"d"}) == [(0, RoundEntry(DIRECTION[:1]))]
    assert needed_again(JOURNAL[:4], {"t", "h"}) == [
        (0, RoundEntry((DIRECTION[0], DIRECTION[1]))),
        (1, EvaluationEntry("t")),
        (2, RoundEntry(MEASURE[:1])),
        (3, RoundEntry(SHORTER[:1])),
    ]
    assert needed_again(JOURNAL[:5], {ACCUMULATOR})[-1] == (4, EvaluationEntry("t"))
    assert needed_again(JOURNAL, {"x", "g"}) == [] and needed_again([], {"t"}) == []


def test_a_vector_that_is_changed_in_place_needs_what_it_was() -> None:
    grown: list[Entry] = [
        RoundEntry((Set("d"),)), RoundEntry((Set("d", ((1.0, "d"), (1.0, "g"))), Set("d", ((2.0, "d"),)))),
    ]  # fmt: skip
    assert needed_again(grown, {"d"}) == list(enumerate(grown))


def test_where_a_commit_leaves_the_numbers_of_a_vector() -> None:
    kept = ("x", "g", "v")
    commit = (Set("x", ((1.0, "t"),)), Set("g", ((2.0, "h"),)))
    assert where_left("t", commit, kept) == "x" and where_left("v", commit, kept) == "v"
    assert where_left("h", commit, kept) == where_left("x", commit, kept) == where_left("d", commit, kept) == ""
    assert where_left("t", (*commit, Set("x", ((1.0, "x"), (1.0, "g")))), kept) == "", "it is written over"


def test_what_rounds_have_written() -> None:
    assert written(JOURNAL) == {"d", "t", "h"} and written(JOURNAL[1:2]) == set()
