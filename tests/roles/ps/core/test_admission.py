"""What is let in: jobs that a server does not know, and clients whose steps are never complete."""

from __future__ import annotations

from adamctl.roles.ps.core.admission import STARTING, UNKNOWN_JOB_GRACE_S, UNKNOWN_JOBS_MAX, UnknownJobs
from adamctl.roles.ps.core.instructions import Refuse
from adamctl.wire.constants import ErrorCode, UpdateKind
from tests.roles.ps.core_harness import Harness

A, B = ("a", 1), ("b", 1)
SHARDS = 3


# --- a client whose steps are never complete takes its own room, and leaves that of others alone ----------------------


def harness() -> tuple[Harness, int]:
    """A server with room for one body of each client, and one more; returns it with that body's bytes."""
    h = Harness("sgd")
    body_bytes = 4 * max(shard.size for shard in h.job.shards.values())
    return Harness("sgd", queue_bytes_max=4 * body_bytes), body_bytes


def hold(h: Harness, token: str, client: tuple[str, int], sequence: int, place: tuple[int, int, int]) -> bool:
    """Pushes to some shards, each with a body of its own; returns whether all of them were taken in."""
    for shard in range(SHARDS):
        name = f"{token} {shard}"
        h.push(name, [(shard, sequence, 1.0)], client=client, kind=UpdateKind.GRADIENT, place=place)
    h.apply()
    return not any(refused(h, f"{token} {shard}") for shard in range(SHARDS))


def refused(h: Harness, token: str) -> bool:
    answer = h.answers[token][-1]
    return isinstance(answer, Refuse) and answer.code == ErrorCode.OVER_QUOTA


def test_parts_of_steps_that_are_never_complete_are_held_up_to_a_bound() -> None:
    h, body_bytes = harness()
    assert not hold(h, "part", A, 1, (1, 0, 2))
    assert refused(h, "part 2") and not refused(h, "part 0")
    held_bytes = h.core.queued_bytes
    assert h.core.held.of(A) == held_bytes <= 2 * body_bytes + body_bytes
    for attempt in range(20):  # twins and what would wait behind are no way around it
        h.push(f"twin {attempt}", [(0, 2, 1.0)], client=A, kind=UpdateKind.GRADIENT, place=(1, 0, 2))
        h.push(f"plain {attempt}", [(0, 2, 1.0)], client=A, kind=UpdateKind.GRADIENT)
        assert refused(h, f"twin {attempt}") and refused(h, f"plain {attempt}")
    assert h.core.queued_bytes == held_bytes


def test_the_room_is_there_again_when_the_step_is_complete() -> None:
    h, _ = harness()
    hold(h, "part", A, 1, (1, 0, 2))
    hold(h, "others", B, 1, (1, 1, 2))
    assert h.answered("part 0") and h.answered("others 0")
    for token, client, place in (("part", A, 0), ("others", B, 1)):
        for shard in range(SHARDS):
            if refused(h, f"{token} {shard}"):
                again = f"{token} {shard} again"
                h.push(again, [(shard, 1, 1.0)], client=client, kind=UpdateKind.GRADIENT, place=(1, place, 2))
                h.apply()
    assert [h.value(shard) for shard in range(SHARDS)] == [-2] * SHARDS
    assert h.core.queued_bytes == h.core.held.of(A) == h.core.held.of(B) == 0


def test_what_others_wait_for_is_let_in() -> None:
    """Two clients that hold different shards to their bounds, each in want of the other's, both go on."""
    h, _ = harness()
    for client, place, shards in ((A, 0, (0, 1, 2)), (B, 1, (2, 1, 0))):
        for shard in shards:
            token = f"{client} {shard}"
            h.push(token, [(shard, 1, 1.0)], client=client, kind=UpdateKind.GRADIENT, place=(1, place, 2))
            h.apply()
    assert refused(h, f"{A} 2")
    assert not refused(h, f"{B} 1") and not refused(h, f"{B} 0")
    h.push("again", [(2, 1, 1.0)], client=A, kind=UpdateKind.GRADIENT, place=(1, 0, 2))
    h.apply()
    assert [h.value(shard) for shard in range(SHARDS)] == [-2] * SHARDS
    assert h.core.queued_bytes == 0


def test_plain_pushes_are_not_counted() -> None:
    h, _ = harness()
    for sequence in range(1, 4):
        h.push(f"plain {sequence}", [(0, sequence, 1.0)], client=A, kind=UpdateKind.GRADIENT)
    assert h.core.queued_bytes and h.core.held.of(A) == 0


# --- jobs that a server does not know: for a while it may yet hear of them --------------------------------------------


def code(jobs: UnknownJobs, now: float, name: str = "a") -> int:
    return jobs.refuse(object(), name, now).code


def test_first_not_yet_and_then_never() -> None:
    jobs = UnknownJobs()
    assert code(jobs, 5.0) == ErrorCode.NOT_READY
    assert code(jobs, 4.9 + UNKNOWN_JOB_GRACE_S) == ErrorCode.NOT_READY
    assert code(jobs, 5.0 + UNKNOWN_JOB_GRACE_S) == ErrorCode.UNKNOWN_JOB
    jobs.known("a")
    assert code(jobs, 6.0 + UNKNOWN_JOB_GRACE_S) == ErrorCode.NOT_READY


def test_who_has_not_been_told_of_any_job_denies_none() -> None:
    """A server that loads for longer than clients are patient must not send them away for good."""
    jobs = UnknownJobs()
    jobs.begin(told=False)
    assert code(jobs, 0.0) == code(jobs, 1000.0) == ErrorCode.NOT_READY
    assert STARTING in jobs.refuse(object(), "a", 1000.0).message
    jobs.begin(told=True)
    assert STARTING not in jobs.refuse(object(), "a", 1000.5).message
    assert code(jobs, 1001.0) == ErrorCode.NOT_READY, "the time counts from when it was told"
    assert code(jobs, 1001.0 + UNKNOWN_JOB_GRACE_S) == ErrorCode.UNKNOWN_JOB


def test_names_are_bounded() -> None:
    jobs = UnknownJobs()
    for number in range(2 * UNKNOWN_JOBS_MAX):
        assert code(jobs, 0.0, f"job-{number}") == ErrorCode.NOT_READY
    assert len(jobs._since) == UNKNOWN_JOBS_MAX
