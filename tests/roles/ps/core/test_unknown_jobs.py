"""Jobs that a server does not know: for a while it may yet hear of them."""

from __future__ import annotations

from adamctl.roles.ps.core.unknown_jobs import STARTING, UNKNOWN_JOB_GRACE_S, UNKNOWN_JOBS_MAX, UnknownJobs
from adamctl.wire.constants import ErrorCode


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
