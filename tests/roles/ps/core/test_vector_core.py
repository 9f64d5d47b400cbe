"""A server's part in a batch algorithm: takeovers, epochs, failing threads, disks, and commands that make no sense."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.model.commands import ACCUMULATOR, Set
from adamctl.roles.ps.apply.vector_work import VectorApplier
from adamctl.roles.ps.core.flush import Entry, FlushCore
from adamctl.roles.ps.core.instructions import AnswerVectors, Recover, Refuse
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CommitRequest, PullRequest, PushRequest, RoundRequest
from tests.roles.ps.core_harness import Harness
from tests.roles.ps.vector_harness import JOB, OK, READ_SUM, VectorHarness, codes, dot, everything, step, two


def test_jobs_of_other_rules_have_no_vectors_and_this_one_takes_no_pushes() -> None:
    other, h = Harness("sgd"), VectorHarness()
    other.take(other.core.pull("p", 1, ("w", 1), PullRequest(JOB, other.epochs(), (0,), vector="t"), 0.0))
    assert other.answers["p"][-1].message.parts[0].code == ErrorCode.WRONG_KIND  # type: ignore[attr-defined]
    h.take(h.core.push("p", 1, ("w", 1), PushRequest(JOB, h.epochs(), 1.0, 1, 1, (), ()), memoryview(b""), 0.0))
    assert isinstance(refused := h.last("p"), Refuse) and refused.code == ErrorCode.WRONG_KIND


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
