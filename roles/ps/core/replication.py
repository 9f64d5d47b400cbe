"""The interface through which a server's core drives the replication of its buckets (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from adamctl.roles.ps.core.instructions import Instruction
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.shard import Shard


class Replication(Protocol):
    """The copies of this server's buckets."""

    def changed(self, job: Job, shards: Iterable[Shard]) -> list[Instruction]:
        """Ships the result of batches: they are done, and the next ones have not begun."""

    def abandon(self, job: Job, damaged: set[int]) -> list[Instruction]:
        """Called when values of buckets were damaged; see `ReplicationCore.abandon`."""
