"""Decides which pushes are applied while they arrive, and which parts at once (pure); see `arriving_push.py`."""

from __future__ import annotations

from adamctl.roles.ps.core.arriving_push import ArrivingPush
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import Apply, Refuse
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Batch
from adamctl.wire.messages import PushRequest

PIECE_BYTES = 512 << 10
"""Parts are grouped into pieces of about this size: one large shard, or many small ones."""
QUEUED_BYTES_MAX = 64 << 20
"""Of bodies. If more is queued, from several clients, batching is better: an arriving push joins the queue."""


def begin_arrival(
    core: ServerCore,
    connection: int,
    client: ClientKey,
    request: PushRequest,
    body: memoryview,
    now: float,
    piece_bytes: int = PIECE_BYTES,
) -> ArrivingPush | None:
    """Returns a push to be applied while it arrives, or None for one to be taken in when it is complete.

    Parts of steps are not, as they wait for each other anyway. `body` is the buffer being filled; pieces have about
    `piece_bytes`.
    """
    if request.step or request.region or request.job not in core.jobs:
        return None
    if core.crowded or core.queued_bytes > QUEUED_BYTES_MAX:
        return None
    job = core.find(None, connection, request.job, now)
    if isinstance(job, Refuse) or job.refusing or job.short:
        return None
    arriving = ArrivingPush(job, client, request, body)
    return arriving if arriving.cut(piece_bytes) else None


def arrived(core: ServerCore, arriving: ArrivingPush, piece: int, data: memoryview) -> Apply | None:
    """Called when a piece of the body has arrived: returns what to apply at once, before the core gets other events.

    Parts of clients that a shard does not know yet, and refusals, are left until the push is complete.
    """
    job, push, request = arriving.job, arriving.push, arriving.request
    gone = core.jobs.get(job.name) is not job or job.failed is not None
    if gone or job.refusing or job.short or (job.leased and not core.lease_holds()):
        return None
    batches: list[Batch] = []
    for position in arriving.positions[piece]:
        part = request.parts[position]
        shard = job.shards.get(part.shard)
        if shard is None or shard.batch is not None or shard.queue or shard.steps is not None:
            continue
        if request.epochs.get(shard.bucket.index) != shard.bucket.epoch:
            continue
        known = shard.memory.clients.get(arriving.client)
        if known is None or part.sequence != known.accepted + 1:
            continue
        if core.accept(job, push, position, part, arriving.sources, arriving.client, request.epochs) is not None:
            shard.queue[0].source = arriving.source(position, shard, piece, data)
            shard.batch = Batch(shard)
            batches.append(shard.batch)
    push.queued = False  # the body is not needed afterwards, so it is neither kept nor counted
    if not batches:
        return None
    arriving.touched = True
    return Apply(job, 0, batches)
