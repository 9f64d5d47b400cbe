"""Planted faults of what shards remember of clients, each a change of one function while a seed runs."""

from __future__ import annotations

from adamctl.config.records import RetiredRecord
from adamctl.roles.ps.core.exactly_once import Client, ClientKey, ClientMemory, MemoryChange, MemoryRecord
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from tests.sim.servers.cluster import ServerFault


def _evict_without_a_mark(self: ClientMemory, key: ClientKey, counter: int) -> None:
    del self.clients[key]


_restored = ClientMemory.restored


def _restored_in_another_order(record: MemoryRecord) -> ClientMemory:
    """As by name: in which order they were used is not known any more."""
    memory = _restored(record)
    memory.clients = dict(sorted(memory.clients.items()))
    return memory


_retire = ClientMemory.retire


def _retired_here_alone(self: ClientMemory, retired: RetiredRecord, counter: int) -> bool:
    """The version does not say so: copies are told of what has changed but for that."""
    whole_from = self._whole_from
    done = _retire(self, retired, counter)
    self._whole_from = whole_from
    return done


def _retired_and_not_known(self: ClientMemory, retired: RetiredRecord, counter: int) -> bool:
    """Marks are dropped, and nothing says who may not come back."""
    before = self.retired
    done = _retire(self, retired, counter)
    self.retired = before
    return done


def _living_as_well(self: ClientMemory, retired: RetiredRecord, counter: int) -> bool:
    """Everybody up to the floor is retired, also those who live or have gone just now."""
    return _retire(self, self._looked if self._looked.floor == retired.floor else RetiredRecord(retired.floor), counter)


def _everybody_is_idle(self: Client) -> bool:
    return self.done > 0


_take = ClientMemory.take


def _takes_no_marks(self: ClientMemory, change: MemoryChange) -> None:
    """A copy takes the clients in that have changed, and not those that were evicted."""
    evicted = self.evicted_incarnation, dict(self._evicted)
    _take(self, change)
    self.evicted_incarnation, self._evicted = evicted


def _follows_anything(self: HeldShard, copy: object) -> bool:
    return self.copy is not None


def _since_one_too_late(self: ClientMemory, since: int) -> MemoryChange | None:
    return _change(self, since + 1)


_change = ClientMemory.change

MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "evicted-without-a-mark",
            "an evicted client leaves no mark",
            [(ClientMemory, "_evict", _evict_without_a_mark)],
        ),
        ServerFault(
            "use-left-out",
            "which client was used last is not in a record",
            [(ClientMemory, "restored", staticmethod(_restored_in_another_order))],
        ),
        ServerFault(
            "retired-on-one-copy",
            "the primary forgets who is retired, and its copies are not told",
            [(ClientMemory, "retire", _retired_here_alone)],
        ),
        ServerFault(
            "marks-dropped",
            "marks of the retired are dropped, and nothing says that they may not come back",
            [(ClientMemory, "retire", _retired_and_not_known)],
        ),
        ServerFault(
            "living-retired",
            "clients that live, or have gone just now, are retired with older ones",
            [(ClientMemory, "retire", _living_as_well)],
        ),
        ServerFault(
            "marks-not-shipped",
            "a copy is told of clients that have changed and not of those that were evicted",
            [(ClientMemory, "take", _takes_no_marks)],
        ),
        ServerFault(
            "change-since-too-late",
            "what has changed is counted from a version too late",
            [(ClientMemory, "change", _since_one_too_late)],
        ),
    )
}
