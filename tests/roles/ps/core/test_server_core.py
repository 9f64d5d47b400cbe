"""What a parameter server decides, event by event, without network, threads or time."""

from __future__ import annotations

import math
import random

import pytest

from adamctl.roles.ps.core.admission import UNKNOWN_JOB_GRACE_S
from adamctl.roles.ps.core.instructions import AnswerAttach, AnswerPull, Refresh, Refuse
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import AttachRequest, PushPart, PushRequest, PushSource
from tests.roles.ps.core_harness import JOB, Harness


def test_a_push_is_answered_when_it_is_applied_and_its_body_kept_until_then() -> None:
    h = Harness()
    h.push("p", [(0, 1, 2.0), (3, 1, 5.0)])
    assert [type(answer).__name__ for answer in h.answers["p"]] == ["Keep"]
    assert len(h.waiting) == 1  # one instruction for one thread, however many shards
    h.apply()
    assert h.results("p") == [(0, 0), (0, 0)]
    assert (h.value(0), h.value(3), h.value(1)) == (2.0, 5.0, 0.0)


def test_updates_that_come_while_a_shard_is_busy_wait_and_are_applied_as_one_batch() -> None:
    h = Harness()
    for sequence in (1, 2, 3):
        h.push(sequence, [(0, sequence, 1.0)])
    assert len(h.waiting) == 1
    h.apply(1)
    assert h.answered(1) and not h.answered(2)
    assert [len(batch.updates) for batch in h.waiting[0].batches] == [2]
    h.apply()
    assert h.value(0) == 3.0
    shard = h.job.shards[0]
    assert (shard.counter, shard.pushes) == (2, 3)  # the version counts batches, `pushes` pushes


@pytest.mark.parametrize("applied_between", [True, False])
def test_a_repeated_number_is_answered_as_done_once_it_really_is(applied_between: bool) -> None:
    h = Harness()
    h.push("first", [(0, 1, 1.0)])
    if applied_between:
        h.apply()
    h.push("again", [(0, 1, 1.0)])
    assert h.answered("again") is applied_between
    h.apply()
    assert h.results("again") == [(0, 0)]
    assert h.value(0) == 1.0


def test_a_gap_is_refused_and_consumes_nothing() -> None:
    h = Harness()
    h.push("gap", [(0, 2, 1.0)])
    assert h.results("gap") == [(ErrorCode.SEQUENCE_GAP, 0)]
    h.push("first", [(0, 1, 1.0)])
    h.push("second", [(0, 2, 1.0)])
    h.apply()
    assert h.results("second") == [(0, 0)]
    assert h.value(0) == 2.0


@pytest.mark.parametrize("sequence", [0, -1, -(2**63)])
def test_numbers_begin_at_one(sequence: int) -> None:
    h = Harness()
    h.push("p", [(0, sequence, 1.0)])
    assert h.results("p") == [(ErrorCode.SEQUENCE_GAP, 0)]


@pytest.mark.parametrize(
    ("value", "changes", "code"),
    [
        (math.nan, {}, ErrorCode.NOT_FINITE),
        (math.inf, {}, ErrorCode.NOT_FINITE),
        (1.0, {"kind": UpdateKind.GRADIENT}, ErrorCode.WRONG_KIND),
        (1.0, {"kind": 77}, ErrorCode.WRONG_KIND),
        (1.0, {"dtype": "float64"}, ErrorCode.WRONG_DTYPE),
        (1.0, {"tensor": 99}, ErrorCode.WRONG_LENGTH),
        (1.0, {"tensor": -1}, ErrorCode.WRONG_LENGTH),
        (1.0, {"tensor": 1}, ErrorCode.WRONG_LENGTH),
        (1.0, {"row_stop": 999}, ErrorCode.WRONG_LENGTH),
        (1.0, {"row_start": -1}, ErrorCode.WRONG_LENGTH),
        (1.0, {"offset": 1 << 40}, ErrorCode.WRONG_LENGTH),
        (1.0, {"offset": 2}, ErrorCode.WRONG_LENGTH),
        (1.0, {"offset": -4}, ErrorCode.WRONG_LENGTH),
        (1.0, {"kind": UpdateKind.FACTORS, "examples": -1}, ErrorCode.WRONG_LENGTH),
        (1.0, {"kind": UpdateKind.FACTORS, "examples": 1 << 50}, ErrorCode.WRONG_LENGTH),
    ],
)
def test_a_refused_part_spends_its_number_and_stays_refused(value: float, changes: dict, code: ErrorCode) -> None:
    h = Harness()
    h.push("bad", [(0, 1, value)], **changes)
    h.push("bad again", [(0, 1, value)], **changes)
    h.push("good", [(0, 2, 1.0)])
    h.apply()
    h.push("bad late", [(0, 1, value)], **changes)
    assert h.results("bad") == h.results("bad again") == h.results("bad late") == [(code, 0)]
    assert h.results("good") == [(0, 0)]
    assert h.value(0) == 1.0
    assert h.job.shards[0].pushes == 1


