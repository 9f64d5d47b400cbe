"""Limits how much a server holds of each client for steps that are not complete (pure).

A part of a step is admitted regardless of how much is queued, since the others may be waiting for it. A separate limit
per client keeps a client whose steps never complete from using all the memory.
"""

from __future__ import annotations

from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.push import Push
from adamctl.wire.messages import PushRequest


class HeldBytes:
    """Per client, bytes of pushes with parts that are held for steps, or wait behind such parts."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: limit per client; one more body may exceed it."""
        self._bytes_max = bytes_max
        self._bytes: dict[ClientKey, int] = {}

    def of(self, client: ClientKey) -> int:
        return self._bytes.get(client, 0)

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
