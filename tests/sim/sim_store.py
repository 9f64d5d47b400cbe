"""A server's disk: groups of records are atomic; a crash loses the group that is being written, or only its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adamctl.roles.ps.core_flush import FlushConfig
from adamctl.roles.ps.core_sequence import MemoryRecord

FLUSH = FlushConfig(window_s=1.0, window_bytes=1 << 20, retry_s=0.1, log_slack_bytes=1 << 14)
RECORD_BYTES = 100


@dataclass(frozen=True)
class StoredShard:
    """A shard as it is on disk; `number` grows from record to record."""

    number: int
    epoch: int
    counter: int
    pushes: int
    memory: MemoryRecord
    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Holding:
    """A bucket that is held. Records of its shards count from `began` on.

    `whole`: a shard without such a record is as the job began; else the copy was not whole yet.
    """

    epoch: int
    began: int
    whole: bool


@dataclass(frozen=True)
class Written:
    """What a group says: shards, and the buckets that are held, if that has changed."""

    shards: dict[int, StoredShard]
    holding: dict[int, Holding] | None


class SimDisk:
    """What is durable: survives every crash."""

    def __init__(self) -> None:
        self.holding: dict[int, Holding] = {}
        self.shards: dict[int, StoredShard] = {}

    def write(self, written: Written) -> None:
        self.shards |= written.shards
        if written.holding is not None:
            self.holding = dict(written.holding)

    def copy(self) -> SimDisk:
        """Returns what a process finds that starts now."""
        found = SimDisk()
        found.holding, found.shards = dict(self.holding), dict(self.shards)
        return found


class Held:
    """Owner of the record of what is held."""

    def __init__(self) -> None:
        self.buckets: dict[int, Holding] = {}
