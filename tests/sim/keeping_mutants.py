"""Planted faults of what a server makes of its jobs: each a mistake that is easily made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from adamctl.config.records import BucketRecord, decode, encode
from adamctl.roles.ps.core.instructions import Instruction
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.job_keeping import JobKeeping, Stock, WriteHolding
from adamctl.roles.ps.core.job_records import JobView
from adamctl.wire.messages import ConfigChanges
from tests.sim.server_cluster import ServerCluster, ServerFault
from tests.sim.shell_mutants import one_copy

_looked, _new_epochs = JobKeeping.looked, JobKeeping._new_epochs
_measured, _built = JobKeeping.measured, JobKeeping.built


def _restarts(cluster: ServerCluster) -> None:
    one_copy(cluster, "crash", "crash", "crash-all", "weather", "full", "controller")


def _full_disks(cluster: ServerCluster) -> None:
    """Disks are full when the job begins, so that servers die before they serve anything."""
    one_copy(cluster, "crash", "crash", "crash-all", "full")

    def fill() -> None:
        for server in cluster.servers.values():
            server.disk_full = True

    cluster.world.after(0.6, fill)


# --- what becomes of buckets that were lost -------------------------------------------------------------------------


def _copies_kept_singly(self: JobKeeping, job: Job, view: JobView, stock: Stock) -> list[Instruction]:
    return _looked(self, job, view, replace(stock, copied=False))


def _under_old_epochs(self: JobKeeping, name: str, view: JobView, lost: Sequence[int], stored: Any) -> ConfigChanges:
    changes = _new_epochs(self, name, view, lost, stored)
    records = {key: decode(value, BucketRecord) for key, value in changes.puts.items()}
    puts = {key: encode(msgspec.structs.replace(one, epoch=one.epoch - 1)) for key, one in records.items()}
    return ConfigChanges(changes.conditions, puts)


# --- making buckets -------------------------------------------------------------------------------------------------


def _from_the_beginning(self: JobKeeping, job: Job, *rest: Any) -> list[Instruction]:
    self._resumed.clear()
    return _measured(self, job, *rest)


def _holding_left_out(self: JobKeeping, job: Job, view: JobView, buckets: Sequence[int]) -> list[Instruction]:
    return [one for one in _built(self, job, view, buckets) if not isinstance(one, WriteHolding)]


MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "copies-kept-singly",
            "a server goes on alone with buckets that have other copies",
            [(JobKeeping, "looked", _copies_kept_singly)],
        ),
        ServerFault(
            "store-not-trusted",
            "a job is given up though the store has all that was lost",
            [(JobKeeping, "_whole", lambda self, lost, stored: False)],
            _restarts,
        ),
        ServerFault(
            "taken-up-from-nothing",
            "buckets are taken up again that the store does not have",
            [(JobKeeping, "_whole", lambda self, lost, stored: True)],
            _full_disks,
        ),
        ServerFault(
            "under-old-epochs",
            "buckets are taken up again under the epochs that they had",
            [(JobKeeping, "_new_epochs", _under_old_epochs)],
            _restarts,
        ),
        ServerFault(
            "from-the-beginning",
            "what is taken up again is not read back from the store",
            [(JobKeeping, "measured", _from_the_beginning)],
            _restarts,
        ),
        ServerFault(
            "holding-left-out",
            "buckets are served without a record that they are held",
            [(JobKeeping, "built", _holding_left_out)],
            _restarts,
        ),
    )
}
