"""A shard's part in a batch algorithm: evaluations, bundles counted once, pulls of one point."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.model.commands import Set
from adamctl.roles.ps.core.instructions import Refuse
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import PullRequest
from tests.roles.ps.vector_harness import JOB, OK, READ_SUM, VectorHarness, codes, step

# --- evaluations ------------------------------------------------------------------------------------------------------


def test_bundles_add_up_by_weight_and_the_sum_is_read_when_all_are_there() -> None:
    h = VectorHarness()
    assert codes(h.evaluate("e", 1)) == {OK}
    assert set(h.add("a", 1, 0, 3.0, 0.75)) == {OK}
    assert codes(h.round("early", 1, [READ_SUM], 1)) == {ErrorCode.NOT_READY}
    assert set(h.add("b", 1, 1, 1.0, 0.25)) == {OK}
    assert codes(h.round("r", 1, [READ_SUM], 1)) == {OK}
    assert set(h.whole("h")) == {3.0 * 0.75 + 0.25}, "a short portion counts for what it is worth"


@pytest.mark.parametrize("again", ["a", "b"])
def test_a_bundle_is_counted_once(again: str) -> None:
    h = VectorHarness()
    h.evaluate("e", 1)
    assert set(h.add("a", 1, 0, 1.0)) == set(h.add("b", 1, 1, 2.0)) == {OK}
    assert set(h.add("twice", 1, "ab".index(again), 5.0)) == {OK}
    h.round("r", 1, [READ_SUM], 1)
    assert set(h.whole("h")) == {3.0}


def test_two_copies_of_a_bundle_in_the_queue_are_counted_once() -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bundles=1)
    for token in ("first", "second"):
        h.add(token, 1, 0, 1.0, do=False)
    h.work()
    assert h.codes("first") == h.codes("second") and set(h.codes("second")) == {OK}
    h.round("r", 1, [READ_SUM], 1)
    assert set(h.whole("h")) == {1.0}


def test_a_shard_that_has_a_bundle_ignores_it_and_the_others_take_it() -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bundles=1)
    h.add("half", 1, 0, 1.0, shards=[0, 2])
    assert {shard: vectors.missing for shard, s in h.job.shards.items() if (vectors := s.vectors)}[1] == 1
    h.add("whole", 1, 0, 1.0)
    h.round("r", 1, [READ_SUM], 1)
    assert set(h.whole("h")) == {1.0}


def test_an_old_evaluation_adds_nothing_and_is_told_that_all_is_well() -> None:
    h = VectorHarness()
    h.evaluate("e1", 1, bundles=1)
    h.evaluate("e2", 2, bundles=1)
    assert set(h.add("old", 1, 0, 9.0)) == {OK}
    assert set(h.add("new", 2, 0, 1.0)) == {OK}
    assert codes(h.round("stale", 1, [READ_SUM], 1)) == {ErrorCode.STALE_EVALUATION}
    h.round("r", 1, [READ_SUM], 2)
    assert set(h.whole("h")) == {1.0}


def test_a_bundle_of_an_evaluation_to_come_waits_for_it() -> None:
    h = VectorHarness()
    assert set(h.add("early", 1, 0, 1.0)) == {ErrorCode.NO_VECTOR}


def test_an_evaluation_that_is_opened_again_forgets_nothing() -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bundles=1)
    h.add("a", 1, 0, 1.0)
    assert {result.missing for result in h.evaluate("again", 1, bundles=1)} == {0}
    assert codes(h.evaluate("older", 0 + 1, bundles=1)) == {OK}
    h.evaluate("next", 2, bundles=1)
    assert codes(h.evaluate("late", 1, bundles=1)) == {ErrorCode.STALE_EVALUATION}
    assert h.shard(0).vectors.evaluation == 2  # type: ignore[union-attr]


def test_an_evaluation_is_opened_again_where_its_vector_was_written_again() -> None:
    h = VectorHarness()
    h.round("t", 1, [Set("t", ((2.0, "x"),))])
    h.evaluate("e", 1, "t", bundles=1, last_round=1)
    h.add("a", 1, 0, 1.0)
    h.round("t again", 2, [Set("t", ((2.0, "x"),))])
    assert {code for code, _ in h.pull("no", "t", 1)} == {ErrorCode.STALE_EVALUATION}
    assert codes(h.evaluate("late", 1, "t", bundles=1, last_round=1)) == {ErrorCode.STALE_ROUND}
    assert {code for code, _ in h.pull("still", "t", 1)} == {ErrorCode.STALE_EVALUATION}
    (missing,) = {result.missing for result in h.evaluate("again", 1, "t", bundles=1, last_round=2)}
    assert missing == 0 and h.pull("t", "t", 1)[1] == (OK, 2.0)


def test_a_kept_vector_that_was_written_over_is_not_pulled_for_an_evaluation_that_is_opened_again() -> None:
    h = VectorHarness()
    h.evaluate("e", 1, "x", bundles=1)
    h.round("t", 1, [Set("t", ((2.0, "x"),)), Set("h")])
    h.commit("c", 1)
    assert codes(h.evaluate("again", 1, "x", bundles=1, last_round=1)) == {OK}
    assert {code for code, _ in h.pull("x", "x", 1)} == {ErrorCode.STALE_EVALUATION}, "it is another point"


@pytest.mark.parametrize(
    ("value", "bits", "code"),
    [
        (float("nan"), 20, ErrorCode.NOT_FINITE),
        (float("-inf"), 20, ErrorCode.NOT_FINITE),
        (2.0**23, 40, ErrorCode.OUT_OF_RANGE),
        (-(2.0**23), 40, ErrorCode.OUT_OF_RANGE),
    ],
)
def test_what_does_not_fit_is_refused_added_nowhere_and_not_forgotten(value: float, bits: int, code: int) -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bits=bits, bundles=1)
    assert set(h.add("bad", 1, 0, value)) == {code}
    assert not np.any(h.shard(0).vectors.accumulator)  # type: ignore[union-attr]
    assert set(h.add("good", 1, 0, 1.0)) == {OK}
    assert codes(h.round("r", 1, [READ_SUM], 1)) == {code}, "whoever reads the sum is told, too"
    h.evaluate("again", 2, bits=20, bundles=1)
    assert set(h.add("fits", 2, 0, min(abs(value), 5.0) if value == value else 1.0)) == {OK}
    assert codes(h.round("r", 1, [READ_SUM], 2)) == {OK}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_sum_that_could_overflow_is_refused_whatever_the_order(order: tuple[int, ...]) -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bits=40, bundles=3)
    sent = [1.3 * 2.0**20, -1.3 * 2.0**20, 1.5 * 2.0**20]  # 2^62 / 3 units are 1.33 * 2^20
    found = {bundle: h.add(bundle, 1, bundle, sent[bundle])[0] for bundle in order}
    assert found == {0: OK, 1: OK, 2: ErrorCode.OUT_OF_RANGE}
    assert codes(h.round("r", 1, [READ_SUM], 1)) == {ErrorCode.OUT_OF_RANGE}


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_weight_is_a_number(weight: float) -> None:
    h = VectorHarness()
    h.evaluate("e", 1)
    h.add("bad", 1, 0, 1.0, weight, do=False)
    assert isinstance(refused := h.last("bad"), Refuse) and refused.code == ErrorCode.NOT_FINITE


def test_a_bundle_that_there_is_not_is_refused() -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bundles=9)
    assert set(h.add("nine", 1, 9, 1.0)) == set(h.add("below", 1, -1, 1.0)) == {ErrorCode.BAD_RANGE}
    assert set(h.add("eight", 1, 8, 1.0)) == {OK}


# --- pulls ------------------------------------------------------------------------------------------------------------


def test_a_pull_gets_the_vector_of_its_evaluation_and_no_other() -> None:
    h = VectorHarness()
    assert {code for code, _ in h.pull("none", "t", 1)} == {ErrorCode.NO_VECTOR}
    h.round("t", 1, [Set("t", ((2.0, "x"),))])
    h.evaluate("e", 1, "t")
    assert h.pull("t", "t", 1) == [(OK, 2.0 * shard) for shard in sorted(h.job.shards)]
    assert {code for code, _ in h.pull("x", "x", 1)} == {ErrorCode.STALE_EVALUATION}
    assert {code for code, _ in h.pull("next", "t", 2)} == {ErrorCode.NO_VECTOR}
    h.round("t2", 2, [Set("t", ((3.0, "x"),))])
    assert {code for code, _ in h.pull("stale", "t", 1)} == {ErrorCode.STALE_EVALUATION}, "it is another point now"
    h.evaluate("e2", 2, "t")
    assert {code for code, _ in h.pull("old", "t", 1)} == {ErrorCode.STALE_EVALUATION}
    assert h.pull("new", "t", 2)[1] == (OK, 3.0)


def test_a_kept_vector_may_be_what_is_evaluated_and_is_not_written_over_while_it_is_sent() -> None:
    h = VectorHarness()
    step(h, 1, 2.0)
    h.evaluate("e", 2, "g", bundles=1)
    assert set(h.pull("g", "g", 2)) == {(OK, 2.0)}
    request = PullRequest(JOB, h.epochs(), (0,), vector="g", evaluation=2)
    h.take(h.core.pull("held", 1, ("w", 1), request, 0.0))
    (sent,) = h.last("held").values  # type: ignore[attr-defined]
    h.commit("c", 2, [Set("g", ((5.0, "g"),))])
    assert set(sent.array.tolist()) == {2.0} and h.value("g") == 10.0
    sent.release()
    assert not h.shard(0).state.is_read
    assert {code for code, _ in h.pull("stale", "g", 2)} == {ErrorCode.STALE_EVALUATION}


def test_a_vector_that_is_being_sent_is_not_written_over() -> None:
    h = VectorHarness()
    h.round("t", 1, [Set("t", ((1.0, "x"),))])
    h.evaluate("e", 1, "t")
    vectors = h.shard(1).vectors
    assert vectors is not None
    sent = vectors.scratch["t"]
    sent.readers += 1
    h.round("t2", 2, [Set("t", ((5.0, "x"),))])
    assert set(sent.array.tolist()) == {1.0} and h.value("t", 1) == 5.0


def test_values_that_are_being_read_are_not_written_over_by_a_commit() -> None:
    h = VectorHarness()
    step(h, 1, 1.0)
    values, state = h.shard(1).values, h.shard(1).state
    image = h.shard(1).image()
    step(h, 2, 4.0)
    assert image.values is values and image.state is state
    assert [set(array.tolist()) for array in (values.array, *state.arrays)] == [{0.0}, {1.0}, {-1.0}, {1.0}]
    image.release()


def test_arrays_that_two_states_share_are_not_written_over_while_either_is_read() -> None:
    h = VectorHarness()
    step(h, 1, 1.0)
    image = h.shard(1).image()
    h.commit("g", 2, [Set("g", ((2.0, "g"),))])
    assert h.shard(1).state.arrays[1] is image.state.arrays[1], "what a commit leaves is not copied"
    h.commit("s0", 3, [Set("s0", ((2.0, "s0"),))])
    assert set(image.state.arrays[1].tolist()) == {-1.0} and h.value("s0", 1) == -2.0
    image.release()
    arrays = h.shard(1).state.arrays
    h.commit("y0", 4, [Set("y0", ((2.0, "y0"),))])
    assert h.shard(1).state.arrays[2] is arrays[2], "nobody reads it any more: it is written in place"
