"""Decides when a fully settled push is answered: at once, when it is durable, when copies have it, or when unsaved
changes are within the loss window again (pure).

Three levels (docs/formats/store.md, docs/decisions/0015-replication.md): `applied` answers when the push is in memory,
but delays answers while more is unsaved than the loss window allows; `replicated` answers when every in-sync copy has
prepared every shard's state that contains the push; `durable` answers when those states are on disk everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import msgspec

from adamctl.roles.ps.core.admission import APPLIED, NO_LEASE
from adamctl.roles.ps.core.flush import Entry, FlushCore, Waiter
from adamctl.roles.ps.core.instructions import AnswerPush, AnswerVectors, Free, Instruction, Refuse
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.replicas import ShardReplicas
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BucketVectors, PushResult

WAITING_MAX = 1 << 16
MOVED = "the bucket moved before all of its copies had this push"

Answer: TypeAlias = AnswerPush | AnswerVectors
"""Of a push, or of a commit of vectors."""


class CopiesWaiter(Waiter):
    """A waiter for copies of shards, and perhaps for the log: `copies` are the shards, `job` is their job.

    `leased`: other servers could take the shards over when the wait began. They may all have been taken over since, so
    that nothing of the job here needs a lease any more.
    """

    __slots__ = ("copies", "job", "leased")

    def __init__(self, job: Job, copies: Sequence[tuple[ShardReplicas, int]]) -> None:
        super().__init__(None)
        self.job, self.copies, self.leased = job, copies, job.leased


class Acknowledgements:
    """The delayed answers of one server.

    Attributes:
        waiting: pushes that wait to be durable, or for copies.
        held: pushes whose answers are delayed by the loss window.
    """

    def __init__(self, flush: FlushCore | None, lease_holds: Callable[[], bool] | None = None) -> None:
        self._flush = flush
        self.lease_holds = lease_holds
        self.waiting = 0
        self._held: deque[tuple[Answer, Waiter]] = deque()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def crowded(self) -> bool:
        return self.waiting + len(self._held) >= WAITING_MAX

    def take(
        self,
        answer: Answer,
        stored: Iterable[tuple[Entry, int]],
        job: Job,
        now: float,
        waiter: CopiesWaiter | None = None,
    ) -> list[Instruction]:
        """Returns what to do with a push, or a commit, whose parts are all settled.

        Args:
            stored: entries of the shards it changed, each with the change count that must be durable before the answer.
            waiter: a waiter that already waits for copies; None if there are no copies to wait for.
        """
        alone = waiter is None
        if waiter is None:
            waiter = CopiesWaiter(job, ())
        if self._flush is not None:
            for entry, changes in stored:
                self._flush.wait(waiter, entry, changes)
        over_limit = bool(self._held) or (self._flush is not None and self._flush.over_limit(now))
        if not waiter.missing and not over_limit:
            return [answer] if alone else self._final(answer, waiter)
        later = replace(answer, queued=False)
        if waiter.missing:
            waiter.token = later
            self.waiting += 1
        else:
            self._held.append((later, waiter))
        return [Free(answer.token)] if answer.queued else []

    def take_copies(
        self,
        answer: Answer,
        stored: Iterable[tuple[Entry, int]],
        copies: Sequence[tuple[ShardReplicas, int]],
        job: Job,
        now: float,
    ) -> list[Instruction]:
        """Like `take`, for a push to shards with copies elsewhere: `copies` are those, each with the counter it must
        reach. If empty, only the lease is checked.
        """
        waiter = CopiesWaiter(job, copies)
        for replica, counter in copies:
            replica.wait(waiter, counter)
        return self.take(answer, stored, job, now, waiter)

    def _final(self, answer: Answer, waiter: Waiter) -> list[Instruction]:
        """Returns the answer, or a refusal if it is no longer valid."""
        if not isinstance(waiter, CopiesWaiter):
            return [answer]
        last = self._last_look(answer, waiter)
        return [Free(answer.token), last] if answer.queued and isinstance(last, Refuse) else [last]

    def _last_look(self, answer: Answer, waiter: CopiesWaiter) -> Answer | Refuse:
        """Checks a push again when the copies have it, because the set of copies may have changed meanwhile.

        A refusal does no harm: the client sends the push again and learns that it was applied. If it hears instead that
        it was forgotten meanwhile, it knows from the refusal that it must not push the same again.
        """
        job = waiter.job
        if (waiter.leased or job.leased) and self.lease_holds is not None and not self.lease_holds():
            return Refuse(answer.token, ErrorCode.NOT_READY, NO_LEASE, {APPLIED: True})
        groups = {replica.group for replica, _ in waiter.copies}
        short = next((group for group in groups if group.short and not group.gone), None)
        if short is not None:
            why = job.short.get(short.bucket, "too few copies are in sync")
            return Refuse(answer.token, ErrorCode.NOT_READY, why, {APPLIED: True})
        gone = _buckets_of(answer, job) - job.buckets.keys()
        gone |= {group.bucket for group in groups if group.gone}
        return _without(answer, gone, job) if gone else answer

    def durable(self, waiters: Iterable[Waiter], now: float) -> list[Instruction]:
        """Answers pushes whose wait is over, and delayed ones if unsaved changes are within the loss window again."""
        out = self.over(waiters)
        if self._held and (self._flush is None or not self._flush.over_limit(now)):
            for answer, waiter in self._held:
                out.extend(self._final(answer, waiter))
            self._held.clear()
        return out

    def over(self, waiters: Iterable[Waiter]) -> list[Instruction]:
        """Answers pushes whose wait is over. A waiter may also hold an answer to another server."""
        out: list[Instruction] = []
        for waiter in waiters:
            token, waiter.token = waiter.token, None
            if isinstance(token, AnswerPush | AnswerVectors):
                self.waiting -= 1
                out.extend(self._final(token, waiter))
            elif isinstance(waiter, CopyWaiter) and token is not None:
                out.append(token)
        return out

    def fail_waiters(self, waiters: Iterable[Waiter], code: int, message: str) -> list[Instruction]:
        """Refuses pushes that waited for shards no longer held here: they were applied, but will never be durable."""
        out: list[Instruction] = []
        for waiter in waiters:
            token, waiter.token = waiter.token, None
            if isinstance(token, AnswerPush | AnswerVectors):
                self.waiting -= 1
                out.append(Refuse(token.token, code, message, {APPLIED: True}))
            elif isinstance(waiter, CopyWaiter) and token is not None:
                out.append(Refuse(token.token, code, message))
        return out


class CopyWaiter(Waiter):
    """A primary's wait until its states are durable in a copy here; the token is a `Reply`."""

    __slots__ = ()