def test_one_bad_part_does_not_hold_up_the_others_of_its_push() -> None:
    h = Harness()
    h.push("p", [(0, 1, 1.0), (1, 1, math.nan), (999, 1, 1.0), (2, 1, 1.0), (3, 7, 1.0)])
    h.apply()
    expected = [0, ErrorCode.NOT_FINITE, ErrorCode.UNKNOWN_SHARD, 0, ErrorCode.SEQUENCE_GAP]
    assert [code for code, _ in h.results("p")] == expected
    assert [h.value(shard) for shard in range(4)] == [1.0, 0.0, 1.0, 0.0]


def test_a_learning_rate_that_is_not_finite_is_refused() -> None:
    h = Harness()
    source = h.layout.shards[0]
    header = PushSource(UpdateKind.DELTA, source.tensor, source.row_start, source.row_stop, 0)
    request = PushRequest(JOB, h.epochs(), math.nan, 1, 1, (header,), (PushPart(0, 1, 0), PushPart(1, 1, 5)))
    h.take(h.core.push("p", 1, ("w", 1), request, memoryview(bytes(4 * source.size)), 0.0))
    h.apply()
    assert [code for code, _ in h.results("p")] == [ErrorCode.NOT_FINITE, ErrorCode.WRONG_LENGTH]


def test_an_older_epoch_gets_the_newer_one_and_a_newer_one_makes_the_server_read_anew() -> None:
    h = Harness()
    h.raise_epochs(5)
    h.push("old", [(0, 1, 1.0)], epoch=4)
    assert h.results("old") == [(ErrorCode.STALE_EPOCH, 0)] and h.versions("old") == [0], "it was not taken in"
    assert h.answers["old"][-1].message.routing[h.layout.bucket_of_shard[0]] == 5
    h.push("new", [(0, 1, 1.0)], epoch=6)
    assert h.results("new") == [(ErrorCode.NEWER_EPOCH, 0)]
    assert h.others == [Refresh(JOB)]
    h.pull("old pull", [0], epoch=4)
    h.pull("new pull", [0], epoch=6)
    assert [h.answers[token][-1].message.parts[0].code for token in ("old pull", "new pull")] == [
        ErrorCode.STALE_EPOCH,
        ErrorCode.NEWER_EPOCH,
    ]
    h.push("right", [(0, 1, 1.0)], epoch=5)
    h.apply()
    assert h.results("right") == [(0, 0)]


def test_an_update_that_was_queued_when_its_bucket_moved_away_is_not_acknowledged() -> None:
    h = Harness()
    h.push("p", [(0, 1, 1.0)])
    h.move(2, h.layout.bucket_of_shard[0])
    h.apply()
    assert h.results("p") == [(ErrorCode.STALE_EPOCH, 0)]
    assert h.versions("p") == [1], "it was applied, and where the bucket went it may be known"
    h.push("later", [(0, 1, 1.0)], epoch=2)
    assert h.results("later") == [(ErrorCode.UNKNOWN_SHARD, 0)]


