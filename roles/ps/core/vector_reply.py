"""What answers say of vectors: what each bucket has, what a round has found, what became of a bundle (pure; 0032).

A bucket of several shards has the least of what each of them has: they are worked on one by one, and one may fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.pull import MOVED
from adamctl.roles.ps.core.shard_vectors import DONE, Outcome
from adamctl.roles.ps.core.vector_requests import Addition, Round, VectorRequest, vectors_of
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AccumulateReply, AccumulateResult, BucketVectors


def bucket_result(job: Job, bucket: int, work: VectorRequest) -> BucketVectors:
    """Returns what became of a request on one of its buckets, and what that has now."""
    epoch, shards = job.epochs.get(bucket, 0), work.buckets.get(bucket, ())
    code, message = work.refused[bucket] if not shards else _merged([work.outcomes[shard.index] for shard in shards])
    if shards and shards[0].bucket.dropped:
        code, message = ErrorCode.STALE_EPOCH, MOVED  # whatever was done: it is not known what is there now
    if not shards or shards[0].bucket.dropped:
        return BucketVectors(bucket, code, epoch, message=message)
    all_of = [vectors_of(shard) for shard in shards]
    first = all_of[0]
    evaluation = min(vectors.evaluation for vectors in all_of)
    return BucketVectors(
        bucket,
        code,
        epoch,
        commit=min(shard.memory.commit for shard in shards),
        round=min(vectors.round for vectors in all_of),
        evaluation=evaluation,
        missing=max(vectors.missing for vectors in all_of) if evaluation else 0,
        at=first.at if all(vectors.at == first.at for vectors in all_of) else "",
        scratch=tuple(sorted(frozenset.intersection(*(frozenset(vectors.scratch) for vectors in all_of)))),
        message=message,
        commit_most=max(shard.memory.commit for shard in shards),
    )


def found_of(work: Round, results: Sequence[BucketVectors]) -> tuple[tuple[int, ...], list[float]]:
    """Returns how many numbers there are for each reduction of a round, and all of them, from buckets without error."""
    totals = work.prepared.new_totals()
    for one in results:
        for shard in () if one.code else work.buckets.get(one.bucket, ()):
            totals.merge(work.found[shard.index])
    parts = totals.parts()
    return tuple(len(part.numbers) for part in parts), [number for part in parts for number in part.numbers]


def accumulate_reply(job: Job, work: Addition) -> AccumulateReply:
    """Returns what became of a bundle's gradient on each shard."""
    bucket_of = job.layout.bucket_of_shard
    results = []
    for index in work.asked:
        code, message = work.outcomes[index]
        epoch = job.epochs.get(bucket_of[index], 0) if 0 <= index < len(bucket_of) else 0
        results.append(AccumulateResult(index, code, epoch, message))
    return AccumulateReply(tuple(results), work.routing)


def _merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Returns the first refusal, or that all is well."""
    return next((outcome for outcome in outcomes if outcome[0]), DONE)