def _buckets_of(answer: Answer, job: Job) -> set[int]:
    if isinstance(answer, AnswerVectors):
        return {result.bucket for result in answer.message.results}
    bucket_of = job.layout.bucket_of_shard  # a part that was refused may name no shard of the job
    return {bucket_of[result.shard] for result in answer.message.results if 0 <= result.shard < len(bucket_of)}


def _without(answer: Answer, gone: set[int], job: Job) -> Answer:
    """Returns an answer that says of some buckets that they are served elsewhere."""
    code, known = ErrorCode.STALE_EPOCH, {bucket: job.epochs.get(bucket, 0) for bucket in gone}
    routing = {**answer.message.routing, **known}
    if isinstance(answer, AnswerVectors):
        said = answer.message
        left = tuple(
            BucketVectors(r.bucket, code, known[r.bucket], message=MOVED) if r.bucket in gone else r
            for r in said.results
        )
        return replace(answer, message=msgspec.structs.replace(said, results=left, routing=routing))
    bucket_of = job.layout.bucket_of_shard

    def moved(result: PushResult) -> PushResult:
        bucket = bucket_of[result.shard] if 0 <= result.shard < len(bucket_of) else -1
        if bucket not in gone:
            return result
        applied = result.code in (ErrorCode.OK, code)
        return PushResult(result.shard, code, known[bucket], result.version if applied else 0, 0, MOVED)

    results = tuple(map(moved, answer.message.results))
    return replace(answer, message=msgspec.structs.replace(answer.message, results=results, routing=routing))
