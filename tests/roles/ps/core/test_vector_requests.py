"""Rounds and commits of a batch algorithm: what is carried out once, in order, whole or not at all."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.model.commands import ACCUMULATOR, Apply, Command, Reduce, Set
from adamctl.roles.ps.core.instructions import Refuse
from adamctl.wire.constants import ErrorCode
from tests.roles.ps.vector_harness import COMMIT, OK, READ_SUM, VectorHarness, codes, dot, everything, step

# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_writes_scratch_and_finds_numbers_over_all_shards() -> None:
    h = VectorHarness()
    results = h.round("r", 1, [Set("d", ((2.0, "x"), (1.0, "g"))), dot("d", "x"), Reduce("max_abs", (("d",),))])
    assert codes(results) == {OK} and {result.scratch for result in results} == {("d",)}
    expected = sum(2.0 * shard.index**2 * shard.size for shard in h.layout.shards)
    assert h.found("r") == [expected, 2.0 * (len(h.layout.shards) - 1)]


def test_a_repeated_round_is_answered_from_memory_and_an_earlier_one_is_refused() -> None:
    h = VectorHarness()
    h.round("t", 1, [Set("t", ((1.0, "x"),))])
    h.round("r", 2, [Set("t", ((2.0, "t"),)), dot("t", "t")])
    again = h.round("again", 2, [Set("t", ((2.0, "t"),)), dot("t", "t")])
    assert codes(again) == {OK} and h.found("again") == h.found("r") and h.value("t", 1) == 2.0
    assert codes(h.round("late", 1, [Set("t")])) == {ErrorCode.STALE_ROUND} and h.value("t", 1) == 2.0


def test_a_repeated_round_leaves_the_evaluated_vector_in_its_place() -> None:
    h = VectorHarness()
    h.round("t", 1, [Set("t", ((1.0, "x"),))])
    h.evaluate("e", 1, "t")
    h.round("again", 1, [Set("t", ((1.0, "x"),))])
    assert {code for code, _ in h.pull("t", "t", 1)} == {OK}


def test_what_was_never_written_cannot_be_read() -> None:
    h = VectorHarness()
    results = h.round("r", 1, [dot("d", "g")])
    assert codes(results) == {ErrorCode.NO_VECTOR} and h.found("r") == [0.0]
    assert codes(h.evaluate("e", 1, "t")) == {ErrorCode.NO_VECTOR}
    assert codes(h.commit("c", 1)) == {ErrorCode.NO_VECTOR}
    assert {result.commit for result in h.results("c")} == {0}


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        (b"", ErrorCode.BAD_MESSAGE),
        (b"\xff" * 40, ErrorCode.BAD_MESSAGE),
        (msgspec.msgpack.encode([["set", "t", [["a", "x"]]]]), ErrorCode.BAD_MESSAGE),
        (msgspec.msgpack.encode([["run", "t"]]), ErrorCode.BAD_MESSAGE),
        ([Set("x", ((1.0, "t"),))], ErrorCode.BAD_CONFIGURATION),
        ([Set("g")], ErrorCode.BAD_CONFIGURATION),
        ([Set("t", ((1.0, "z"),))], ErrorCode.BAD_CONFIGURATION),
        ([Set("t", ((float("inf"), "x"),))], ErrorCode.BAD_CONFIGURATION),
        ([Set("t")] * 257, ErrorCode.BAD_CONFIGURATION),
        ([READ_SUM], ErrorCode.BAD_CONFIGURATION),
        ([Apply("t", "multiply", (("x",),))], ErrorCode.BAD_CONFIGURATION),
        ([Reduce("dot", (("x",), (ACCUMULATOR,)))], ErrorCode.BAD_CONFIGURATION),
    ],
)
def test_commands_that_cannot_be_are_refused_whole(commands: list[Command] | bytes, code: int) -> None:
    h = VectorHarness()
    h.round("r", 1, commands, do=False)
    assert isinstance(refused := h.last("r"), Refuse) and refused.code == code and not h.waiting
    assert h.round("next", 1, [Set("t")])[0].scratch == ("t",)


# --- commits ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_carried_out_once_and_in_order() -> None:
    h = VectorHarness()
    step(h, 1, 2.0)
    assert (h.value("x", 1), h.value("g", 1), h.value("s0", 1), h.value("y0", 1)) == (0.0, 2.0, -1.0, 2.0)
    assert h.shard(1).counter == 1
    again = h.commit("again", 1)
    assert codes(again) == {OK} and {result.commit for result in again} == {1}
    assert (h.value("s0", 1), h.value("y0", 1)) == (-1.0, 2.0), "a second time it would be t - x = 0"
    assert h.shard(1).counter == 1
    assert codes(h.commit("gap", 3)) == {ErrorCode.SEQUENCE_GAP}
    assert codes(h.commit("anew", 3, anew=True)) == {OK} and h.shard(1).memory.commit == 3
    assert codes(h.commit("late", 2, anew=True)) == {OK} and h.shard(1).memory.commit == 3


def test_a_commit_may_keep_the_sum_itself() -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bundles=1)
    h.add("a", 1, 0, 4.0)
    assert codes(h.commit("c", 1, [Set("g", ((1.0, ACCUMULATOR),))], 1)) == {OK}
    assert set(h.whole("g")) == {4.0}


@pytest.mark.parametrize("commands", [[Set("t")], [*COMMIT, dot("x", "x")], [Set("x", ((1.0, "z"),))]])
def test_a_commit_writes_what_is_kept_and_nothing_else(commands: list[Command]) -> None:
    h = VectorHarness()
    h.round("t", 1, [Set("t"), Set("h")])
    h.commit("c", 1, commands, do=False)
    assert isinstance(refused := h.last("c"), Refuse) and refused.code == ErrorCode.BAD_CONFIGURATION


@pytest.mark.parametrize("anew", [False, True])
def test_a_commit_that_was_refused_and_comes_again_late_is_not_carried_out(anew: bool) -> None:
    """What it lacked has been written meanwhile, for another commit or not yet for the last time."""
    h = VectorHarness()
    step(h, 1, 2.0)
    h.take_over(0, 2)
    sent = {"anew": anew, "epochs": {0: 2}, "last_round": 2}
    assert codes(h.commit("first", 2, **sent)) == {ErrorCode.NO_VECTOR}
    h.round("again", 3, [Set("t", ((1.0, "x"),)), Set("h", ((3.0, "g"),))])
    before = everything(h)
    assert codes(h.commit("late", 2, **sent)) == {ErrorCode.STALE_ROUND}
    assert everything(h) == before
    assert codes(h.commit("next", 2, last_round=3)) == {OK} and set(h.whole("g")) == {6.0}
    assert codes(h.commit("later", 2, **sent)) == {OK} and set(h.whole("g")) == {6.0}, "it is done"
