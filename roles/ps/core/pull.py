"""How a pull gets shards, each at one version, and its answer; what waits for a shard's batch to end (pure)."""

from __future__ import annotations

from collections.abc import Callable

from adamctl.model.commands import PARAMETERS
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES
from adamctl.roles.ps.core.admission import NO_LEASE
from adamctl.roles.ps.core.buffers import Lent, Values
from adamctl.roles.ps.core.instructions import AnswerPull, GiveImage, Instruction, Refuse
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.shard import Pull, Shard
from adamctl.roles.ps.core.validate import shard_refusal
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import PulledPart, PullReply, PullRequest

MOVED = "the bucket has moved to another server"


def gather(job: Job, pull: Pull, request: PullRequest) -> bool:
    """Gives a pull its shards; those being overwritten follow later. Returns whether it has all of them."""
    for position, index in enumerate(request.shards):
        shard = job.shards.get(index)
        if shard is None or request.epochs.get(shard.bucket.index) != shard.bucket.epoch:
            code, message = shard_refusal(job, index, request.epochs)
            pull.parts[position] = PulledPart(index, code, 0, 0, 0, 0, 0, 0, message)
        elif request.vector:
            _hold_vector(pull, position, shard, request)
        elif shard.batch is not None and shard.batch.in_place:
            shard.waiting.append((pull, position))
            pull.missing += 1
        else:
            hold(pull, position, shard)
    return not pull.missing


def hold(pull: Pull, position: int, shard: Shard) -> None:
    """Gives a pull the shard at its current version.

    The push that brings initial values is not reported before a restart would find those values.
    """
    _take(pull, position, shard, shard.values)


def _take(pull: Pull, position: int, shard: Shard, values: Values) -> None:
    values.readers += 1
    pull.values[position] = values
    entry = shard.memory.clients.get(pull.client)
    done = entry.done if entry is not None else 0
    epoch, size = shard.bucket.epoch, shard.size
    pushes = 0 if shard.initial_values_volatile else shard.pushes
    pull.parts[position] = PulledPart(shard.index, 0, epoch, shard.counter, pushes, done, position, size)


def _hold_vector(pull: Pull, position: int, shard: Shard, request: PullRequest) -> None:
    """Gives a pull the vector at which an evaluation was opened, or says why it cannot have it.

    It is not being written then: what is about to be written can no longer be pulled.
    """
    code, message = int(ErrorCode.WRONG_KIND), "the job has no vectors but its parameters"
    if shard.vectors is not None:
        code, message = shard.vectors.pull_outcome(request.vector, request.evaluation)
    if code or shard.vectors is None:
        pull.parts[position] = PulledPart(shard.index, code, shard.bucket.epoch, 0, 0, 0, 0, 0, message)
    elif request.vector == PARAMETERS:
        _take(pull, position, shard, shard.values)
    elif request.vector in shard.vectors.names:
        _take(pull, position, shard, Lent(shard.state, shard.vectors.names[request.vector]))
    else:
        _take(pull, position, shard, shard.vectors.scratch[request.vector])


def finish_pull(pull: Pull) -> AnswerPull:
    """Lays the values out consecutively, without padding, in the order of the request."""
    offset = 0
    parts: list[PulledPart] = []
    for part in pull.parts:
        assert part is not None
        if not part.code:
            part = PulledPart(part.shard, 0, part.epoch, part.version, part.pushes, part.sequence, offset, part.size)
            offset += part.size * WIRE_ELEMENT_BYTES[pull.dtype]
        parts.append(part)
    values = [values for values in pull.values if values is not None]
    return AnswerPull(pull.token, PullReply(tuple(parts), pull.routing), values, pull.dtype)


def answer_waiting(job: Job, shard: Shard, lost: str, lease_holds: Callable[[], bool], out: list[Instruction]) -> None:
    """Gives a shard's new version to the pulls, and to takers of images, that waited for its batch.

    `lost`: if not empty, why the version is unusable. A pull is refused if another server may serve its shards by now.
    """
    for pull, position in shard.waiting:
        if lost:
            pull.parts[position] = PulledPart(shard.index, ErrorCode.INTERNAL, 0, 0, 0, 0, 0, 0, lost)
        elif shard.bucket.dropped:
            known = job.epochs.get(shard.bucket.index, 0)
            pull.parts[position] = PulledPart(shard.index, ErrorCode.STALE_EPOCH, known, 0, 0, 0, 0, 0, MOVED)
        else:
            hold(pull, position, shard)
        pull.missing -= 1
        if pull.missing:
            continue
        if job.leased and not lease_holds():
            for values in pull.values:
                if values is not None:
                    values.release()
            out.append(Refuse(pull.token, ErrorCode.NOT_READY, NO_LEASE))
        else:
            out.append(finish_pull(pull))
    shard.waiting.clear()
    out.extend(GiveImage(take, shard.image()) for take in shard.image_takers)
    shard.image_takers.clear()
