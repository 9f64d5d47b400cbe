"""Decides whether requests are let in at this moment (pure).

A job that is not known here may still become known, so at first its clients are told to retry. A part of a step is
admitted regardless of how much is queued, since the others may be waiting for it: a separate limit per client keeps a
client whose steps never complete from using all the memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.flush import FlushCore
from adamctl.roles.ps.core.instructions import AnswerAttach, Instruction, Refuse
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.push import Push, Token
from adamctl.roles.ps.core.replication import Replication
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachReply, AttachRequest, PushRequest

LOST = "the server failed while it overwrote parameters, see its log; resume the run from its last checkpoint"
RECOVERS = "the server failed while it overwrote parameters, see its log; start it again, it continues from its store"
NO_LEASE = "this server's lease has expired, so another server may serve its buckets now; retry"
UNKNOWN_JOB_GRACE_S = 10.0
UNKNOWN_JOBS_MAX = 256
STILL_BUILDING = "building"
"""In the details of NOT_READY: this server is making buckets, and how many."""
APPLIED = "applied"
"""In the details of NOT_READY: the push was applied here all the same; whether that lasts is not known."""
STARTING = "this server is still starting (the first one on a machine compiles its kernels)"


def attach_refusal(token: Token, job: Job, request: AttachRequest) -> Refuse | None:
    """Returns why a client cannot attach to a job now, or None if it can.

    What an attaching client reports is stored with the shards, so all shards to be served here must be present.
    """
    if job.failed is not None:
        return Refuse(token, *job.failed)
    if request.layout_hash != job.layout_hash:
        return Refuse(
            token,
            ErrorCode.LAYOUT_MISMATCH,
            f"job {job.name!r} has parameter layout {job.layout_hash}, the client has {request.layout_hash}; "
            "both must run the same model on the same number of servers",
        )
    if job.building:
        why = f"job {job.name!r}: {len(job.building)} buckets are being built"
        return Refuse(token, ErrorCode.NOT_READY, why, {STILL_BUILDING: len(job.building)})
    if not job.placed:
        return Refuse(token, ErrorCode.NOT_READY, f"job {job.name!r}: it is not known yet where its buckets are")
    if job.taking:
        why = job.refusing.get(min(job.taking), "buckets are being taken over")
        return Refuse(token, ErrorCode.NOT_READY, f"job {job.name!r}: {why}")
    return None


def attached(
    token: Token,
    job: Job,
    client: ClientKey,
    settled: Iterable[tuple[int, int]],
    now: float,
    flush: FlushCore | None,
    replication: Replication | None,
) -> list[Instruction]:
    """Answers an attaching client with those of its numbers that are known here.

    `settled`: (shard, number) pairs; the client knows the outcome of every push up to that number.
    """
    passed = [job.go_on_from(index, client, number) for index, number in settled]
    changed = [shard for shard in passed if shard is not None]
    for shard in changed:
        if flush is not None and shard.entry is not None:
            flush.changed(shard.entry, now, 0)
    found = ((shard.index, shard.memory.clients.get(client)) for shard in job.shards.values())
    known = [(index, entry.accepted) for index, entry in found if entry is not None and entry.accepted]
    epochs = {bucket.index: bucket.epoch for bucket in job.buckets.values()}
    shipped = replication.changed(job, changed) if changed and replication is not None else []
    return [AnswerAttach(token, AttachReply(epochs, job.rolled_back_of.get(client, 0)), known), *shipped]


def save_refusal(token: Token, job: Job, leased: bool, lease_holds: bool) -> Refuse | None:
    """Returns why a checkpoint of a job's buckets must not be written, or not be answered; None if it may.

    Call it before and after writing: what was read while others could serve the buckets may be outdated.

    Args:
        leased: whether others could take buckets over when writing began, or can now.
        lease_holds: whether our lease holds now; if it does, it has held throughout.
    """
    if job.failed is not None:
        return Refuse(token, *job.failed)
    return Refuse(token, ErrorCode.NOT_READY, NO_LEASE) if leased and not lease_holds else None


def not_now(token: Token, job: Job, epochs: Iterable[int], pushes: bool) -> Refuse | None:
    """Returns why a request for buckets with copies elsewhere cannot be served now; None if it can.

    A refusal concerns the whole request; nothing of it is consumed, so it can be sent again unchanged.
    """
    for reasons in (job.refusing, job.short if pushes else {}):
        for bucket in epochs if reasons else ():
            if bucket in reasons:
                return Refuse(token, ErrorCode.NOT_READY, reasons[bucket])
    return None


def no_pushes(token: Token) -> Refuse:
    """Refuses a push to a job whose vectors are changed by commands."""
    what = "commands change what this job's servers hold: send gradients of bundles to its accumulator"
    return Refuse(token, ErrorCode.WRONG_KIND, what)


class UnknownJobs:
    """Remembers since when unknown jobs have been asked for; the oldest are forgotten first.

    Attributes:
        told: whether this server has received the cluster's jobs at all. A server that just started has not, and
            clients may connect before that.
    """

    def __init__(self) -> None:
        self.told = True
        self._since: dict[str, float] = {}

    def begin(self, told: bool) -> None:
        """Starts over."""
        self.told = told
        self._since.clear()

    def known(self, name: str) -> None:
        self._since.pop(name, None)

    def refuse(self, token: Token, name: str, now: float) -> Refuse:
        """Refuses a request for an unknown job; at first with NOT_READY, as the job may still become known."""
        if len(self._since) >= UNKNOWN_JOBS_MAX and name not in self._since:
            self._since.pop(next(iter(self._since)))
        since = self._since.setdefault(name, now)
        if not self.told:
            return Refuse(token, ErrorCode.NOT_READY, f"job {name!r} is not known here yet: {STARTING}")
        if now - since < UNKNOWN_JOB_GRACE_S:
            return Refuse(token, ErrorCode.NOT_READY, f"job {name!r} is not known here yet")
        return Refuse(token, ErrorCode.UNKNOWN_JOB, f"there is no job {name!r} here")


class HeldBytes:
    """Per client, bytes of pushes with parts that are held for steps, or wait behind such parts."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: limit per client; one more body may exceed it."""
        self._bytes_max = bytes_max
        self._bytes: dict[ClientKey, int] = {}

    def of(self, client: ClientKey) -> int:
        return self._bytes.get(client, 0)

    def refuse(self, token: Token, client: ClientKey) -> Refuse:
        what = f"{self.of(client)} bytes of this client wait for the parts of others; retry later"
        return Refuse(token, ErrorCode.OVER_QUOTA, what)

    def admits(self, job: Job, client: ClientKey, request: PushRequest) -> bool:
        """Returns whether a push may be taken in: its client is within its limit, or others wait for it."""
        if self.of(client) <= self._bytes_max:
            return True
        shards = (job.shards.get(part.shard) for part in request.parts)
        steps = (shard.steps for shard in shards if shard is not None)
        return any(one is not None and one.lacks(request.step, request.step_part, client) for one in steps)

    def take(self, client: ClientKey, push: Push) -> None:
        push.holder = client
        self._bytes[client] = self.of(client) + push.held_bytes

    def give_back(self, push: Push) -> None:
        """Releases a push's bytes when it is answered."""
        if push.holder is None:
            return
        left = self.of(push.holder) - push.held_bytes
        if left:
            self._bytes[push.holder] = left
        else:
            self._bytes.pop(push.holder, None)
