"""Decides which shards are written to the log when, and what may be removed from it (pure; Adam 3.3.2 and 3.3.3).

Shards that differ from their last record are dirty. They are written in groups, one group at a time: first those with
waiters, then the oldest. A shard's next record contains everything that changed since its last one. Between groups the
log is a sequence of numbered records, live or superseded. A group also removes superseded records at the log's old end,
and rewrites live records there when the log has grown beyond a factor of its live size.

The loss window limits what a crash may lose: while changes older than its seconds, or in shards of more than
`window_bytes` together, are unsaved, nothing more is acknowledged (`over_limit`). It may be given as a range of
seconds: then it is as long as needed for writing to use no more than a share of the measured disk speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from adamctl.roles.ps.core.log_entries import Entry, Group, Item, Slot, Waiter

__all__ = ["Entry", "FlushConfig", "FlushCore", "Group", "Item", "Slot", "Waiter"]

RATE_BYTES_MIN = 1 << 20
"""Smaller groups say nothing about the disk's speed: their time is mostly one sync."""
RATE_WEIGHT = 0.2


@dataclass(frozen=True)
class FlushConfig:
    """Bounds.

    Attributes:
        window_s, window_bytes: the loss window.
        window_s_max: how long the window may grow; None: it does not.
        disk_share: the largest share of the disk's time that writing should take, as far as `window_s_max` allows.
        group_bytes: size limit of one group, unless one record alone is larger.
        log_factor: the log is compacted when it is larger than this times its live records,
        log_slack_bytes: and larger than this.
        retry_s: wait after a group found no space.
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
        unsaved_bytes: total size of entries with changes that are not durable.
        log_bytes, live_bytes: total size of all records in the log, and of the live ones.
        full: the last group found no space on the disk.
        records, record_bytes, rewritten_bytes, updates, groups: records and bytes written so far, bytes written only
            for compaction, updates counted, transactions.
    """

    def __init__(self, config: FlushConfig | None = None, slots: Iterable[Slot] = (), next_sequence: int = 1) -> None:
        """`slots` are the records found in the log, in order; those with an entry start as live."""
        self.config = config or FlushConfig()
        self.next_sequence = next_sequence
        self.group: Group | None = None
        self.full = False
        self.unsaved_bytes = 0
        self.records = self.record_bytes = self.rewritten_bytes = self.updates = self.groups = 0
        self._slots = deque(slots)
        self.log_bytes = sum(slot.size_bytes for slot in self._slots)
        self.live_bytes = sum(slot.size_bytes for slot in self._slots if slot.live)
        self._dirty: dict[Entry, float] = {}  # -> time of the first change since its state was last taken; ascending
        self._urgent: dict[Entry, None] = {}
        self._retry_s = -inf
        self._release = False
        self._bytes_per_s = 0.0  # measured recently

    # --- changes ----------------------------------------------------------------------------------------------------

    def changed(self, entry: Entry, now: float, updates: int = 1, arrays: Collection[int] | None = None) -> None:
        """Notes that an entry's state has changed; `arrays`: which of its arrays, None: any of them.

        If the entry was released while a push was in flight, nothing is written for it any more.
        """
        entry.note(arrays)
        if entry.gone or entry.spared:
            return
        if entry.changes == entry.durable:
            self.unsaved_bytes += entry.size_bytes
        entry.changes += 1
        self.updates += updates
        if entry not in self._dirty:
            self._dirty[entry] = now

    def wait(self, waiter: Waiter, entry: Entry, changes: int) -> None:
        """Makes `waiter` wait until `changes` of the entry's changes are durable; writing it becomes urgent."""
        if entry.durable >= changes or entry.gone:
            return
        waiter.missing += 1
        entry.waiting.append((changes, waiter))
        if entry in self._dirty:
            self._urgent[entry] = None

    def forget(self, entry: Entry) -> list[Waiter]:
        """Frees an entry's records; returns its waiters, whose changes will never be durable."""
        if entry.gone:
            return []
        entry.gone = True
        if entry.changes != entry.durable:
            self.unsaved_bytes -= entry.size_bytes
        self._dirty.pop(entry, None)
        self._urgent.pop(entry, None)
        self.live_bytes -= entry.freed()
        self._release = True
        waiting, entry.waiting = entry.waiting, []
        return [waiter for _, waiter in waiting]

    def leave(self, entry: Entry) -> list[Waiter]:
        """Releases an entry's owner, and its records unless spared; returns waiters that will never be satisfied."""
        if not entry.spared or entry.gone:
            return self.forget(entry)
        if entry.changes != entry.durable:
            self.unsaved_bytes -= entry.size_bytes
            entry.durable = entry.changes  # what is not in a record yet never will be
        self._dirty.pop(entry, None)
        self._urgent.pop(entry, None)
        if not entry.flying:
            entry.owner = None
        waiting, entry.waiting = entry.waiting, []
        return [waiter for _, waiter in waiting]

    # --- the loss window --------------------------------------------------------------------------------------------

    def oldest_s(self) -> float:
        """Returns the time of the oldest change that is not durable; inf if all are."""
        dirty_s = next(iter(self._dirty.values()), inf)
        return min(dirty_s, min((item.since_s for item in self.group.items), default=inf) if self.group else inf)

    def window_s(self, now: float) -> float:
        """Returns how many seconds of changes a crash would lose now."""
        return max(now - self.oldest_s(), 0.0)

    @property
    def window_s_allowed(self) -> float:
        """The current length of the loss window in seconds.

        Each shard is written about once per half window. So writing takes the configured share of the disk if half a
        window equals the time to write all shards divided by that share.
        """
        config = self.config
        if config.window_s_max is None or not self._bytes_per_s:
            return config.window_s
        all_bytes = max(self.live_bytes, self.unsaved_bytes)
        return min(max(config.window_s, 2 * all_bytes / self._bytes_per_s / config.disk_share), config.window_s_max)

    @property
    def due_after_s(self) -> float:
        """How long a shard may be dirty before it is written: long, so that one record holds many updates.

        The rest of the window is left for writing: twice the expected time to write all shards, but at least a quarter
        and at most half of the window; half while the disk's speed is unknown.
        """
        window_s = self.window_s_allowed
        if not self._bytes_per_s:
            return window_s / 2
        all_bytes = max(self.live_bytes, self.unsaved_bytes)
        return window_s - min(max(window_s / 4, 2 * all_bytes / self._bytes_per_s), window_s / 2)

    def over_limit(self, now: float) -> bool:
        """Returns whether acknowledgements must be delayed because too much is unsaved, for whatever reason."""
        if not self.unsaved_bytes:
            return False
        return self.window_s(now) > self.window_s_allowed or self.unsaved_bytes > self.config.window_bytes

    # --- groups -----------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Group | None:
        """Returns the next group if there is something to write and no group is being written."""
        if self.group is not None or now < self._retry_s:
            return None
        chosen = self._choose(now)
        removed, copied, whole = self._compact(chosen)
        if not chosen and not copied and not removed:
            return None
        items: list[Item] = []
        for entry in chosen:
            items.append(Item(entry, self.next_sequence + len(items), 0, entry.durable))
            items[-1].whole = entry.whole or entry in whole
            items[-1].since_s = self._dirty.pop(entry, inf)
            self._urgent.pop(entry, None)
            entry.flying = True
        for entry in copied:
            for number, _ in (*entry.chain, (entry.sequence, 0)):
                first_of = not entry.chain or number == entry.chain[0][0]
                items.append(Item(entry, self.next_sequence + len(items), number, entry.durable, whole=first_of))
            items[-1].since_s = self._dirty.pop(entry, inf)
            self._urgent.pop(entry, None)
            entry.flying = True
        first = self._slots[0].sequence if self._slots else self.next_sequence
        self.group = Group(items, first, removed)
        return self.group

    def _choose(self, now: float) -> dict[Entry, None]:
        """Returns entries with waiters, then the oldest that are due, up to the size of a group."""
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

    def _compact(self, chosen: dict[Entry, None]) -> tuple[list[Slot], dict[Entry, None], set[Entry]]:
        """Removes superseded records from the log's old end; adds to `chosen` what must be rewritten for that.

        Returns the removed slots, entries whose records must be copied because they are not in memory, and those of
        `chosen` whose record must be of the whole state because records that a change needs are removed.
        """
        removed: list[Slot] = []
        copied: dict[Entry, None] = {}
        whole: set[Entry] = set()
        moved = 0  # bytes; apart from those of `chosen`, which may fill every group
        live = self.live_bytes + sum(entry.size_bytes - entry.record_bytes for entry in chosen)
        log = self.log_bytes + sum(entry.size_bytes for entry in chosen)
        bound = max(self.config.log_factor * live, float(self.config.log_slack_bytes))
        if not chosen and not self._release and log <= bound:
            return removed, copied, whole
        while self._slots:
            slot = self._slots[0]
            entry = slot.entry
            if entry is not None and slot.live and entry not in copied and entry not in whole:
                if entry in chosen:
                    if not entry.whole:
                        if log <= bound:
                            break
                        whole.add(entry)
                else:
                    size_bytes = entry.record_bytes
                    if log <= bound or (moved and moved + size_bytes > self.config.group_bytes):
                        break
                    (chosen if entry.owner is not None else copied)[entry] = None
                    if entry.owner is not None:
                        whole.add(entry)
                    self.rewritten_bytes += size_bytes
                    moved += size_bytes
                    log += size_bytes
            log -= slot.size_bytes
            removed.append(self._slots.popleft())
        self._release = False
        return removed, copied, whole

    def taken(self, item: Item) -> None:
        """Notes that an item's state was captured: it contains all changes so far."""
        entry = item.entry
        item.changes = entry.changes
        if not item.copy_of:
            item.whole = item.whole or entry.whole
            item.arrays = frozenset() if item.whole else frozenset(entry.unsaved or ())
            entry.unsaved = set()
        item.since_s = min(item.since_s, self._dirty.pop(entry, inf))
        self._urgent.pop(entry, None)

    def finished(self, sizes: list[int], seconds: float = 0.0) -> list[Waiter]:
        """Notes that the group is durable, with records of these sizes; returns waiters that are done.

        `seconds`: how long writing took; 0 if unknown.
        """
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
        self.live_bytes += entry.written(item.sequence, size_bytes, item.whole)
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
        """Notes that nothing of the group was written because the disk is full; it is tried again later.

        Its numbers are reused. Its entries with waiters stay ahead of later ones: a holding must come before the shards
        that depend on it.
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
            item.entry.note(None if item.whole else item.arrays)
            since_s = min(item.since_s, self._dirty.pop(item.entry, inf))
            if since_s < inf and not item.entry.gone and not item.entry.spared:
                again[item.entry] = since_s
                if item.entry.waiting:
                    urgent[item.entry] = None
        self._urgent = urgent | self._urgent
        self._dirty = dict(sorted(again.items(), key=lambda pair: pair[1])) | self._dirty

    def stalled(self) -> None:
        """Notes that the current group is written but cannot be made durable because the disk is full; it stays
        current."""
        self.full = True

    @property
    def busy(self) -> bool:
        """Whether anything is not durable yet."""
        return bool(self._dirty) or self.group is not None

    @property
    def urgent(self) -> bool:
        return bool(self._urgent)

    def hurry(self) -> None:
        """Makes everything dirty urgent: the server is about to end."""
        self._urgent |= dict.fromkeys(self._dirty)
        self._retry_s = -inf
