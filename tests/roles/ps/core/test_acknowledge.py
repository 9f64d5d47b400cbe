"""When a push is answered (I4): in memory, on disk, or when the loss window holds again."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.roles.ps.core.admission import APPLIED
from adamctl.roles.ps.core.flush import Entry, FlushConfig, FlushCore
from adamctl.roles.ps.core.instructions import AnswerPush, Free, Instruction, Keep, Refuse
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachRequest
from tests.roles.ps.core_harness import JOB, Harness


class StoringHarness(Harness):
    """A core whose shards have places in a log; `save` writes what is due to a disk that never fails."""

    def __init__(self, durable: bool, **config: Any) -> None:
        self.flush = FlushCore(FlushConfig(**config))
        super().__init__(flush=self.flush)
        self.job.durable = durable
        for shard in self.job.shards.values():
            shard.entry = Entry(shard, 4 * shard.size)
        self.now = 0.0

    def apply(self, count: int | None = None) -> None:
        while self.waiting and count != 0:
            instruction = self.waiting.pop(0)
            self.applier.apply(self.job.rule, instruction.batches)
            self.take(self.core.completed(instruction.job, instruction.batches, self.now))
            count = None if count is None else count - 1

    def save(self) -> list[int]:
        """Writes one group and returns its shards."""
        group = self.flush.take(self.now)
        if group is None:
            return []
        for item in group.items:
            image = self.core.image(item.entry.owner, lambda _: None)
            assert image is not None
            self.flush.taken(item)
            image.release()
        waiters = self.flush.finished([item.entry.size_bytes for item in group.items])
        assert self.core.acknowledgements is not None
        self.take(self.core.acknowledgements.durable(waiters, self.now))
        return [item.entry.owner.index for item in group.items]

    def pushed(self, token: Any) -> list[Instruction]:
        found: list[Instruction] = [free for free in self.others if isinstance(free, Free) and free.token == token]
        return [*found, *(answer for answer in self.answers.get(token, []) if not isinstance(answer, Keep))]


def test_what_becomes_durable_after_its_bucket_has_moved_is_not_acknowledged() -> None:
    """It is on this disk; whether on that of the new primary nobody knows (simulated servers, seed 7070)."""
    harness = StoringHarness(durable=True)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    for shard in harness.job.shards.values():
        shard.entry = None  # it is the copy's that stays here
    harness.job.drop(0)
    harness.save()
    (*_, answer) = harness.pushed("a")
    assert isinstance(answer, AnswerPush)
    assert [result.code for result in answer.message.results] == [ErrorCode.STALE_EPOCH]


def test_applied_is_answered_at_once() -> None:
    harness = StoringHarness(durable=False)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    (answer,) = harness.pushed("a")
    assert isinstance(answer, AnswerPush) and answer.queued


def test_durable_is_answered_when_every_shard_of_the_push_is_on_disk() -> None:
    harness = StoringHarness(durable=True, group_bytes=1)
    harness.push("a", [(0, 1, 1.0), (2, 1, 1.0)])
    harness.apply()
    assert harness.pushed("a") == [Free("a")], "its body is not needed any more"
    assert harness.save() == [0] and not harness.answered("a")
    assert harness.save() == [2] and harness.results("a") == [(0, 0), (0, 0)]
    answer = harness.answers["a"][-1]
    assert isinstance(answer, AnswerPush) and not answer.queued


def test_pushes_of_many_clients_are_on_disk_with_one_record() -> None:
    harness = StoringHarness(durable=True)
    for number in range(6):
        harness.push(number, [(1, 1, 1.0)], client=("w", number + 1))
    harness.apply()
    assert harness.save() == [1] and harness.flush.records == 1
    assert all(harness.answered(number) for number in range(6))


def test_a_repeated_push_that_is_not_on_disk_yet_waits_too() -> None:
    harness = StoringHarness(durable=True)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    harness.push("again", [(0, 1, 1.0)])
    assert not harness.answered("again")
    harness.save()
    assert harness.answered("a") and harness.answered("again") and harness.value(0) == 1.0
    harness.push("later", [(0, 1, 1.0)])
    assert harness.answered("later"), "it is on disk"


def test_a_push_applied_while_its_shard_is_written_waits_for_the_next_record() -> None:
    harness = StoringHarness(durable=True)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    group = harness.flush.take(0.0)
    assert group is not None
    harness.flush.taken(group.items[0])
    harness.push("b", [(0, 2, 1.0)])
    harness.apply()
    assert harness.core.acknowledgements is not None
    harness.take(harness.core.acknowledgements.durable(harness.flush.finished([9]), 0.0))
    assert harness.answered("a") and not harness.answered("b")
    harness.save()
    assert harness.answered("b")


def test_answers_are_held_back_while_the_loss_window_is_exceeded_and_then_given_in_order() -> None:
    harness = StoringHarness(durable=False, window_s=1.0)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    harness.now = 1.5
    harness.push("b", [(1, 1, 1.0)])
    harness.push("c", [(2, 1, 1.0)])
    harness.apply()
    assert harness.answered("a") and not harness.answered("b") and not harness.answered("c")
    assert harness.save() == [0]
    assert harness.answered("b") and harness.answered("c")
    assert harness.core.acknowledgements is not None and not harness.core.acknowledgements.held


def test_those_who_wait_for_a_job_that_ends_are_refused() -> None:
    harness = StoringHarness(durable=True)
    harness.push("a", [(0, 1, 1.0), (1, 1, 1.0)])
    harness.apply()
    harness.take(harness.core.remove_job(JOB))
    refusals = [answer for answer in harness.answers["a"] if isinstance(answer, Refuse)]
    assert [refusal.code for refusal in refusals] == [ErrorCode.NOT_READY], "once, though it waited for two shards"
    assert APPLIED in refusals[0].details
    assert harness.flush.unsaved_bytes == 0


def test_too_many_answers_that_wait_are_refused_before_anything_is_applied(monkeypatch) -> None:
    monkeypatch.setattr("adamctl.roles.ps.core.acknowledge.WAITING_MAX", 1)
    harness = StoringHarness(durable=True)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    harness.push("b", [(0, 2, 1.0)])
    (refusal,) = harness.answers["b"]
    assert isinstance(refusal, Refuse) and refusal.code == ErrorCode.OVER_QUOTA


# --- going on after a restart that took acknowledged pushes back -----------------------------------------------------


def attach(harness: Harness, settled: list[tuple[int, int]]) -> None:
    harness.take(harness.core.attach("attach", 2, ("w", 1), AttachRequest(JOB, harness.layout.hash), 0.0, settled))


def test_a_client_goes_on_with_its_next_number_and_what_was_lost_is_counted() -> None:
    harness = StoringHarness(durable=False)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    attach(harness, [(0, 4), (1, 2)])
    assert harness.job.rolled_back == {0: 3, 1: 2}
    assert harness.answers["attach"][-1].known == [(0, 4), (1, 2)]  # type: ignore[union-attr]
    harness.push("b", [(0, 5, 1.0), (1, 3, 1.0)])
    harness.push("old", [(0, 3, 1.0)])
    harness.apply()
    assert harness.results("b") == [(0, 0), (0, 0)]
    assert harness.value(0) == 2.0, "a number up to there is never applied again"


def test_a_client_that_lost_nothing_changes_nothing() -> None:
    harness = StoringHarness(durable=False)
    harness.push("a", [(0, 1, 1.0)])
    harness.push("b", [(0, 2, 1.0)])
    harness.apply(1)
    attach(harness, [(0, 0)])
    attach(harness, [(0, 1), (99, 3)])
    harness.apply()
    assert harness.job.rolled_back == {} and harness.value(0) == 2.0
    assert np.array_equal(harness.results("b"), [(0, 0)])


class Leased:
    """A lease that a test ends."""

    def __init__(self, harness: StoringHarness) -> None:
        self.holds = True
        harness.job.leased = True
        harness.core.lease_holds = lambda: self.holds
        harness.core.wait_for_copies()


def refusal_of(harness: StoringHarness, token: Any) -> int:
    answer = harness.pushed(token)[-1]
    assert isinstance(answer, Refuse)
    return answer.code


def test_the_lease_is_looked_at_when_what_was_to_be_durable_is() -> None:
    harness = StoringHarness(durable=True)
    lease = Leased(harness)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    lease.holds = False
    harness.save()
    assert refusal_of(harness, "a") == ErrorCode.NOT_READY
    assert harness.core.acknowledgements is not None and not harness.core.acknowledgements.waiting


def test_the_lease_is_looked_at_although_all_was_taken_over_meanwhile() -> None:
    """Then the job has nothing here any more that needs one."""
    harness = StoringHarness(durable=True)
    lease = Leased(harness)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    lease.holds = harness.job.leased = False
    harness.save()
    assert refusal_of(harness, "a") == ErrorCode.NOT_READY


def test_and_when_the_loss_window_holds_again() -> None:
    harness = StoringHarness(durable=False, window_bytes=1)
    lease = Leased(harness)
    harness.push("a", [(0, 1, 1.0)])
    harness.apply()
    assert harness.core.acknowledgements is not None and harness.core.acknowledgements.held
    lease.holds = False
    harness.save()
    assert refusal_of(harness, "a") == ErrorCode.NOT_READY


def test_a_shard_that_does_not_exist_keeps_nobodys_answer_back() -> None:
    """A push with such a part was refused for that part; the others of it, and other pushes, are answered."""
    harness = StoringHarness(durable=True)
    harness.push("odd", [(0, 1, 1.0), (10**6, 1, 1.0)])
    harness.push("good", [(1, 1, 1.0)])
    harness.apply()
    while harness.save():
        pass
    results = {token: harness.pushed(token)[-1] for token in ("odd", "good")}
    assert all(isinstance(answer, AnswerPush) for answer in results.values())
    assert [result.code for result in results["odd"].message.results] == [0, ErrorCode.UNKNOWN_SHARD]  # type: ignore
    assert harness.core.acknowledgements is not None and harness.core.acknowledgements.waiting == 0
