"""Records that are changes of the one before: a state is always all there, and no more than twice as large as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from adamctl.roles.ps.core.flush import Entry, FlushConfig, FlushCore, Item, Slot

ARRAYS = 6
CONFIG = FlushConfig(window_s=1.0, window_bytes=10_000, group_bytes=60, log_factor=2.0, log_slack_bytes=50, retry_s=0.1)


@dataclass
class Disk:
    """A log: number -> (owner, place -> version of the arrays in the record), of the arrays' number in size."""

    core: FlushCore
    records: dict[int, tuple[str, dict[int, int]]] = field(default_factory=dict)
    states: dict[str, list[int]] = field(default_factory=dict)
    captured: dict[int, dict[int, int]] = field(default_factory=dict)
    written: int = 0

    def change(self, entry: Entry, places: set[int] | None, now: float) -> None:
        """New versions of some arrays, None: of all."""
        state = self.states.setdefault(entry.owner, [0] * ARRAYS)
        for place in range(ARRAYS) if places is None else places:
            state[place] += 1
        self.core.changed(entry, now, arrays=places)

    def take(self, item: Item) -> None:
        if not item.copy_of:
            self.core.taken(item)
            state = self.states[item.entry.owner]
            self.captured[item.sequence] = {p: state[p] for p in (range(ARRAYS) if item.whole else item.arrays)}

    def write(self, items: list[Item], first: int) -> None:
        sizes = []
        for item in items:
            owner, arrays = self.records[item.copy_of] if item.copy_of else (item.entry.owner, {})
            self.records[item.sequence] = (owner, arrays or self.captured.pop(item.sequence))
            sizes.append(len(self.records[item.sequence][1]))
            self.written += sizes[-1]
        self.records = {number: record for number, record in self.records.items() if number >= first}
        self.core.finished(sizes)

    def read(self, entry: Entry) -> list[int]:
        """What a restart would find of an entry."""
        found: dict[int, int] = {}
        for number in (*(number for number, _ in entry.chain), entry.sequence):
            found |= self.records[number][1]
        assert len(self.records[entry.chain[0][0] if entry.chain else entry.sequence][1]) == ARRAYS
        return [found[place] for place in range(ARRAYS)]


def flushed(disk: Disk, now: float) -> None:
    while group := disk.core.take(now):
        for item in group.items:
            disk.take(item)
        disk.write(group.items, group.first)


def test_a_change_holds_the_arrays_that_were_written_until_it_is_better_to_begin_again() -> None:
    core = FlushCore(CONFIG)
    disk, entry = Disk(core), Entry("a", ARRAYS)
    sizes = []
    for number in range(8):
        disk.change(entry, {0: None, 1: {0, 1}, 2: {2, 3}}.get(number, {4, 5}), float(number))
        before = disk.written
        flushed(disk, number + 0.9)
        sizes.append(disk.written - before)
        assert disk.read(entry) == disk.states["a"]
    assert sizes == [6, 2, 2, 2, 6, 2, 2, 2]
    assert core.live_bytes == entry.record_bytes == 12 and len(entry.chain) == 3


def test_whoever_does_not_say_what_has_changed_is_written_whole() -> None:
    disk, entry = Disk(FlushCore(CONFIG)), Entry("a", ARRAYS)
    for places in (None, {1}, None):
        disk.change(entry, places, 0.0)
        flushed(disk, 1.0)
    assert disk.written == 6 + 1 + 6 and not entry.chain


def test_a_change_that_found_no_room_is_part_of_the_next() -> None:
    core = FlushCore(CONFIG)
    disk, entry = Disk(core), Entry("a", ARRAYS)
    disk.change(entry, None, 0.0)
    flushed(disk, 1.0)
    disk.change(entry, {2}, 1.0)
    group = core.take(2.0)
    assert group is not None
    disk.take(group.items[0])
    disk.change(entry, {4}, 2.0)
    core.no_space(2.0)
    flushed(disk, 3.0)
    assert disk.written == 6 + 2 and disk.read(entry) == disk.states["a"]


def test_a_state_that_is_not_in_memory_is_copied_with_all_its_changes() -> None:
    core = FlushCore(CONFIG)
    disk, old, busy = Disk(core), Entry("old", ARRAYS), Entry("busy", 4 * ARRAYS)
    for places in (None, {1}, {2, 3}):
        disk.change(old, places, 0.0)
        flushed(disk, 1.0)
    expected, old.owner = disk.read(old), None
    for number in range(20):
        disk.states["busy"] = [number] * ARRAYS
        core.changed(busy, float(number))
        flushed(disk, number + 0.9)
    assert disk.read(old) == expected == disk.states["old"]
    assert old.chain[0][0] > 3 and [n for n, _ in old.chain] == sorted(n for n, _ in old.chain), "copied, in order"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_state_is_all_there_and_the_log_stays_within_its_factor(seed: int) -> None:
    random, core = Random(seed), FlushCore(CONFIG)
    print("seed", seed)
    disk, entries, now = Disk(core), [Entry(f"e{number}", ARRAYS) for number in range(5)], 0.0
    for _ in range(400):
        now += random.random() * 0.4
        entry = random.choice(entries)
        places = None if random.random() < 0.1 else set(random.sample(range(ARRAYS), random.randrange(1, 4)))
        disk.change(entry, places, now)
        group = core.take(now)
        if group is None:
            continue
        for item in group.items:
            disk.take(item)
            if random.random() < 0.3:
                disk.change(item.entry, set(random.sample(range(ARRAYS), 2)), now)
        if random.random() < 0.1:
            core.no_space(now)
            disk.captured.clear()
            continue
        seen = {item.sequence: dict(disk.captured[item.sequence]) for item in group.items if not item.copy_of}
        disk.write(group.items, group.first)
        for item in group.items:
            found = disk.read(item.entry)
            assert all(found[place] == version for place, version in seen.get(item.sequence, {}).items())
        for known in entries:
            if known.sequence:
                assert all(0 <= a <= b for a, b in zip(disk.read(known), disk.states[known.owner], strict=True))
                if known.changes == known.durable:
                    assert disk.read(known) == disk.states[known.owner]
        assert core.live_bytes == sum(known.record_bytes for known in entries)
        assert core.live_bytes <= 3 * ARRAYS * len(entries)
        assert core.log_bytes == sum(len(arrays) for _, arrays in disk.records.values())
        assert core.log_bytes <= max(2 * core.live_bytes, 50) + 60 + ARRAYS


def test_slots_of_a_chain_are_live_until_the_state_is_written_whole() -> None:
    entry = Entry("a", ARRAYS)
    entry.sequence, entry.record_bytes = 3, 6
    assert entry.written(4, 2, False) == 2 and entry.written(6, 1, False) == 1
    assert [Slot(number, 1, entry).live for number in (2, 3, 4, 5, 6)] == [False, True, True, False, True]
    assert (entry.chain, entry.record_bytes) == ([(3, 6), (4, 2)], 9)
    assert entry.written(7, 6, True) == -3 and [Slot(n, 1, entry).live for n in (3, 4, 6, 7)] == [False] * 3 + [True]
    assert entry.freed() == 6 and not Slot(7, 1, entry).live
