"""Carries a batch algorithm's requests on its vectors through their shards' queues (pure; docs/decisions/0032).

Every shard does one piece of work at a time, in the order of arrival. What a piece comes to is decided when its turn
comes. A request is answered when all its pieces are settled; a commit when its copies, or the disk, have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import isfinite

from adamctl.errors import ConfigurationError
from adamctl.kernels.numeric.accumulate import FRACTION_BITS_MAX
from adamctl.model.commands import ACCUMULATOR, PARAMETERS, Command, Reduce, check_commands, inputs_of
from adamctl.roles.ps.core.admission import LOST, RECOVERS, not_now
from adamctl.roles.ps.core.instructions import (
    AnswerAccumulate,
    AnswerVectors,
    Compute,
    Instruction,
    Keep,
    Recover,
    Refuse,
)
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.pull import MOVED, answer_waiting
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.shard_vectors import BUNDLES_MAX, Outcome
from adamctl.roles.ps.core.validate import check_epochs, shard_refusal
from adamctl.roles.ps.core.vector_reply import accumulate_reply, bucket_result, found_of
from adamctl.roles.ps.core.vector_requests import (
    Addition,
    Commit,
    Opening,
    Round,
    VectorBatch,
    VectorRequest,
    vectors_of,
)
from adamctl.wire.codec import decode_commands
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    AccumulateRequest,
    CommitRequest,
    EvaluateRequest,
    RoundRequest,
    VectorsReply,
)

NUMBER_MAX = 1 << 62


class VectorCore:
    """The vectors of all jobs of one server."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core

    # --- requests -----------------------------------------------------------------------------------------------------

    def evaluate(self, token: Token, connection: int, request: EvaluateRequest, now: float) -> list[Instruction]:
        """Opens an evaluation."""
        job = self._find(token, connection, request.job, request.epochs, False, now)
        if isinstance(job, Refuse):
            return [job]
        numbers = 1 <= request.evaluation <= NUMBER_MAX and 1 <= request.bundles <= BUNDLES_MAX
        if not numbers or not 0 <= request.fraction_bits <= FRACTION_BITS_MAX:
            what = (
                f"expected an evaluation from 1, up to {BUNDLES_MAX} bundles and {FRACTION_BITS_MAX} fraction bits; "
                f"found {request.evaluation}, {request.bundles} and {request.fraction_bits}"
            )
            return [Refuse(token, ErrorCode.BAD_CONFIGURATION, what)]
        places = (PARAMETERS, *job.rule.state_names, *job.rule.scratch_names)
        if request.at not in places:
            what = f"expected to evaluate at one of {', '.join(places)}; found {request.at!r}"
            return [Refuse(token, ErrorCode.BAD_CONFIGURATION, what)]
        numbers_of = request.evaluation, request.at, request.fraction_bits, request.bundles, request.last_round
        work = Opening(token, *numbers_of)
        return self._begin(job, work, request.epochs, now)

    def round(
        self, token: Token, connection: int, request: RoundRequest, body: bytes | memoryview, now: float
    ) -> list[Instruction]:
        """Carries out commands that write scratch. `body`: the commands."""
        job = self._find(token, connection, request.job, request.epochs, False, now)
        if isinstance(job, Refuse):
            return [job]
        commands = _commands(token, job, body, request.number, request.evaluation, job.rule.scratch_names)
        if isinstance(commands, Refuse):
            return [commands]
        work = Round(token, request.number, commands, request.evaluation, request.after)
        return self._begin(job, work, request.epochs, now)

    def commit(
        self, token: Token, connection: int, request: CommitRequest, body: bytes | memoryview, now: float
    ) -> list[Instruction]:
        """Carries out commands that write what is kept. `body`: the commands."""
        job = self._find(token, connection, request.job, request.epochs, True, now)
        if isinstance(job, Refuse):
            return [job]
        writable = (PARAMETERS, *job.rule.state_names)
        commands = _commands(token, job, body, request.number, request.evaluation, writable)
        if isinstance(commands, Refuse):
            return [commands]
        if any(isinstance(command, Reduce) for command in commands):
            return [Refuse(token, ErrorCode.BAD_CONFIGURATION, "a commit finds no numbers; ask for them in a round")]
        work = Commit(token, request.number, commands, request.evaluation, request.anew, request.last_round)
        return self._begin(job, work, request.epochs, now)

    def accumulate(
        self, token: Token, connection: int, request: AccumulateRequest, body: memoryview, now: float
    ) -> list[Instruction]:
        """Adds the gradient of a bundle; every shard counts it, or refuses it, for itself."""
        job = self._find(token, connection, request.job, request.epochs, False, now)
        if isinstance(job, Refuse):
            return [job]
        core = self._core
        if core.crowded:
            return [Refuse(token, ErrorCode.OVER_QUOTA, f"{core.queued_bytes} bytes of updates wait; retry later")]
        if not isfinite(request.weight):
            return [Refuse(token, ErrorCode.NOT_FINITE, f"expected a finite weight; found {request.weight}")]
        if len(request.shards) != len(request.offsets) or len(set(request.shards)) != len(request.shards):
            what = f"{len(request.shards)} shards, {len(request.offsets)} offsets"
            return [Refuse(token, ErrorCode.BAD_MESSAGE, f"expected different shards and an offset of each: {what}")]
        work = Addition(token, request.evaluation, request.bundle, request.weight, body)
        work.asked = request.shards
        work.held_bytes = 0 if request.region else len(body)
        out: list[Instruction] = []
        check_epochs(job, request.epochs, work.routing, out)
        shards: list[Shard] = []
        for index, offset in zip(request.shards, request.offsets, strict=True):
            shard = job.shards.get(index)
            if shard is None or request.epochs.get(shard.bucket.index) != shard.bucket.epoch:
                work.outcomes[index] = shard_refusal(job, index, request.epochs)
            elif offset < 0 or offset % 4 or offset + 4 * shard.size > len(body):
                what = f"expected {shard.size} float32 at byte {offset} of a body of {len(body)}"
                work.outcomes[index] = (ErrorCode.WRONG_LENGTH, what)
            else:
                work.places[index] = offset
                shards.append(shard)
        return self._queue(job, work, shards, now, out)

    def _find(
        self, token: Token, connection: int, name: str, epochs: Collection[int], commits: bool, now: float
    ) -> Job | Refuse:
        job = self._core.find(token, connection, name, now)
        if isinstance(job, Refuse):
            return job
        if not job.has_vectors:
            return Refuse(token, ErrorCode.WRONG_KIND, f"job {name!r} has the rule {job.rule.name}, and no vectors")
        return not_now(token, job, epochs, commits) or job

    # --- pieces of work -----------------------------------------------------------------------------------------------

    def _begin(self, job: Job, work: VectorRequest, epochs: dict[int, int], now: float) -> list[Instruction]:
        """Takes in a request for whole buckets."""
        out: list[Instruction] = []
        check_epochs(job, epochs, work.routing, out)
        shards: list[Shard] = []
        work.asked = tuple(epochs)
        for bucket, epoch in epochs.items():
            state = job.buckets.get(bucket)
            if state is None or state.epoch != epoch:
                work.refused[bucket] = _bucket_refusal(job, bucket, epochs)
                continue
            described = job.layout.buckets[bucket]
            work.buckets[bucket] = [job.shards[i] for i in range(described.shard_start, described.shard_stop)]
            shards += work.buckets[bucket]
        return self._queue(job, work, shards, now, out)

    def _queue(
        self, job: Job, work: VectorRequest, shards: list[Shard], now: float, out: list[Instruction]
    ) -> list[Instruction]:
        work.remaining += len(shards)
        for shard in shards:
            vectors_of(shard).queue.append(work)
        begun: list[Instruction] = []
        self._start(job, shards, now, begun)
        self._settled(job, work, now, begun)
        if work.remaining and isinstance(work, Addition):
            work.queued = True
            self._core.queued_bytes += work.held_bytes
            out.append(Keep(work.token))
        return out + begun

    def _start(self, job: Job, shards: Iterable[Shard], now: float, out: list[Instruction]) -> None:
        """Begins the next piece of each idle shard; one instruction per thread."""
        by_thread: dict[int, list[VectorBatch]] = {}
        for shard in shards:
            queue = vectors_of(shard).queue
            while shard.batch is None and queue:
                work: VectorRequest = queue.popleft()
                outcome = (ErrorCode.STALE_EPOCH, MOVED) if shard.bucket.dropped else work.outcome(shard)
                if outcome is None:
                    shard.batch = batch = work.batch(shard)
                    by_thread.setdefault(shard.thread, []).append(batch)
                else:
                    self._settle(job, shard, work, outcome, now, out)
        out.extend(Compute(job, thread, batches) for thread, batches in by_thread.items())

    def completed(self, job: Job, batches: list[VectorBatch], now: float = 0.0) -> list[Instruction]:
        """An apply thread has carried out pieces of work of one job."""
        core = self._core
        if core.flush is not None and any(batch.damaged and not batch.shard.bucket.dropped for batch in batches):
            return [Recover(f"job {job.name!r}: {RECOVERS}")]  # whoever is not answered asks again
        out: list[Instruction] = []
        shipped: list[Shard] = []
        for batch in batches:
            shard, work = batch.shard, batch.request
            shard.batch = None
            if isinstance(work, Commit) and shard.replica is not None:
                shipped.append(shard)  # also if it failed: whoever was to be sent the shard has waited for it
            if work.finish(batch):
                shard.memory.retire(core.retired, shard.counter)
                if core.flush is not None and shard.entry is not None:
                    core.flush.changed(shard.entry, now, arrays=vectors_of(shard).places(work.targets))
            if batch.damaged:
                batch.spoil()
            moved = shard.bucket.dropped
            outcome = (ErrorCode.STALE_EPOCH, MOVED) if moved else (batch.code, batch.message)
            self._settle(job, shard, work, outcome, now, out)
            answer_waiting(job, shard, LOST if batch.damaged else "", core.lease_holds, out)
        damaged = {batch.shard.bucket.index for batch in batches if batch.damaged}
        if damaged:
            out.extend(core.give_up(job, damaged))
        if shipped and core.replication is not None:
            out.extend(core.replication.changed(job, shipped))
        self._start(job, [batch.shard for batch in batches], now, out)
        return out

    def _settle(
        self, job: Job, shard: Shard, work: VectorRequest, outcome: Outcome, now: float, out: list[Instruction]
    ) -> None:
        work.outcomes[shard.index] = outcome
        if isinstance(work, Commit) and not outcome[0]:
            shard.hold_back(work, job.durable)
        self._settled(job, work, now, out)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _settled(self, job: Job, work: VectorRequest, now: float, out: list[Instruction]) -> None:
        """One piece of a request is settled, or all of it is taken in."""
        work.remaining -= 1
        if work.remaining:
            return
        if isinstance(work, Addition):
            self._core.queued_bytes -= work.held_bytes if work.queued else 0
            job.pushes += work.queued
            out.append(AnswerAccumulate(work.token, accumulate_reply(job, work), work.queued))
            return
        results = [bucket_result(job, bucket, work) for bucket in work.asked]
        lengths, numbers = found_of(work, results) if isinstance(work, Round) else ((), [])
        answer = AnswerVectors(work.token, VectorsReply(tuple(results), work.routing, lengths), numbers)
        acknowledgements = self._core.acknowledgements
        if acknowledgements is None or not isinstance(work, Commit):
            out.append(answer)
        elif work.copies is None and not job.leased:
            out.extend(acknowledgements.take(answer, work.stored, job, now))
        else:
            out.extend(acknowledgements.take_copies(answer, work.stored, work.copies or (), job, now))


