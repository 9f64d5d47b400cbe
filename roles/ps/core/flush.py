"""Which shards are written to the log when, and what may be removed from it (pure; Adam 3.3.2 and 3.3.3).

Shards that differ from their last record are dirty. They are written in groups, one group at a time, whoever is waited
for first and then the oldest; everything that changed a shard since its last record is in the next one. Between groups
the log is a run of numbered records, live or superseded; a group also removes what is superseded at its old end, and
rewrites live records there when the log has grown beyond a factor of what is live.

The loss window is what a crash may take back: changes older than its seconds, or in shards of more than `window_bytes`
together, must not stay unsaved while more is acknowledged (`over_limit`). It may be given as a range of seconds: then
it is as long as writing needs in order to take no more than a share of what the disk was seen to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from adamctl.roles.ps.core.log_entries import Entry, Group, Item, Slot, Waiter

__all__ = ["Entry", "FlushConfig", "FlushCore", "Group", "Item", "Slot", "Waiter"]

RATE_BYTES_MIN = 1 << 20
"""Smaller groups say nothing about the disk: they are one sync."""
RATE_WEIGHT = 0.2


@dataclass(frozen=True)
class FlushConfig:
    """Bounds.

    Attributes:
        window_s, window_bytes: the loss window.
        window_s_max: as long as it may become; None: it does not.
        disk_share: of the disk's time that writing should take at most, as far as `window_s_max` allows.
        group_bytes: of one group, unless one record alone is larger.
        log_factor: the log is compacted when it is larger than this times its live records...
        log_slack_bytes: ... and larger than this.
        retry_s: after a group found no space.
    """

    window_s: float = 5.0
    window_bytes: int = 4 << 30
    window_s_max: float | None = None
    disk_share: float = 0.25
    group_bytes: int = 32 << 20
    log_factor: float = 2.0
    log_slack_bytes: int = 1 << 20
    retry_s: float = 1.0


class FlushCore:
    """The log of one server, all jobs.

    Attributes:
        unsaved_bytes: of entries whose changes are not all durable.
        log_bytes, live_bytes: of all records in the log, and of the live ones.
        full: the last group found no space on the disk.
        records, record_bytes, rewritten_bytes, updates, groups: written so far, of that without need but for
            compaction, updates in them, transactions.
    """

    def __init__(self, config: FlushConfig | None = None, slots: Iterable[Slot] = (), next_sequence: int = 1) -> None:
        """`slots` are the records that a log was found to hold, in order; those of entries begin as live."""
        self.config = config or FlushConfig()
        self.next_sequence = next_sequence
        self.group: Group | None = None
        self.full = False
        self.unsaved_bytes = 0
        self.records = self.record_bytes = self.rewritten_bytes = self.updates = self.groups = 0
        self._slots = deque(slots)
        self.log_bytes = sum(slot.size_bytes for slot in self._slots)
        self.live_bytes = sum(slot.size_bytes for slot in self._slots if slot.live)
        self._dirty: dict[Entry, float] = {}  # -> when it changed first since its state was taken last; ascending
        self._urgent: dict[Entry, None] = {}
        self._retry_s = -inf
        self._release = False
        self._bytes_per_s = 0.0  # that the disk was seen to take, lately

    # --- changes ----------------------------------------------------------------------------------------------------

    def changed(self, entry: Entry, now: float, updates: int = 1) -> None:
        """An entry's state differs from what it was; of one that was let go, by a push that was under way then, nothing
        is written any more."""
        if entry.gone or entry.spared:
            return
        if entry.changes == entry.durable:
            self.unsaved_bytes += entry.size_bytes
        entry.changes += 1
        self.updates += updates
        if entry not in self._dirty:
            self._dirty[entry] = now

    def wait(self, waiter: Waiter, entry: Entry, changes: int) -> None:
        """Makes `waiter` wait until so many of the entry's changes are durable, which is now urgent."""
        if entry.durable >= changes or entry.gone:
            return
        waiter.missing += 1
        entry.waiting.append((changes, waiter))
        if entry in self._dirty:
            self._urgent[entry] = None

    def forget(self, entry: Entry) -> list[Waiter]:
        """Frees an entry's records; returns who waited for it in vain."""
        if entry.gone:
            return []
        entry.gone = True
        if entry.changes != entry.durable:
            self.unsaved_bytes -= entry.size_bytes
        self._dirty.pop(entry, None)
        self._urgent.pop(entry, None)
        self.live_bytes -= entry.record_bytes
        entry.sequence = entry.record_bytes = 0
        self._release = True
        waiting, entry.waiting = entry.waiting, []
        return [waiter for _, waiter in waiting]

    def leave(self, entry: Entry) -> list[Waiter]:
        """Lets an entry's owner go, with its records unless they are spared; returns who waited in vain."""
        if not entry.spared or entry.gone:
            return self.forget(entry)
        if entry.changes != entry.durable:
            self.unsaved_bytes -= entry.size_bytes
            entry.durable = entry.changes  # what is not in a record by now never will be
        self._dirty.pop(entry, None)
        self._urgent.pop(entry, None)
        if not entry.flying:
            entry.owner = None
        waiting, entry.waiting = entry.waiting, []
        return [waiter for _, waiter in waiting]

    # --- the loss window --------------------------------------------------------------------------------------------

    def oldest_s(self) -> float:
        """Returns when the oldest change was made that is not durable; inf if all are."""
        dirty_s = next(iter(self._dirty.values()), inf)
        return min(dirty_s, min((item.since_s for item in self.group.items), default=inf) if self.group else inf)

    def window_s(self, now: float) -> float:
        """Returns how many seconds of changes a crash would take back now."""
        return max(now - self.oldest_s(), 0.0)

    @property
    def window_s_allowed(self) -> float:
        """Returns the seconds of the loss window at present.

        A shard is written about once in half a window, so that all of them take their share of the disk if half a
        window is as long as writing them takes, divided by that share.
        """
        config = self.config
        if config.window_s_max is None or not self._bytes_per_s:
            return config.window_s
        all_bytes = max(self.live_bytes, self.unsaved_bytes)
        return min(max(config.window_s, 2 * all_bytes / self._bytes_per_s / config.disk_share), config.window_s_max)

    @property
    def due_after_s(self) -> float:
        """Returns how long a shard may be dirty before it is written: late, so that updates fold, but not too late.

        At least a quarter of the window is left for writing, twice the time that all shards together should take, and
        half of the window where that is not known.
        """
        window_s = self.window_s_allowed
        if not self._bytes_per_s:
            return window_s / 2
        all_bytes = max(self.live_bytes, self.unsaved_bytes)
        return window_s - min(max(window_s / 4, 2 * all_bytes / self._bytes_per_s), window_s / 2)

    def over_limit(self, now: float) -> bool:
        """Says whether acknowledgements are to be held back, whatever keeps what they are for from the disk."""
        if not self.unsaved_bytes:
            return False
        return self.window_s(now) > self.window_s_allowed or self.unsaved_bytes > self.config.window_bytes

    # --- groups -----------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Group | None:
        """Returns the next group if there is something to write and none is under way."""
        if self.group is not None or now < self._retry_s:
            return None
        chosen = self._choose(now)
        removed, copied = self._compact(chosen)
        if not chosen and not copied and not removed:
            return None
        items: list[Item] = []
        for entry in (*chosen, *copied):
            copy_of = entry.sequence if entry in copied else 0
            item = Item(entry, self.next_sequence + len(items), copy_of, entry.durable)
            item.since_s = self._dirty.pop(entry, inf)
            self._urgent.pop(entry, None)
            entry.flying = True
            items.append(item)
        first = self._slots[0].sequence if self._slots else self.next_sequence
        self.group = Group(items, first, removed)
        return self.group

    def _choose(self, now: float) -> dict[Entry, None]:
        """Returns who is waited for, then the oldest whose time has come, as far as a group reaches."""
        chosen: dict[Entry, None] = {}
        filled = 0
        for entry in self._urgent:
            if chosen and filled + entry.size_bytes > self.config.group_bytes:
                return chosen
            chosen[entry] = None
            filled += entry.size_bytes
        due_s = now - self.due_after_s
        for entry, since_s in self._dirty.items():
            crowded = self.unsaved_bytes - filled > self.config.window_bytes // 2
            full = chosen and filled + entry.size_bytes > self.config.group_bytes
            if full or (since_s > due_s and not crowded):
                break
            if entry not in chosen:
                chosen[entry] = None
                filled += entry.size_bytes
        return chosen

    def _compact(self, chosen: dict[Entry, None]) -> tuple[list[Slot], dict[Entry, None]]:
        """Takes what is superseded off the log's old end; adds to `chosen` what must be rewritten for that.

        Returns what is removed, and entries whose records are to be copied because they are not in memory.
        """
        removed: list[Slot] = []
        copied: dict[Entry, None] = {}
        filled = sum(entry.size_bytes for entry in chosen)
        live = self.live_bytes + sum(entry.size_bytes - entry.record_bytes for entry in chosen)
        log = self.log_bytes + filled
        bound = max(self.config.log_factor * live, float(self.config.log_slack_bytes))
        if not chosen and not self._release and log <= bound:
            return removed, copied
        while self._slots:
            slot = self._slots[0]
            entry = slot.entry
            if entry is not None and slot.live and entry not in chosen and entry not in copied:
                if log <= bound or filled + slot.size_bytes > self.config.group_bytes:
                    break
                (chosen if entry.owner is not None else copied)[entry] = None
                self.rewritten_bytes += slot.size_bytes
                filled += slot.size_bytes
                log += slot.size_bytes
            log -= slot.size_bytes
            removed.append(self._slots.popleft())
        self._release = False
        return removed, copied

    def taken(self, item: Item) -> None:
        """An item's state is taken: all changes so far are in it."""
        entry = item.entry
        item.changes = entry.changes
        item.since_s = min(item.since_s, self._dirty.pop(entry, inf))
        self._urgent.pop(entry, None)

    def finished(self, sizes: list[int], seconds: float = 0.0) -> list[Waiter]:
        """The group is durable, with records of these sizes, written in `seconds`, 0: unknown; returns who waited."""
        group, self.group = self.group, None
        assert group is not None
        self.full = False
        over: list[Waiter] = []
        for item, size_bytes in zip(group.items, sizes, strict=True):
            entry = item.entry
            self._landed(entry)
            self._slots.append(Slot(item.sequence, size_bytes, entry))
            if not entry.gone:
                self._settle(item, size_bytes, over)
        written = sum(sizes)
        self.log_bytes += written - sum(slot.size_bytes for slot in group.removed)
        self.next_sequence += len(group.items)
        self.records += len(group.items)
        self.record_bytes += written
        self.groups += 1
        if seconds > 0 and written >= RATE_BYTES_MIN:
            rate = written / seconds
            self._bytes_per_s += (rate - self._bytes_per_s) * (RATE_WEIGHT if self._bytes_per_s else 1.0)
        return over

    def _landed(self, entry: Entry) -> None:
        entry.flying = False
        if entry.spared:
            entry.owner = None

    def _settle(self, item: Item, size_bytes: int, over: list[Waiter]) -> None:
        entry = item.entry
        self.live_bytes += size_bytes - entry.record_bytes
        entry.sequence, entry.record_bytes = item.sequence, size_bytes
        entry.version = item.version or entry.version
        if entry.durable < entry.changes == item.changes:
            self.unsaved_bytes -= entry.size_bytes
        entry.durable = max(item.changes, entry.durable)
        left = []
        for changes, waiter in entry.waiting:
            if changes > entry.durable:
                left.append((changes, waiter))
                continue
            waiter.missing -= 1
            if not waiter.missing:
                over.append(waiter)
        entry.waiting = left

    def no_space(self, now: float) -> None:
        """The group could not be written for want of space, and nothing of it was; it is tried again later.

        Its numbers are given out anew. Whoever was waited for in it still comes before those that came later: a holding
        before the shards that count by it.
        """
        group, self.group = self.group, None
        assert group is not None
        self.full = True
        self._retry_s = now + self.config.retry_s
        self._slots.extendleft(reversed(group.removed))
        again: dict[Entry, float] = {}
        urgent: dict[Entry, None] = {}
        for item in group.items:
            self._landed(item.entry)
            since_s = min(item.since_s, self._dirty.pop(item.entry, inf))
            if since_s < inf and not item.entry.gone and not item.entry.spared:
                again[item.entry] = since_s
                if item.entry.waiting:
                    urgent[item.entry] = None
        self._urgent = urgent | self._urgent
        self._dirty = dict(sorted(again.items(), key=lambda pair: pair[1])) | self._dirty

    def stalled(self) -> None:
        """The group under way is written but cannot be made durable for want of space; it goes on being under way."""
        self.full = True

    @property
    def busy(self) -> bool:
        """Whether anything is not durable yet."""
        return bool(self._dirty) or self.group is not None

    @property
    def urgent(self) -> bool:
        return bool(self._urgent)

    def hurry(self) -> None:
        """Everything dirty is to be written now: the server is about to end."""
        self._urgent |= dict.fromkeys(self._dirty)
        self._retry_s = -inf
