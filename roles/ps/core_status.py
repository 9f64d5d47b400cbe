"""What is said of a job's buckets on one server (pure)."""

from __future__ import annotations

from typing import Any

from adamctl.roles.ps.core_roles import JobCopies


def status_of(copies: JobCopies) -> dict[int, dict[str, Any]]:
    """Returns per bucket that concerns this server what it is for it, and of those that it serves who else has them."""
    found: dict[int, dict[str, Any]] = {}
    for bucket, known in copies.known.items():
        part = _part(copies, bucket)
        if part:
            members = copies.groups[bucket].members.values() if bucket in copies.groups else ()
            found[bucket] = {
                "epoch": known.record.epoch,
                "part": part,
                "members": {m.node: m.lost or m.part.name.lower() for m in members},
                "left": max((len(m.missing) for m in members), default=0),
            }
    return found


def _part(copies: JobCopies, bucket: int) -> str:
    held = copies.copies.get(bucket)
    if bucket in copies.job.buckets:
        return "primary"
    if bucket in copies.takeovers:
        return "taking over"
    if bucket in copies.building or bucket in copies.job.building:
        return "building"
    if bucket in copies.lost or bucket in copies.abandoned:
        return "lost"
    return "" if held is None else "copy" if held.complete else "learner"
