"""Planted faults of what a server makes of buckets that it has lost: each a mistake that is easily made."""

from __future__ import annotations

from typing import Any

import msgspec

from adamctl.config.records import BucketRecord
from adamctl.roles.ps.core.instructions import Instruction, Load
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.jobs.copy_builder import Copies
from adamctl.roles.ps.replication.core.job_buckets import JobReplicas, VersionedRecord
from adamctl.roles.ps.replication.core.outbox import Outbox
from adamctl.roles.ps.replication.core.proposals import Proposals
from tests.sim.servers.cluster import ServerCluster, ServerFault
from tests.sim.servers.mutants.shells import one_copy

_loaded, _emit = JobReplicas.loaded, Outbox.emit
_propose = Proposals._propose


def _restarts(cluster: ServerCluster) -> None:
    one_copy(cluster, "crash", "crash", "crash-all", "weather", "full", "controller")


def _moves(cluster: ServerCluster) -> None:
    """Buckets move to a server on which none was placed, and it dies."""
    one_copy(cluster, *("fourth", "drain", "drain", "drain", "crash", "crash", "crash-all", "heal"))


def _full_disks(cluster: ServerCluster) -> None:
    """Disks are full when the job begins, so that servers die before they serve anything."""
    one_copy(cluster, "crash", "crash", "crash-all", "full")

    def fill() -> None:
        for server in cluster.servers.values():
            server.disk_full = True

    cluster.world.after(0.6, fill)


# --- what becomes of buckets that were lost -------------------------------------------------------------------------


def _alone_with_copies(self: JobReplicas, known: VersionedRecord) -> bool:
    return known.record.primary == self.outbox.node


def _store_not_trusted(self: JobReplicas, bucket: int, contents: Any, now: float) -> None:
    _loaded(self, bucket, None, now)


def _under_old_epochs(self: Proposals, bucket: int, record: BucketRecord, conditions: Any = None) -> None:
    if "from the store" in record.why:
        record = msgspec.structs.replace(record, epoch=record.epoch - 1)
    _propose(self, bucket, record, conditions)


def _from_the_beginning(self: Outbox, *instructions: Instruction) -> None:
    made = [Load(one.job, one.buckets, True) if isinstance(one, Load) else one for one in instructions]
    _emit(self, *made)


# --- making buckets -------------------------------------------------------------------------------------------------


async def _told_nobody(self: Copies, job: Job, view: JobView) -> None:
    """Whoever is given a bucket tells nobody."""


MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "copies-kept-singly",
            "a server goes on alone with buckets that have other copies",
            [(JobReplicas, "is_alone", _alone_with_copies)],
        ),
        ServerFault(
            "store-not-trusted",
            "a job is given up though the store has all that was lost",
            [(JobReplicas, "loaded", _store_not_trusted)],
            _restarts,
        ),
        ServerFault(
            "taken-up-from-nothing",
            "buckets that were served and are not in the store are made as the job began",
            [(JobView, "never_served", lambda self, *members: True)],
            _full_disks,
        ),
        ServerFault(
            "under-old-epochs",
            "buckets are taken up again under the epochs that they had",
            [(Proposals, "_propose", _under_old_epochs)],
            _restarts,
        ),
        ServerFault(
            "from-the-beginning",
            "what is taken up again is not read back from the store",
            [(Outbox, "emit", _from_the_beginning)],
            _restarts,
        ),
        ServerFault(
            "alone-untold",
            "a server is left alone with a bucket before everybody can know that it has it, and its store is not asked",
            [
                (Proposals, "_is_told", lambda self, node: True),
                (Copies, "_tell", _told_nobody),
                (Copies, "_with_records", lambda self, instruction: []),
            ],
            _moves,
        ),
    )
}