def test_staleness_counts_the_pushes_of_others_since_the_base() -> None:
    h = Harness()
    h.push("other 1", [(0, 1, 1.0)], client=("v", 2))
    h.push("own 1", [(0, 1, 1.0)], base=(0, 0))  # computed from the first version: misses one of others
    h.push("own 2", [(0, 2, 1.0)], base=(0, 0))  # own push 1 is not another's
    h.push("other 2", [(0, 2, 1.0)], client=("v", 2), base=(1, 1))
    h.push("own 3", [(0, 3, 1.0)], base=(4, 2))
    h.push("hostile", [(0, 4, 1.0)], base=(2**63 - 1, -(2**63)))
    h.apply()
    tokens = ("other 1", "own 1", "own 2", "other 2", "own 3", "hostile")
    assert [h.results(token)[0][1] for token in tokens] == [0, 1, 1, 2, 0, 0]
    assert h.job.staleness[:3] == [3, 2, 1]


def test_the_age_of_a_gradient_counts_all_pushes_since_the_base_its_own_clients_too() -> None:
    h = Harness()
    h.push("other 1", [(0, 1, 1.0)], client=("v", 2))
    h.push("own 1", [(0, 1, 1.0)], base=(0, 0))
    h.push("own 2", [(0, 2, 1.0)], base=(0, 0))  # computed while own push 1 was on its way
    h.push("other 2", [(0, 2, 1.0)], client=("v", 2), base=(1, 1))
    h.push("own 3", [(0, 3, 1.0)], base=(4, 2))
    h.push("hostile", [(0, 4, 1.0)], base=(2**63 - 1, -(2**63)))
    h.push("refused", [(0, 5, float("nan"))], base=(0, 0))
    h.apply()
    tokens = ("other 1", "own 1", "own 2", "other 2", "own 3", "hostile", "refused")
    assert [h.ages(token)[0] for token in tokens] == [0, 1, 2, 2, 0, 0, 0]
    assert h.job.gradient_ages[:4] == [3, 1, 2, 0]


def test_clients_and_their_incarnations_are_told_apart() -> None:
    h = Harness()
    for token, client in (("a", ("w", 1)), ("b", ("w", 2)), ("c", ("v", 1))):
        h.push(token, [(0, 1, 1.0)], client=client)
    h.apply()
    assert h.value(0) == 3.0


def test_an_evicted_client_gets_an_error_and_never_a_second_application() -> None:
    h = Harness()
    memory = h.job.shards[0].memory
    memory._clients_max = 2
    for incarnation in (1, 2, 3):
        h.push(incarnation, [(0, 1, 1.0)], client=("w", incarnation))
        h.apply()
    h.push("evicted again", [(0, 1, 1.0)], client=("w", 1))
    h.push("evicted next", [(0, 2, 1.0)], client=("w", 1))
    assert h.results("evicted again") == h.results("evicted next") == [(ErrorCode.CLIENT_EVICTED, 0)]
    h.push("kept", [(0, 2, 1.0)], client=("w", 2))
    h.apply()
    assert h.value(0) == 4.0


# --- attaching, jobs, limits ------------------------------------------------------------------------------------------


def test_attaching_checks_the_layout_and_tells_which_numbers_are_known() -> None:
    h = Harness()
    refused = h.attach(2, layout_hash="other")
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.LAYOUT_MISMATCH
    h.push("p", [(2, 1, 1.0)])
    attached = h.attach(3)
    assert isinstance(attached, AnswerAttach)
    assert attached.known == [(2, 1)]
    assert attached.message.epochs == h.epochs()


def test_nobody_attaches_to_a_job_of_which_something_is_not_there_yet() -> None:
    """What an attaching client tells of its numbers would be lost: there are no shards yet to keep it with."""
    h = Harness()
    h.job.taking, h.job.refusing = {1}, {1: "bucket 1 is being resumed from the store"}
    refused = h.attach(2)
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.NOT_READY
    assert "resumed from the store" in refused.message
    h.job.taking, h.job.refusing = set(), {}
    assert isinstance(h.attach(2), AnswerAttach)
    h.job.epochs.clear()  # it was added, and its records are not known yet
    refused = h.attach(2)
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.NOT_READY
    assert not refused.details
    h.job.building[1] = 1
    refused = h.attach(2)
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.NOT_READY and refused.details == {"building": 1}