def _commands(
    token: Token, job: Job, body: bytes | memoryview, number: int, evaluation: int, writable: Collection[str]
) -> tuple[Command, ...] | Refuse:
    """Returns the commands in a body, or why they cannot be carried out at all."""
    try:
        commands = decode_commands(body)
    except ConfigurationError as error:
        return Refuse(token, ErrorCode.BAD_MESSAGE, str(error))
    try:
        check_commands(commands, (PARAMETERS, *job.rule.state_names, *job.rule.scratch_names), writable)
    except ConfigurationError as error:
        return Refuse(token, ErrorCode.BAD_CONFIGURATION, str(error))
    if not 1 <= number <= NUMBER_MAX:
        return Refuse(token, ErrorCode.BAD_CONFIGURATION, f"expected a number from 1; found {number}")
    if ACCUMULATOR in inputs_of(commands) and evaluation < 1:
        what = f"commands that read the {ACCUMULATOR} name its evaluation; found {evaluation}"
        return Refuse(token, ErrorCode.BAD_CONFIGURATION, what)
    return commands


def _bucket_refusal(job: Job, bucket: int, epochs: dict[int, int]) -> Outcome:
    if not 0 <= bucket < len(job.layout.buckets):
        what = f"job {job.name!r} has {len(job.layout.buckets)} buckets; found {bucket}"
        return ErrorCode.UNKNOWN_SHARD, what
    return shard_refusal(job, job.layout.buckets[bucket].shard_start, epochs)
