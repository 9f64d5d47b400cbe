"""A server's part in a batch algorithm: evaluations, bundles counted once, rounds, commits, pulls of one point."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest

from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.model.commands import ACCUMULATOR, Apply, Command, Reduce, Set
from adamctl.roles.ps.apply.vector_work import VectorApplier
from adamctl.roles.ps.core.flush import Entry, FlushCore
from adamctl.roles.ps.core.instructions import AnswerVectors, Recover, Refuse
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CommitRequest, PullRequest, PushRequest, RoundRequest
from tests.roles.ps.core_harness import Harness
from tests.roles.ps.vector_harness import COMMIT, JOB, READ_SUM, VectorHarness, dot

OK = int(ErrorCode.OK)


def codes(results: list) -> set[int]:
    return {result.code for result in results}


def two(results: list) -> dict[int, int]:
    """The codes of the first two buckets, of many."""
    return {result.bucket: result.code for result in results[:2]}


def step(h: VectorHarness, number: int, value: float) -> None:
    """One iteration: a trial point, its gradient, a commit."""
    assert codes(h.round(f"t{number}", 2 * number - 1, [Set("t", ((1.0, "x"), (0.5, "g"))), Set("t")])) == {OK}
    assert codes(h.evaluate(f"e{number}", number, "t")) == {OK}
    h.add(f"a{number}", number, 0, value, 0.75)
    h.add(f"b{number}", number, 1, value, 0.25)
    assert codes(h.round(f"h{number}", 2 * number, [READ_SUM], number)) == {OK}
    assert codes(h.commit(f"c{number}", number)) == {OK}


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


def test_jobs_of_other_rules_have_no_vectors_and_this_one_takes_no_pushes() -> None:
    other, h = Harness("sgd"), VectorHarness()
    other.take(other.core.pull("p", 1, ("w", 1), PullRequest(JOB, other.epochs(), (0,), vector="t"), 0.0))
    assert other.answers["p"][-1].message.parts[0].code == ErrorCode.WRONG_KIND  # type: ignore[attr-defined]
    h.take(h.core.push("p", 1, ("w", 1), PushRequest(JOB, h.epochs(), 1.0, 1, 1, (), ()), memoryview(b""), 0.0))
    assert isinstance(refused := h.last("p"), Refuse) and refused.code == ErrorCode.WRONG_KIND


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


def test_after_a_takeover_what_is_kept_is_there_and_all_else_is_said_to_be_gone() -> None:
    h = VectorHarness()
    step(h, 1, 2.0)
    h.round("t", 3, [Set("t", ((1.0, "x"), (-1.0, "g")))])
    h.evaluate("e", 2, "t", bundles=1)
    h.add("a", 2, 0, 1.0)
    h.take_over(0, 2)
    said = {result.bucket: result for result in h.round("ask", 3, [])}
    assert (said[0].commit, said[0].evaluation, said[0].scratch, said[0].at, said[0].round) == (1, 0, (), "", 3)
    assert (said[1].evaluation, said[1].scratch, said[1].missing) == (2, ("h", "t"), 0)
    assert codes(h.round("h", 4, [READ_SUM], 2)) == {OK, ErrorCode.NO_VECTOR}
    assert two(h.commit("c", 2)) == {0: ErrorCode.NO_VECTOR, 1: OK}
    here = [s.index for s in h.layout.shards_of(h.layout.buckets[0])]
    assert [h.pull("p", "t", 2)[index][0] for index in here] == [ErrorCode.NO_VECTOR] * len(here)
    # The journal of coefficients, and the bundle, again: for this bucket alone.
    own = {0: 2}
    h.round("t again", 5, [Set("t", ((1.0, "x"), (-1.0, "g")))], epochs=own)
    h.evaluate("e again", 2, "t", bundles=1, epochs=own)
    assert set(h.add("a again", 2, 0, 1.0)) == {OK}
    h.round("h again", 6, [READ_SUM], 2, epochs=own)
    assert codes(h.commit("c again", 2)) == {OK}
    assert set(h.whole("g")) == {1.0} and set(h.whole("x")) == {-2.0} and set(h.whole("s0")) == {-2.0}


def test_a_request_of_an_old_epoch_is_refused_and_one_whose_bucket_moves_meanwhile_too() -> None:
    h = VectorHarness()
    h.job.epochs[0] = h.job.buckets[0].epoch = 2
    assert two(h.round("old", 1, [Set("t")], epochs={0: 1, 1: 1})) == {0: ErrorCode.STALE_EPOCH, 1: OK}
    h.round("moves", 2, [Set("t"), dot("x", "x")], do=False)
    h.round("behind", 3, [Set("t")], do=False)
    h.job.epochs[0] = 3
    h.job.drop(0)
    assert two(h.results("moves")) == {0: ErrorCode.STALE_EPOCH, 1: OK}
    assert two(h.results("behind")) == {0: ErrorCode.STALE_EPOCH, 1: OK}
    left = [s for s in h.layout.shards if h.layout.bucket_of_shard[s.index] != 0]
    assert h.found("moves") == [sum(float(s.index**2 * s.size) for s in left)], "only of what is served here"
    h.round("none", 4, [], epochs={99: 1})
    assert h.results("none")[0].code == ErrorCode.UNKNOWN_SHARD


def test_a_thread_that_fails_leaves_no_scratch_half_written_and_no_shard_half_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = VectorHarness()
    step(h, 1, 2.0)
    monkeypatch.setattr(PreparedRound, "run", fail)
    results = h.round("r", 3, [Set("t")])
    assert codes(results) == {ErrorCode.INTERNAL} and results[0].scratch == ("h",)
    assert codes(h.commit("c", 2, [Set("x", ((1.0, "h"),))])) == {ErrorCode.INTERNAL}
    assert h.job.failed is not None and not h.job.buckets, "values may be damaged: nothing of it is served any more"


def test_an_evaluation_that_could_not_be_opened_leaves_no_sum_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = VectorHarness()
    h.evaluate("e", 1, bundles=1)
    h.add("a", 1, 0, 1.0)
    monkeypatch.setattr(VectorApplier, "_open", fail)
    assert codes(h.evaluate("e2", 2, bundles=1)) == {ErrorCode.INTERNAL}
    assert codes(h.round("r", 1, [READ_SUM], 1)) == {ErrorCode.INTERNAL}
    monkeypatch.undo()
    assert codes(h.evaluate("again", 2, bundles=1)) == {OK}


def test_with_a_store_a_failed_commit_ends_the_process_which_continues_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    h = VectorHarness(flush=FlushCore())
    step(h, 1, 2.0)
    monkeypatch.setattr(PreparedRound, "run", fail)
    h.commit("c", 2, [Set("x", ((1.0, "h"),))], do=False)
    h.work()
    assert not h.answered("c") and any(isinstance(other, Recover) for other in h.others)


def fail(*_: object) -> None:
    raise RuntimeError("planted")


def test_a_commit_waits_for_the_disk_if_the_job_asks_for_it() -> None:
    flush = FlushCore()
    h = VectorHarness(flush=flush)
    h.job.durable = True
    for shard in h.job.shards.values():
        shard.entry = Entry(shard, 4 * shard.size)
    h.round("t", 1, [Set("t"), Set("h")])
    h.commit("c", 1, do=False)
    h.work()
    assert not h.answered("c")
    assert h.core.acknowledgements is not None
    while group := flush.take(100.0):
        for item in group.items:
            flush.taken(item)
        h.take(h.core.acknowledgements.durable(flush.finished([100] * len(group.items)), 0.0))
    answer = h.last("c")
    assert isinstance(answer, AnswerVectors) and codes(list(answer.message.results)) == {OK}
    assert codes(h.commit("again", 1)) == {OK}, "what is durable is not waited for again"


def everything(h: VectorHarness) -> list[object]:
    """All that shards have."""
    out: list[object] = []
    for shard in h.job.shards.values():
        vectors = shard.vectors
        assert vectors is not None and shard.batch is None and not vectors.queue
        out += [shard.counter, shard.memory.commit, vectors.round, vectors.evaluation, vectors.missing, vectors.at]
        out += [array.tobytes() for array in (shard.values.array, *shard.state.arrays)]
        out += [(name, one.array.tobytes()) for name, one in sorted(vectors.scratch.items())]
        out.append(None if vectors.accumulator is None else vectors.accumulator.tobytes())
    return out


@pytest.mark.parametrize("seed", range(4))
def test_whatever_commands_say_they_are_carried_out_or_refused_and_then_nothing_is_changed(seed: int) -> None:
    random, h = Random(seed), VectorHarness()
    print("seed", seed)
    step(h, 1, 2.0)
    names = ["x", "g", "s0", "y0", "t", "d", "h", "z", ACCUMULATOR, ""]
    operations = ["multiply", "divide", "sqrt", "where", "dot", "max_abs", "sum", "run", "abs"]
    refused = carried = 0
    for token in range(250):
        before, commands = everything(h), []
        for _ in range(random.randrange(4)):
            operands = [random.choices(names, k=random.randrange(4)) for _ in range(random.randrange(4))]
            terms = [[random.choice([0.5, -2, float("nan"), 1e300, "a"]), random.choice(names)] for _ in operands]
            commands.append(
                random.choice(
                    [
                        ["set", random.choice(names), terms],
                        ["set", random.choice(names[:7]), [[0.5, random.choice(names[:7])]]],
                        ["apply", random.choice(names), random.choice(operations), operands],
                        ["reduce", random.choice(operations), operands],
                        random.choice(names),
                    ]
                )
            )
        body = msgspec.msgpack.encode(commands)
        if random.random() < 0.2:
            body = body[: random.randrange(len(body))]
        number, evaluation = random.choice([-1, 0, 2, 3, token + 3, 1 << 62]), random.choice([-1, 0, 1, 2])
        if random.random() < 0.5:
            h.take(h.vectors.round(token, 1, RoundRequest(JOB, h.epochs(), number, evaluation), body, 0.0))
        else:
            request = CommitRequest(JOB, h.epochs(), number, evaluation, random.random() < 0.2)
            h.take(h.vectors.commit(token, 1, request, body, 0.0))
        h.work()
        answer = h.last(token)
        if isinstance(answer, Refuse):
            refused += 1
            assert answer.code in (ErrorCode.BAD_MESSAGE, ErrorCode.BAD_CONFIGURATION) and answer.message
        else:
            assert isinstance(answer, AnswerVectors)
            found = codes(list(answer.message.results))
            carried += found == {OK}
            if found == {OK}:
                continue
            assert found <= {ErrorCode.SEQUENCE_GAP, ErrorCode.STALE_ROUND, ErrorCode.NO_VECTOR}
        assert everything(h) == before
    assert refused > 50 and carried > 5


def test_a_bucket_that_moves_before_the_answer_is_to_be_asked_elsewhere() -> None:
    h = VectorHarness(threads=2)
    h.round("r", 1, [Set("t", ((1.0, "x"),)), dot("t", "t")], do=False)
    h.work(1)
    h.job.drop(0)
    results = {result.bucket: result for result in h.results("r")}
    assert results[0].code == ErrorCode.STALE_EPOCH, "it is done, and lost with the bucket"
    assert {results[bucket].code for bucket in results if bucket} == {OK}
    assert h.found("r") == [sum(index**2 * h.shard(index).size for index in h.job.shards)]
