"""What the core of a server asks of whoever keeps copies of its buckets on other servers (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from adamctl.roles.ps.core.instructions import Instruction
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.shard import Shard


class Replication(Protocol):
    """The copies of this server's buckets."""

    def changed(self, job: Job, shards: Iterable[Shard]) -> list[Instruction]:
        """Batches are done and the next ones have not begun: their outcome is to be shipped."""

    def abandon(self, job: Job, damaged: set[int]) -> list[Instruction]:
        """Values of buckets were damaged: see `ReplicationCore.abandon`."""
