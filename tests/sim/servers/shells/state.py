"""What a simulated server holds at a moment, as invariants and other servers look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adamctl.roles.lease import Lease
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.jobs.keeper import JobKeeper
from adamctl.roles.ps.replication.core.held_bucket import HeldCopy, HeldShard
from adamctl.roles.ps.replication.core.replication_core import ReplicationCore
from adamctl.roles.ps.server import ParameterServer
from adamctl.roles.ps.store.record import ShardState, StoredRecord
from adamctl.roles.ps.store.recovered_jobs import found_jobs
from tests.sim.engine import Clock, World
from tests.sim.processes.process import Member, SimProcess
from tests.sim.servers.ledger import Done, done_of
from tests.sim.servers.shells.log_disk import SimLogDisk

if TYPE_CHECKING:
    from tests.sim.controllers.controller import SimController
    from tests.sim.servers.invariants import ServerInvariants


class ServerState(SimProcess):
    """One parameter server, process after process.

    Attributes:
        disk: what survives.
        shell: the server's shells and cores; None while the process is down.
        ready: it is a member, and answers.
        core: None while the process is down or not registered.
    """

    member: Member
    lease: Lease
    shell: ParameterServer | None
    ready: bool

    def __init__(
        self,
        world: World,
        name: str,
        clock: Clock,
        hosts: Mapping[str, SimController],
        lease_s: float,
        invariants: ServerInvariants,
        job: str,
    ) -> None:
        super().__init__(world, name, clock)
        self.hosts, self.lease_s, self.invariants, self.job_name = hosts, lease_s, invariants, job
        self.disk = SimLogDisk(world.random, lambda: world.now_s)
        self.shell, self.ready = None, False
        self._found_buckets: set[int] = set()

    @property
    def disk_full(self) -> bool:
        return self.disk.full

    @disk_full.setter
    def disk_full(self, full: bool) -> None:
        self.disk.full = full

    @property
    def disk_s_max(self) -> float:
        return self.disk.sync_s_max

    @disk_s_max.setter
    def disk_s_max(self, seconds: float) -> None:
        self.disk.sync_s_max = seconds

    # --- its parts --------------------------------------------------------------------------------------------------

    @property
    def core(self) -> ServerCore | None:
        shell = self.shell
        return shell.core if shell is not None and shell._keeper.replicating is not None else None

    @property
    def keeper(self) -> JobKeeper:
        assert self.shell is not None
        return self.shell._keeper

    @property
    def replication(self) -> ReplicationCore:
        replicating = self.keeper.replicating
        assert replicating is not None
        return replicating.core

    @property
    def registered_revision(self) -> int:
        """Of the configuration, when the process was registered; 0: it does not know yet."""
        return self.keeper.registered_revision

    @property
    def incarnation(self) -> int:
        return self.member.incarnation if self.run else 0

    @property
    def job(self) -> Job | None:
        return self.core.jobs.get(self.job_name) if self.core is not None else None

    def serving(self) -> dict[int, float]:
        """Returns the buckets that this server answers for, and until when in true time."""
        job = self.job
        if job is None or job.failed is not None:
            return {}
        until_s = float("inf")
        if job.leased:
            until_s = self.world.now_s + self.clock.true_delay_s(self.lease.until_s)
        return {index: until_s for index in job.buckets if index not in job.refusing}

    def why_not_serving(self, index: int) -> str:
        if self.core is None:
            return "it has not started its replication yet"
        return str(self.replication.status()) + f" lease {self.lease.valid()}"

    # --- shards -----------------------------------------------------------------------------------------------------

    def owner_of(self, index: int) -> Shard | HeldShard | None:
        """Returns a shard that this server serves, or holds as a copy."""
        job = self.job
        if job is None:
            return None
        if index in job.shards:
            return job.shards[index]
        copy = self.copy(job.layout.bucket_of_shard[index])
        return copy.shards[index] if copy is not None else None

    def owners_of(self, index: int) -> list[Shard | HeldShard]:
        """Returns the shards of a bucket, served or held as a copy, as far as they are there."""
        shards = self.invariants.shards_of(index)
        return [found for shard in shards if (found := self.owner_of(shard)) is not None]

    def content_of(self, index: int) -> tuple[Sequence[np.ndarray[Any, Any]], Done] | None:
        """Returns a shard's values and state, and what is in them; None: it is not held."""
        found = self.owner_of(index)
        if isinstance(found, Shard):
            return (found.values.array, *found.state.arrays), done_of(found.memory)
        if found is not None and found.copy is not None:
            return found.arrays, done_of(found.memory.record())
        return None

    def done_of(self, index: int) -> Done | None:
        content = self.content_of(index)
        return content[1] if content is not None else None

    # --- buckets ----------------------------------------------------------------------------------------------------

    def copy(self, index: int) -> HeldCopy | None:
        return self.replication.copies(self.job_name).get(index) if self.core is not None else None

    def has_in_memory(self, index: int) -> bool:
        """Says whether a bucket would be there if all other servers were gone."""
        job, copy = self.job, self.copy(index)
        return job is not None and (index in job.buckets or (copy is not None and copy.complete and not copy.stored))

    def remember_found(self, records: Sequence[StoredRecord]) -> None:
        """Notes which buckets this process finds on its disk, but for copies of which not every shard had arrived."""
        jobs, _ = found_jobs(records)
        ours = [job for identity, job in jobs.items() if identity.name == self.job_name]
        self._found_buckets = {
            bucket
            for job in ours
            for bucket, (_, began) in job.holding.buckets.items()
            if bucket not in job.holding.received or self._is_whole(bucket, began, records)
        }

    def _is_whole(self, index: int, began: int, records: Sequence[StoredRecord]) -> bool:
        """Says whether each shard of a bucket has a record of a number from `began` on."""
        states = [one.description for one in records if one.sequence >= began]
        shards = {one.shard for one in states if isinstance(one, ShardState) and one.job.name == self.job_name}
        return shards >= set(self.invariants.shards_of(index))

    def has_in_store(self, index: int) -> bool:
        """Says whether this process has found all of a bucket on its disk."""
        return self.alive and index in self._found_buckets

    def holds_since_learning(self, index: int) -> bool:
        """Says whether the process that learnt a bucket is the one that is there."""
        return self.core is not None and 0 < self.registered_revision < self.invariants.record_revisions_before[index]

    def lived_since(self, revision: int) -> bool:
        """Says whether the process was there before a revision."""
        return self.core is not None and 0 < self.registered_revision < revision
