"""The status of a job's buckets on one server (pure)."""

from __future__ import annotations

from typing import Any

from adamctl.roles.ps.replication.core.held_bucket import HeldCopy
from adamctl.roles.ps.replication.core.job_buckets import JobReplicas
from adamctl.roles.ps.replication.core.recovery import Kept

KEPT_MAX = 512
"""How many buckets a status lists individually, since it must fit into a header; others are listed later."""


def status_of(copies: JobReplicas) -> dict[int, dict[str, Any]]:
    """Returns this server's part in each bucket that concerns it, and for buckets it serves the other members."""
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


def _part(copies: JobReplicas, bucket: int) -> str:
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


def kept_of(copies: JobReplicas, count_max: int) -> dict[int, Kept]:
    """Returns what the store has of buckets that this server should hold but does not have in memory, at most
    `count_max` of them.

    A bucket found in the store is included until this server or the bucket's primary serves it.
    """
    found: dict[int, Kept] = {}
    failed = copies.job.failed is not None
    for bucket in sorted(copies.known):
        if len(found) == count_max:
            break
        known, held = copies.known[bucket], copies.copies.get(bucket)
        if copies.outbox.node not in known.members or bucket in copies.job.buckets:
            continue
        if held is not None and held.stored:
            found[bucket] = _kept(known.record.epoch, held, failed)
        elif held is None and bucket in copies.lost | copies.abandoned:
            found[bucket] = Kept(known.record.epoch, bucket in copies.abandoned, failed=failed)
    return found


def _kept(epoch: int, held: HeldCopy, failed: bool) -> Kept:
    shards = [shard for shard in held.shards.values() if shard.copy is not None]
    versions = [shard.version for shard in shards]
    pushes = sum(shard.copy.pushes for shard in shards if shard.copy is not None)
    if not versions:
        return Kept(epoch, True, failed=failed)
    return Kept(epoch, True, len(shards), min(versions), max(versions), pushes, failed)
