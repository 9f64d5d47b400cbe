"""What a parameter server says of its jobs in STATUS: plain values, summed and job by job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adamctl.roles.common_status import code_name
from adamctl.roles.ps.core.job import Job, quantile


def counters_of(jobs: Sequence[Job]) -> dict[str, float]:
    """Returns what grows with each job's work, by the names under which `jobs_status` finds the rates."""
    counters = {f"updates {job.name}": float(job.updates) for job in jobs}
    return counters | {f"pushes {job.name}": float(job.pushes) for job in jobs}


def jobs_status(jobs: Sequence[Job], rates: Mapping[str, float], acks: Mapping[str, str]) -> dict[str, Any]:
    """Returns plain values.

    Args:
        jobs: all of the server's.
        rates: of `counters_of(jobs)`, a second.
        acks: job -> when its pushes are acknowledged, of jobs whose record is known.
    """
    histogram = [sum(counts) for counts in zip(*(job.staleness for job in jobs), strict=True)]
    ages = [sum(counts) for counts in zip(*(job.gradient_ages for job in jobs), strict=True)]
    return {
        "jobs": {job.name: _one(job, rates, acks.get(job.name, "")) for job in jobs},
        "buckets": sum(len(job.buckets) for job in jobs),
        "shards": sum(len(job.shards) for job in jobs),
        "bytes": sum(job.size_bytes for job in jobs),
        "updates": sum(job.updates for job in jobs),
        "updates_per_s": sum(rates[f"updates {job.name}"] for job in jobs),
        "pushes": sum(job.pushes for job in jobs),
        "staleness_p50": quantile(histogram, 0.5),
        "staleness_p99": quantile(histogram, 0.99),
        "gradient_age_p50": quantile(ages, 0.5),
        "gradient_age_p99": quantile(ages, 0.99),
    }


def _one(job: Job, rates: Mapping[str, float], acks: str) -> dict[str, Any]:
    if job.failed is not None:
        state = f"failed: {job.failed[1]}"
    else:
        state = "building" if job.building else "serving"
    return {
        "state": state,
        "buckets": len(job.buckets),
        "shards": len(job.shards),
        "bytes": job.size_bytes,
        "rule": job.rule.name,
        "updates": job.updates,
        "updates_per_s": rates[f"updates {job.name}"],
        "pushes": job.pushes,
        "pushes_per_s": rates[f"pushes {job.name}"],
        "refused": job.refusals.total(),
        "refusals": {code_name(code): count for code, count in sorted(job.refusals.items())},
        "acks": acks,
        "rolled_back": {"shards": len(job.rolled_back), "pushes": sum(job.rolled_back.values())},
        "staleness_p50": job.staleness_quantile(0.5),
        "staleness_p99": job.staleness_quantile(0.99),
    }
