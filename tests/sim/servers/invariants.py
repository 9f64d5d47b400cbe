"""What must hold of copies after every event: who may serve, and what a change of a record may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from adamctl.config.records import BucketRecord, DrainRecord, NodeRecord, bucket_key, decode, drain_key, node_key
from adamctl.model.layout import ParameterLayout
from adamctl.roles.controller.core.paxos.messages import Entry
from adamctl.roles.controller.core.service.config import ControllerConfig
from tests.sim.controllers.invariants import Invariants
from tests.sim.controllers.nodes import Leases
from tests.sim.engine import ViolationError, World
from tests.sim.servers.ledger import Ledger

if TYPE_CHECKING:
    from tests.sim.servers.shells.server import SimServer

COPIES_MIN = 2


class ServerInvariants(Invariants):
    """Also sees every record of a bucket at the moment at which it is decided.

    Attributes:
        records: bucket -> its record, as decided.
        servers: by name; set by the cluster.
        leases_hold: clocks are no more wrong than the leases allow for (I1).
        copies_min: members that a bucket is to have at least.
        min_in_sync: without so many nothing is acknowledged.
        on_joined: called with a bucket that has a new member.
        on_moved: called with a bucket of which one member is left.
        gentle: nothing has gone wrong for a while, so that nobody is removed who is only slow (I12).
    """

    def __init__(
        self, world: World, config: ControllerConfig, leases: Leases, ledger: Ledger, layout: ParameterLayout, job: str
    ) -> None:
        super().__init__(world, config, leases)
        self.ledger, self.layout, self.job, self.leases = ledger, layout, job, leases
        self.records: dict[int, BucketRecord] = {}
        self.record_revisions: dict[int, int] = {}
        self.record_revisions_before: dict[int, int] = {}
        self.servers: dict[str, SimServer] = {}
        self.host_of: dict[str, str] = {}
        self.leases_hold = True
        self.copies_min = COPIES_MIN
        self.min_in_sync = 1
        self.on_joined: Callable[[int], None] = lambda index: None
        self.on_moved: Callable[[int], None] = lambda index: None
        self.gentle = False
        self._buckets = {bucket_key(job, bucket.index): bucket.index for bucket in layout.buckets}
        self._serving: dict[int, dict[str, float]] = {bucket.index: {} for bucket in layout.buckets}
        self.changes = self.takeovers = self.total_losses = 0

    def _first(self, entry: Entry) -> None:
        before = self.truth.revision
        super()._first(entry)
        if self.truth.revision == before:
            return
        changes = self.truth.changes("/", before)
        for changed in changes.entries:
            index = self._buckets.get(changed.key)
            if index is not None:
                old, new = self.records.get(index), decode(changed.value, BucketRecord)
                self.record_revisions_before[index] = self.record_revisions.get(index, 0)
                self.records[index], self.record_revisions[index] = new, changed.revision
                self.world.note("config", "bucket", index, new.epoch, new.primary, new.in_sync, new.learners, new.why)
                if old is not None:
                    self._changed(index, old, new)
            elif changed.key.startswith("/nodes/"):
                self.world.note("config", "node", changed.key, decode(changed.value, NodeRecord).incarnation)
        for key in changes.deleted:
            self.world.note("config", "lost", key)

    # --- records ----------------------------------------------------------------------------------------------------

    def incarnation(self, node: str) -> int:
        """Returns which process of a name the controllers take to be living, 0 if none."""
        entry = self.truth.get(node_key(node))
        return decode(entry.value, NodeRecord).incarnation if entry is not None else 0

    def is_drained(self, node: str) -> bool:
        """Whether the living process of a name is to hold nothing, in whatever order an operator's changes came."""
        entry = self.truth.get(drain_key(node))
        return entry is not None and decode(entry.value, DrainRecord).incarnation == self.incarnation(node)

    def _changed(self, index: int, old: BucketRecord, new: BucketRecord) -> None:
        self.changes += 1
        if new.epoch != old.epoch + 1:
            raise ViolationError(f"bucket {index} goes from epoch {old.epoch} to {new.epoch}")
        if new.primary not in new.in_sync or len(set(new.in_sync)) != len(new.in_sync):
            raise ViolationError(f"bucket {index} is to be served by {new.primary} and held by {new.in_sync}")
        if set(new.in_sync) & set(new.learners):
            raise ViolationError(f"bucket {index} has members that learn: {new.in_sync}, {new.learners}")
        if new.primary != old.primary:
            self.takeovers += 1
            if new.primary not in old.in_sync:
                raise ViolationError(f"bucket {index} is taken over by {new.primary}, which is not of {old.in_sync}")
            if self.ledger.acks == "applied" and not new.why.startswith("handed over"):
                self.ledger.all_lost(self.shards_of(index))  # who had it, beside a copy that it was moving to, is lost
        for node in new.in_sync:
            if node not in old.in_sync:
                self._joined(index, old, node)
                self.on_joined(index)
        if len(new.in_sync) == 1 < len(old.in_sync):
            self.on_moved(index)
        self._left(index, old, new)
        self._spared(index, old, new)
        if self._in_memory(index, old) and not self._in_memory(index, new):
            self._all_lost(index)  # who removed the others has died since, before it could know that it had

    def _joined(self, index: int, old: BucketRecord, node: str) -> None:
        """A learner becomes a member: it holds all that was acknowledged (I11), unless its process has died since."""
        if node not in old.learners:
            raise ViolationError(f"a member that was no learner: bucket {index}, {node}")
        server = self.servers[node]
        if not server.holds_since_learning(index):
            return
        for shard in self.shards_of(index):
            done = server.done_of(shard)
            if done is None:
                raise ViolationError(f"a member without a shard: bucket {index}, {node}, shard {shard}")
            if self.ledger.acks != "applied":  # then what has just been answered may still be on its way there
                self.ledger.serves(f"{node}, which becomes a member,", shard, done)

    def _left(self, index: int, old: BucketRecord, new: BucketRecord) -> None:
        """In gentle weather nobody is taken away who would be missed (I12)."""
        if not self.gentle or len(new.in_sync) >= self.copies_min:
            return
        for node in old.in_sync:
            server = self.servers[node]
            if node not in new.in_sync and server.alive and server.incarnation == self.incarnation(node):
                living = [other for other in self.servers.values() if other.alive]
                if len(living) >= self.copies_min and server.lived_since(self.record_revisions[index]):
                    raise ViolationError(
                        f"too few copies: bucket {index} goes from {old.in_sync} to {new.in_sync}, {new.why}"
                    )

    def _spared(self, index: int, old: BucketRecord, new: BucketRecord) -> None:
        """No member that the controllers take to be living is removed while nothing is acknowledged without it (I4).

        Else a primary that hears nobody removes everybody who is well, and takes all that they have with it. Who is
        just taking a bucket over may: it waits for the states of all members.
        """
        takes_over = new.primary not in self._serving[index]
        if len(new.in_sync) >= self.min_in_sync or new.why.startswith("recovered") or takes_over:
            return
        for node in old.in_sync:
            server = self.servers[node]
            if node not in new.in_sync and server.incarnation == self.incarnation(node) and server.has_in_memory(index):
                raise ViolationError(
                    f"a member is removed that is needed: bucket {index} goes from {old.in_sync} to {new.in_sync}, "
                    f"{new.why}; {node} lives and {self.min_in_sync} are to be in sync"
                )

    def shards_of(self, index: int) -> range:
        bucket = self.layout.buckets[index]
        return range(bucket.shard_start, bucket.shard_stop)

    # --- servers ----------------------------------------------------------------------------------------------------

    def serves(self, server: SimServer, until_s: dict[int, float]) -> None:
        """Says until when, in true time, a server takes itself for the primary of which buckets (I1)."""
        now_s = self.world.now_s
        for index, others in self._serving.items():
            mine = until_s.get(index)
            if mine is None:
                others.pop(server.name, None)
                continue
            others[server.name] = mine
            if self.leases_hold and mine > now_s and len(others) > 1:
                for name, other_s in others.items():
                    if name != server.name and other_s > now_s:
                        left_s = min(mine, other_s) - now_s
                        text = f"two primaries: bucket {index} is served by {server.name} and by {name}"
                        raise ViolationError(f"{text}, for another {left_s:.3f} s")

    def began_to_serve(self, server: SimServer, index: int, epoch: int) -> None:
        """All that was acknowledged is there (I4).

        Where only epochs protect, a bucket may have been taken from who has just completed an earlier takeover of it:
        that one gets nothing acknowledged any more.
        """
        if not self.leases_hold and epoch < self.records[index].epoch:
            return
        for shard in self.shards_of(index):
            done = server.done_of(shard)
            if done is None:
                raise ViolationError(f"{server.name} serves bucket {index} without shard {shard}")
            self.ledger.serves(server.name, shard, done)
            self.ledger.begins(shard, done)

    def crashed(self, server: SimServer) -> None:
        """If no member is left that has a bucket in memory, only what is on disk has to come back."""
        for index, record in self.records.items():
            if server.name in record.in_sync and not self._in_memory(index, record, but=server.name):
                self._all_lost(index)

    def disk_lost(self) -> None:
        """What came before may have been on that disk alone, as if the others had had no room."""
        self.ledger.disk_full()
        for index, record in self.records.items():
            if not self._in_memory(index, record):
                self.ledger.all_lost(self.shards_of(index))

    def _in_memory(self, index: int, record: BucketRecord, but: str = "") -> bool:
        return any(self.servers[node].has_in_memory(index) for node in record.in_sync if node != but)

    def _all_lost(self, index: int) -> None:
        self.total_losses += 1
        self.world.note("world", "ALL LOST", "bucket", index)
        self.ledger.all_lost(self.shards_of(index))

    def hopeless(self) -> bool:
        """Says whether a bucket is neither in the memory nor, whole, in the store of any member (I4).

        Only an operator could give it up. Nothing may have been acknowledged as durable, or before the loss window.
        """
        for index, record in self.records.items():
            members = [self.servers[node] for node in record.in_sync]
            if any(server.has_in_memory(index) or server.has_in_store(index) for server in members):
                continue
            if self.ledger.promises and any(self.ledger.owes(shard) for shard in self.shards_of(index)):
                raise ViolationError(f"acknowledged as durable, and lost: bucket {index}")
            return True
        return False

    def given_up(self) -> None:
        """The servers say that a bucket is gone for good: it must be."""
        if not self.hopeless():
            raise ViolationError("a job is given up, and all of its buckets are there")

    def not_served(self, index: int) -> str:
        """Returns why a bucket has no primary that serves it; empty: it has one (I13)."""
        record = self.records[index]
        server = self.servers[record.primary]
        if server.alive and self._serving[index].get(record.primary, -1.0) > self.world.now_s:
            return ""
        return f"{record.primary} does not serve: {server.why_not_serving(index) if server.alive else 'it is dead'}"

    def check_copies(self, replication: int, hosts: list[str]) -> None:
        """Every bucket has all its copies, nowhere else, and they are the same (I13, I6).

        `hosts` may hold some. Where they are too few for two copies, all of them do, and servers that are drained keep
        theirs.
        """
        least = most = min(replication, len(hosts))
        needed: list[str] = []
        if len(hosts) < min(replication, COPIES_MIN):
            needed, hosts = hosts, list(self.servers)
            least, most = min(replication, COPIES_MIN), replication
        for index, record in self.records.items():
            held = set(record.in_sync)
            if not (least <= len(held) <= most and held.issuperset(needed) and held.issubset(hosts)) or record.learners:
                found = f"held by {record.in_sync}, learnt by {record.learners}"
                raise ViolationError(
                    f"copies are missing in the end: bucket {index} is to have {least} on {hosts}; it is {found}"
                )
            if not needed:
                self._check_apart(index, record, hosts)

    def _check_apart(self, index: int, record: BucketRecord, servers: list[str]) -> None:
        """Copies are on different machines while there is another."""
        there = {self.host_of.get(node, "h") for node in record.in_sync}
        machines = {self.host_of.get(node, "h") for node in servers}
        if len(there) < min(len(machines), len(record.in_sync)):
            raise ViolationError(f"copies share a host: bucket {index} on {record.in_sync}, hosts {self.host_of}")
