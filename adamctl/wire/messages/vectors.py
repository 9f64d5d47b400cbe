"""Typed headers of a batch algorithm's messages to parameter servers (DistBelief 4.2, docs/decisions/0032)."""

from __future__ import annotations

from adamctl.wire.messages.common import Message


class EvaluateRequest(Message, frozen=True):
    """Opens an evaluation of the objective at the vector `at`, on the buckets in `epochs`.

    `evaluation`: from 1, never repeated within a job. Empties the accumulator and forgets which bundles were counted;
    where this evaluation has been opened before, `at`, which may have been written again, can be pulled, and nothing
    else changes. `fraction_bits`: q of the accumulator, in units of 2^-q. `bundles`: how many are to be counted.
    `last_round`: see `CommitRequest`.
    """

    job: str
    epochs: dict[int, int]
    evaluation: int
    at: str
    fraction_bits: int
    bundles: int
    last_round: int = -1


class AccumulateRequest(Message, frozen=True):
    """Adds weight x gradient of one bundle to the accumulators of some shards, each at most once.

    Body: float32; the gradient of each shard at its byte in `offsets`. `region` other than 0: there is no body, and the
    gradients are in this region of the client's memory (MEMORY_REGISTER). `weight`: see docs/formats/wire.md.
    """

    job: str
    epochs: dict[int, int]
    evaluation: int
    bundle: int
    weight: float
    shards: tuple[int, ...]
    offsets: tuple[int, ...]
    region: int = 0


class AccumulateResult(Message, frozen=True):
    """What became of a bundle on one shard: `code` OK if it is counted there, now or before."""

    shard: int
    code: int
    epoch: int
    message: str = ""


class AccumulateReply(Message, frozen=True):
    """One result per shard, in order. `routing` maps buckets to newer epochs if the request's were old."""

    results: tuple[AccumulateResult, ...]
    routing: dict[int, int] = {}


class RoundRequest(Message, frozen=True):
    """Carries out commands that write scratch vectors only, and find numbers; body: the commands, MessagePack.

    `number`: from 1, increasing within a job; a shard answers its last one again from memory and refuses earlier ones.
    `evaluation`: of which the accumulator is, if a command reads it; else 0. `after`: the commit that shards are at;
    others do nothing and answer SEQUENCE_GAP; -1: any.
    """

    job: str
    epochs: dict[int, int]
    number: int
    evaluation: int = 0
    after: int = -1


class CommitRequest(Message, frozen=True):
    """Carries out commands that write kept vectors only, all of a shard or none; body: the commands, MessagePack.

    `number`: from 1, each one above the last; where it has been carried out nothing changes. `anew`: a shard whose last
    number is another one takes it, too, after stores have taken shards back to different numbers.
    `evaluation`: as in a round. `last_round`: the last one that was sent before; a shard that has carried out a later
    one has other scratch than this request is about, and refuses it with STALE_ROUND; -1: any.
    """

    job: str
    epochs: dict[int, int]
    number: int
    evaluation: int = 0
    anew: bool = False
    last_round: int = -1


class BucketVectors(Message, frozen=True):
    """What became of a request on one bucket, and what is there: of several shards the least of each.

    `commit`, `round`: the last number of each that was carried out; `commit_most`: by the shard that is furthest, as a
    takeover in the middle of a commit leaves some shards of a bucket one commit behind. `scratch`: the scratch vectors
    that were written since this server took the bucket over. `evaluation`: the last one opened since then, 0 if none;
    `missing`: bundles of it that are not counted yet; `at`: the vector that can be pulled for it, empty if that was
    written meanwhile.
    """

    bucket: int
    code: int
    epoch: int
    commit: int = 0
    round: int = 0
    evaluation: int = 0
    missing: int = 0
    at: str = ""
    scratch: tuple[str, ...] = ()
    message: str = ""
    commit_most: int = 0


class VectorsReply(Message, frozen=True):
    """Answers EVALUATE, ROUND and COMMIT: one result per bucket, in the order of `epochs`.

    Of a round, the body has for each reduction, in order, float64 numbers whose exact sum (the largest of which, for
    `max_abs`) is what the buckets with code OK have; `lengths` says how many for each.
    """

    results: tuple[BucketVectors, ...]
    routing: dict[int, int] = {}
    lengths: tuple[int, ...] = ()