def test_nobody_pushes_or_pulls_without_having_attached() -> None:
    h = Harness()
    h.push("p", [(0, 1, 1.0)], connection=9)
    assert h.answers["p"][-1].code == ErrorCode.LAYOUT_MISMATCH
    h.core.disconnected(1)
    h.pull("pull", [0])
    assert h.answers["pull"][-1].code == ErrorCode.LAYOUT_MISMATCH


def test_an_unknown_job_may_still_be_on_its_way_for_some_seconds() -> None:
    h = Harness()
    request = AttachRequest("other", "x")
    for now, code in ((5.0, ErrorCode.NOT_READY), (5.0 + UNKNOWN_JOB_GRACE_S, ErrorCode.UNKNOWN_JOB)):
        (refused,) = h.core.attach("t", 1, ("w", 1), request, now)
        assert isinstance(refused, Refuse) and refused.code == code
    for number in range(1000):
        h.core.attach("t", 1, ("w", 1), AttachRequest(f"job-{number}", "x"), 0.0)
    assert len(h.core.unknown._since) <= 256


def test_a_job_that_ends_is_freed_and_its_queued_updates_are_not_acknowledged() -> None:
    h = Harness()
    h.push("p", [(0, 1, 1.0)])
    h.core.remove_job(JOB)
    h.apply()
    assert h.results("p") == [(ErrorCode.STALE_EPOCH, 0)]
    h.pull("pull", [0])
    assert h.answers["pull"][-1].code in (ErrorCode.NOT_READY, ErrorCode.UNKNOWN_JOB)
    assert not h.core.jobs


def test_a_full_queue_refuses_whole_requests_and_consumes_nothing() -> None:
    h = Harness(queue_bytes_max=10)
    h.push("p", [(0, 1, 1.0)])
    h.push("q", [(0, 2, 1.0)])
    assert h.answers["q"][-1].code == ErrorCode.OVER_QUOTA
    h.apply()
    assert h.core.queued_bytes == 0 and h.core.queued_updates == 0
    h.push("q again", [(0, 2, 1.0)])
    h.apply()
    assert h.results("q again") == [(0, 0)]


@pytest.mark.parametrize("seed", range(30))
def test_any_interleaving_applies_each_number_once(seed: int) -> None:
    """Three clients send integer deltas, lost, repeated and out of order, between pulls: the sums are the checksum."""
    chance = random.Random(seed)
    h = Harness(threads=2)
    shards = range(len(h.layout.shards))
    total = 12
    acknowledged = {(client, shard): 0 for client in range(3) for shard in shards}
    holds: list[AnswerPull] = []
    step = 0
    while any(done < total for done in acknowledged.values()) and step < 20_000:
        step += 1
        action = chance.random()
        if action < 0.55:
            client = chance.randrange(3)
            chosen = chance.sample(shards, chance.randint(1, len(shards)))
            ahead = {shard: acknowledged[client, shard] + 1 + chance.choice((0, 0, 0, 1)) for shard in chosen}
            parts = [(shard, n, float(2**client)) for shard, n in ahead.items() if n <= total]
            h.push((step, client), parts, client=("w", client))
        elif action < 0.8:
            h.apply(1)
        elif action < 0.9:
            h.pull(("pull", step), chance.sample(shards, 3))
        elif holds:
            for values in holds.pop(chance.randrange(len(holds))).values:
                values.release()
        for token, answers in list(h.answers.items()):
            answer = answers[-1]
            if isinstance(answer, AnswerPull):
                holds.append(answer)
                assert all(len(set(values.array.tolist())) == 1 for values in answer.values)  # never torn
            elif type(answer).__name__ == "AnswerPush" and chance.random() > 0.3:  # else the answer is lost
                for result in answer.message.results:
                    assert result.code in (0, ErrorCode.SEQUENCE_GAP)
                for result, part in zip(answer.message.results, h.sent[token], strict=True):
                    if not result.code:
                        key = (token[1], part[0])
                        acknowledged[key] = max(acknowledged[key], part[1])
            if type(answer).__name__ != "Keep":
                del h.answers[token]
    h.apply()
    assert [h.value(shard) for shard in shards] == [float(total * 7)] * len(shards)
    assert h.core.queued_bytes == h.core.queued_updates == 0
