"""Which pushes are applied as they come, and what of each piece is applied at once (pure); see `arriving_push.py`."""

from __future__ import annotations

from adamctl.roles.ps.core.arriving_push import ArrivingPush
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import Apply, Refuse
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Batch
from adamctl.wire.messages import PushRequest

PIECE_BYTES = 512 << 10
"""Parts are applied together until they are that long: a large shard, or many small ones."""
QUEUED_BYTES_MAX = 64 << 20
"""Of bodies. Where more waits, of several clients, it is better applied together: what comes joins the queue."""


def begin_arrival(
    core: ServerCore,
    connection: int,
    client: ClientKey,
    request: PushRequest,
    body: memoryview,
    now: float,
    piece_bytes: int = PIECE_BYTES,
) -> ArrivingPush | None:
    """Returns a push that is to be applied as it comes, None for one that is to be taken when it is complete.

    Parts of steps wait for each other anyway. `body` is where it will be; pieces have `piece_bytes` if they can.
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
    """A piece of the body is there: returns what is to be applied at once, before anything else is told to the core.

    Clients that a shard does not know are not met on the way, nor is anybody told there that a part is refused.
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
    push.queued = False  # nobody needs the body after this: it is not kept, nor counted
    if not batches:
        return None
    arriving.touched = True
    return Apply(job, 0, batches)
