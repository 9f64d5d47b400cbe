"""When shards are written, what their log holds meanwhile, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from adamctl.roles.ps.core.flush import Entry, FlushConfig, FlushCore, Group, Slot, Waiter

CONFIG = FlushConfig(window_s=4.0, window_bytes=1000, group_bytes=40, log_factor=2.0, log_slack_bytes=50)


def entries(count: int, size_bytes: int = 10) -> list[Entry]:
    return [Entry(f"shard {number}", size_bytes) for number in range(count)]


def write(core: FlushCore, group: Group) -> list[Waiter]:
    """Carries a group out, each record as large as its entry."""
    for item in group.items:
        if not item.copy_of:
            core.taken(item)
    return core.finished([item.entry.size_bytes for item in group.items])


def owners(group: Group | None) -> list[str]:
    return [] if group is None else [item.entry.owner for item in group.items]


def test_a_shard_is_written_when_it_has_been_dirty_for_half_of_the_window_oldest_first() -> None:
    core, (a, b, c) = FlushCore(CONFIG), entries(3)
    for entry, now in ((b, 0.0), (a, 0.5), (b, 1.0), (c, 1.5)):
        core.changed(entry, now)
    assert core.take(1.9) is None
    group = core.take(2.6)
    assert owners(group) == ["shard 1", "shard 0"]
    assert core.window_s(2.6) == 2.6
    assert group is not None and not write(core, group)
    assert (a.durable, b.durable, c.durable) == (1, 2, 0)
    assert core.window_s(2.6) == pytest.approx(1.1)
    assert core.unsaved_bytes == 10


def test_all_changes_until_the_state_is_taken_fold_into_one_record() -> None:
    core, (a,) = FlushCore(CONFIG), entries(1)
    for now in range(5):
        core.changed(a, float(now))
    group = core.take(5.0)
    core.changed(a, 5.1)
    assert group is not None
    core.taken(group.items[0])
    core.changed(a, 5.2)
    core.finished([10])
    assert (a.changes, a.durable, core.records, core.updates) == (7, 6, 1, 7)
    assert core.oldest_s() == 5.2 and core.unsaved_bytes == 10


def test_only_one_group_is_under_way_and_none_is_larger_than_it_may_be() -> None:
    core, all_of_them = FlushCore(CONFIG), entries(9)
    for entry in all_of_them:
        core.changed(entry, 0.0)
    sizes = []
    while (group := core.take(3.0)) is not None:
        assert core.take(3.0) is None
        sizes.append(len(group.items))
        write(core, group)
    assert sizes == [4, 4, 1]


def test_a_record_larger_than_a_group_goes_alone() -> None:
    core, (a, b) = FlushCore(CONFIG), entries(2, 100)
    core.changed(a, 0.0)
    core.changed(b, 0.0)
    assert owners(core.take(3.0)) == ["shard 0"]


def test_whoever_is_waited_for_is_written_at_once_and_all_of_them_together() -> None:
    core, (a, b, c) = FlushCore(CONFIG), entries(3)
    for entry in (a, b, c):
        core.changed(entry, 0.0)
    one, other = Waiter("one"), Waiter("other")
    core.wait(one, b, 1)
    core.wait(one, c, 1)
    core.wait(other, c, 1)
    assert one.missing == 2
    group = core.take(0.0)
    assert owners(group) == ["shard 1", "shard 2"]
    assert group is not None and write(core, group) == [one, other]
    core.wait(one, b, 1)
    assert one.missing == 0, "it is durable already"


def test_a_change_after_the_state_was_taken_waits_for_the_next_record() -> None:
    core, (a,) = FlushCore(CONFIG), entries(1)
    core.changed(a, 0.0)
    early, late = Waiter("early"), Waiter("late")
    core.wait(early, a, 1)
    group = core.take(0.0)
    assert group is not None
    core.taken(group.items[0])
    core.changed(a, 0.1)
    core.wait(late, a, 2)
    assert core.finished([10]) == [early]
    group = core.take(0.1)
    assert group is not None and write(core, group) == [late]


def test_more_unsaved_bytes_than_half_of_the_window_are_written_before_their_time() -> None:
    core, all_of_them = FlushCore(FlushConfig(window_bytes=100, group_bytes=1000)), entries(8)
    for entry in all_of_them:
        core.changed(entry, 0.0)
    assert len(owners(core.take(0.0))) == 3, "50 bytes may stay"


def test_acknowledgements_are_over_limit_while_the_window_is_exceeded() -> None:
    core, (a, b) = FlushCore(CONFIG), entries(2)
    core.changed(a, 0.0)
    assert not core.over_limit(4.0) and core.over_limit(4.1)
    group = core.take(4.1)
    assert core.over_limit(4.1), "what is on its way is not there yet"
    core.changed(b, 4.1)
    assert group is not None
    write(core, group)
    assert not core.over_limit(4.2)


def test_too_many_unsaved_bytes_press_too() -> None:
    core, all_of_them = FlushCore(FlushConfig(window_bytes=35)), entries(4)
    for entry in all_of_them[:3]:
        core.changed(entry, 0.0)
    assert not core.over_limit(0.0)
    core.changed(all_of_them[3], 0.0)
    assert core.over_limit(0.0)


def test_without_space_the_window_still_bounds_nothing_is_durable_and_it_is_tried_again() -> None:
    core, (a, b) = FlushCore(CONFIG), entries(2)
    core.changed(a, 0.0)
    waiter = Waiter("w")
    core.wait(waiter, a, 1)
    group = core.take(0.0)
    assert group is not None
    core.taken(group.items[0])
    core.changed(b, 1.0)
    core.no_space(1.0)
    assert core.full and waiter.missing == 1
    assert not core.over_limit(4.0) and core.over_limit(4.1), "as with any disk that does not keep up"
    assert core.take(1.5) is None
    core.changed(a, 1.6)
    assert core.oldest_s() == 0.0
    group = core.take(2.5)
    assert owners(group) == ["shard 0"] and group is not None
    assert group.items[0].sequence == 1, "the number was not used"
    assert write(core, group) == [waiter]
    assert not core.full


def test_a_job_that_ends_frees_its_records_and_those_who_wait_are_told() -> None:
    core, (a, b) = FlushCore(CONFIG), entries(2)
    core.changed(a, 0.0)
    core.changed(b, 0.0)
    group = core.take(2.0)
    assert group is not None
    write(core, group)
    core.changed(a, 3.0)
    waiter = Waiter("w")
    core.wait(waiter, a, 2)
    assert core.forget(a) == [waiter] and core.forget(b) == []
    assert core.live_bytes == core.unsaved_bytes == 0
    group = core.take(3.0)
    assert group is not None and not group.items and group.first == 3
    write(core, group)
    assert core.log_bytes == 0 and core.take(9.0) is None and not core.busy
    core.changed(a, 9.0)
    assert core.take(99.0) is None


def test_an_entry_forgotten_on_its_way_leaves_only_a_dead_record() -> None:
    core, (a,) = FlushCore(CONFIG), entries(1)
    core.changed(a, 0.0)
    group = core.take(2.0)
    assert group is not None
    core.forget(a)
    write(core, group)
    assert (core.live_bytes, core.log_bytes) == (0, 10)
    group = core.take(2.0)
    assert group is not None and not group.items
    write(core, group)
    assert core.log_bytes == 0


def test_what_is_not_in_memory_is_copied_when_it_stands_in_the_way() -> None:
    absent, (a,) = Entry(None, 10), entries(1)
    absent.sequence, absent.record_bytes = 1, 10
    core = FlushCore(CONFIG, [Slot(1, 10, absent)], 2)
    copies = 0
    for number in range(20):
        core.changed(a, float(10 * number))
        group = core.take(float(10 * number + 5))
        assert group is not None
        copies += sum(item.copy_of > 0 for item in group.items)
        assert all(item.entry is absent for item in group.items if item.copy_of)
        write(core, group)
        assert core.log_bytes <= 60
    assert 2 <= copies <= 6 and absent.sequence > 1


@pytest.mark.parametrize("idle_bytes", [9, 40, 90])
def test_a_record_that_stands_still_is_moved_although_every_group_is_full(idle_bytes: int) -> None:
    """Of a job that pushes no more, beside one whose durable pushes fill all groups; however large it is."""
    absent, busy = Entry(None, idle_bytes), entries(8)
    absent.sequence, absent.record_bytes = 1, idle_bytes
    core = FlushCore(CONFIG, [Slot(1, idle_bytes, absent)], 2)
    for number in range(200):
        for entry in busy:
            core.changed(entry, float(number))
        core.hurry()
        group = core.take(float(number))
        assert group is not None and sum(not item.copy_of for item in group.items) == 4
        write(core, group)
        assert core.log_bytes <= 2 * core.live_bytes + 2 * CONFIG.group_bytes + idle_bytes
    assert absent.sequence > 1


class Disk:
    """What the log would hold, for comparison."""

    def __init__(self) -> None:
        self.records: dict[int, Entry] = {}

    def carry_out(self, core: FlushCore, group: Group) -> None:
        for item in group.items:
            assert item.sequence not in self.records
            if item.copy_of:
                assert self.records[item.copy_of] is item.entry
        for item in group.items:
            self.records[item.sequence] = item.entry
        self.records = {number: entry for number, entry in self.records.items() if number >= group.first}
        write(core, group)
        assert sorted(self.records) == list(range(group.first, core.next_sequence)), "no gaps"


def load(chance: Random, kind: str, count: int) -> Iterator[int]:
    """Yields which shards are updated, one after another."""
    while True:
        if kind == "few":
            yield chance.randrange(count) if chance.random() < 0.02 else chance.randrange(max(count // 20, 1))
        else:
            yield chance.randrange(count)


@pytest.mark.parametrize("kind", ["all", "few"])
@pytest.mark.parametrize("seed", range(4))
def test_the_log_stays_within_its_factor_and_holds_every_shards_last_record(kind: str, seed: int) -> None:
    chance = Random(seed)
    count = chance.choice([5, 60])
    config = FlushConfig(window_s=4.0, group_bytes=200, log_factor=2.0, log_slack_bytes=100)
    core, disk = FlushCore(config), Disk()
    shards = [Entry(f"shard {number}", chance.choice([2, 10, 20])) for number in range(count)]
    now = 0.0
    for shard in shards:
        core.changed(shard, now)
    for step, number in enumerate(load(chance, kind, count)):
        now += 0.05
        core.changed(shards[number], now)
        while (group := core.take(now)) is not None:
            disk.carry_out(core, group)
        for shard in shards:
            assert not shard.sequence or disk.records[shard.sequence] is shard
        assert core.log_bytes == sum(entry.size_bytes for entry in disk.records.values())
        assert core.live_bytes == sum(shard.record_bytes for shard in shards)
        assert core.log_bytes <= max(2.0 * core.live_bytes, 100) + 200, f"seed {seed}, step {step}"
        assert core.unsaved_bytes == sum(s.size_bytes for s in shards if s.changes != s.durable)
        assert core.window_s(now) <= config.window_s
        if step == 3000:
            break
    assert core.updates / core.records > 1.2, "updates fold"
    if kind == "all":
        assert core.rewritten_bytes < 0.35 * core.record_bytes


@pytest.mark.parametrize("seed", range(3))
def test_before_the_end_everything_dirty_is_written(seed: int) -> None:
    core, shards, chance = FlushCore(CONFIG), entries(12), Random(seed)
    for _ in range(30):
        core.changed(chance.choice(shards), 0.0)
    core.hurry()
    while (group := core.take(0.0)) is not None:
        write(core, group)
    assert not core.busy and core.unsaved_bytes == 0


def written(core: FlushCore, seconds: float, now: float) -> None:
    """Writes the next group, as a disk does that takes so long for it."""
    group = core.take(now)
    assert group is not None
    for item in group.items:
        core.taken(item)
    core.finished([item.entry.size_bytes for item in group.items], seconds)


def test_a_window_with_a_range_grows_until_writing_takes_its_share_of_the_disk() -> None:
    config = FlushConfig(window_s=5.0, window_s_max=60.0, disk_share=0.25, group_bytes=64 << 20)
    core = FlushCore(config)
    entry = Entry("model", 64 << 20)
    for number in range(3):
        core.changed(entry, 100.0 * number)
        assert core.window_s_allowed == 5.0
        written(core, 0.2, 100.0 * number + 50)
    for number in range(3, 60):
        core.changed(entry, 100.0 * number)
        written(core, 2.0, 100.0 * number + 99)
    assert core.window_s_allowed == pytest.approx(16.0, rel=0.01), "2 s of writing are a quarter of half a window"
    core.changed(entry, 10_000.0)
    assert core.take(10_007.0) is None and not core.over_limit(10_015.0), "not due, and no pressure"
    assert core.over_limit(10_017.0)
    for number in range(60):
        core.changed(entry, 10_017.0 + 100 * number)
        written(core, 100.0, 10_099.0 + 100 * number)
    assert core.window_s_allowed == 60.0


def test_a_window_without_a_range_is_kept_by_pressure_alone() -> None:
    core = FlushCore(FlushConfig(window_s=5.0, group_bytes=64 << 20))
    entry = Entry("model", 64 << 20)
    core.changed(entry, 0.0)
    written(core, 100.0, 3.0)
    assert core.window_s_allowed == 5.0


def test_a_disk_known_to_be_fast_leaves_shards_dirty_for_longer() -> None:
    core = FlushCore(FlushConfig(window_s=8.0, group_bytes=64 << 20))
    entry = Entry("model", 64 << 20)
    assert core.due_after_s == 4.0, "half of the window, before anything is known"
    core.changed(entry, 0.0)
    written(core, 0.5, 4.0)
    assert core.due_after_s == 6.0, "a quarter is left"
    for number in range(60):
        core.changed(entry, 100.0 * number)
        written(core, 1.5, 100.0 * number + 50)
    assert core.due_after_s == pytest.approx(5.0, rel=0.01), "3 s are left for 1.5 s of writing"
    for number in range(60, 120):
        core.changed(entry, 100.0 * number)
        written(core, 6.0, 100.0 * number + 50)
    assert core.due_after_s == 4.0, "never less than half"


def test_a_group_that_finds_no_room_to_be_confirmed_stays_under_way_and_the_window_bounds_what_follows() -> None:
    core = FlushCore(FlushConfig(window_s=5.0))
    entry = Entry("shard", 1000)
    core.changed(entry, 0.0)
    group = core.take(3.0)
    assert group is not None
    core.taken(group.items[0])
    core.stalled()
    assert core.full and core.take(100.0) is None and core.busy
    assert not core.over_limit(5.0) and core.over_limit(5.1)
    core.finished([1000])
    assert not core.full and not core.busy and not core.over_limit(100.0)


def test_what_was_waited_for_in_a_group_that_found_no_space_comes_before_what_is_waited_for_since() -> None:
    """A shard is durable only if the holding is that makes its record count."""
    core, (holding, *shards) = FlushCore(CONFIG), entries(5)
    core.changed(holding, 0.0)
    core.wait(Waiter("h"), holding, 1)
    group = core.take(0.0)
    assert group is not None
    core.taken(group.items[0])
    for shard in shards:
        core.changed(shard, 0.1)
        core.wait(Waiter("s"), shard, 1)
    core.no_space(0.2)
    assert owners(core.take(2.0)) == ["shard 0", "shard 1", "shard 2", "shard 3"], "and no more than fit"


def test_at_the_end_too_what_is_waited_for_comes_first() -> None:
    core, (shard, holding) = FlushCore(CONFIG), entries(2)
    core.changed(shard, 0.0)
    core.changed(holding, 0.1)
    core.wait(Waiter("h"), holding, 1)
    core.hurry()
    assert owners(core.take(0.2)) == ["shard 1", "shard 0"]
