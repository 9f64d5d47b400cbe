"""Plans carried out step by step, by all primaries at once, until nothing is left to do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from adamctl.config.records import BucketRecord
from adamctl.roles.ps.replication.core.placement import (
    AddLearner,
    HandOver,
    RemoveMember,
    Situation,
    Step,
    plan,
    takeover_rank,
)

MIB = 1 << 20


def situation(
    servers: int, buckets: int = 30, replication: int = 3, size_bytes: int = MIB, job: str = "job"
) -> Situation:
    """Buckets on the first servers in turn."""
    names = [f"s{number}" for number in range(servers)]
    records = {}
    for index in range(buckets):
        members = tuple(names[(index + place) % servers] for place in range(min(replication, servers)))
        records[index] = BucketRecord(1, members[0], members)
    sizes = dict.fromkeys(range(buckets), size_bytes)
    return Situation(job, replication, sizes, records, dict.fromkeys(names, 0))


def carried_out(record: BucketRecord, step: Step) -> BucketRecord:
    """Does a step, to the letter of what a primary may do."""
    in_sync, learners, primary = record.in_sync, record.learners, record.primary
    match step:
        case AddLearner(node=node):
            assert node not in in_sync and node not in learners and not learners
            learners = (*learners, node)
        case RemoveMember(node=node):
            assert node != primary and (node in in_sync) != (node in learners)
            in_sync = tuple(member for member in in_sync if member != node)
            learners = tuple(member for member in learners if member != node)
        case HandOver(node=node):
            assert node in in_sync and node != primary and not learners
            primary = node
    return BucketRecord(record.epoch + 1, primary, in_sync, learners)


def with_records(now: Situation, changed: dict[int, BucketRecord]) -> Situation:
    return replace(now, records={**now.records, **changed})


def grown(record: BucketRecord) -> BucketRecord:
    """Its learners have caught up."""
    return BucketRecord(record.epoch + 1, record.primary, (*record.in_sync, *record.learners))


def run(now: Situation, rounds_max: int = 2000, copies_min: int | None = None) -> Situation:
    """All primaries carry their plans out from the same records, again and again; returns the end of it."""
    for _ in range(rounds_max):
        changed: dict[int, BucketRecord] = {}
        for node in sorted(now.living):
            for step in plan(now, node):
                assert step.bucket not in changed and now.records[step.bucket].primary == node
                changed[step.bucket] = carried_out(now.records[step.bucket], step)
        for index, record in now.records.items():
            if index not in changed and record.learners:
                changed[index] = grown(record)
        if not changed:
            return now
        now = with_records(now, changed)
        if copies_min is not None:
            assert min(len(record.in_sync) for record in now.records.values()) >= copies_min
    raise AssertionError(f"not at rest after {rounds_max} rounds")


def lose(now: Situation, node: str) -> Situation:
    """A server dies; the members that are left take its buckets over, and primaries remove it."""
    living = {name: capacity for name, capacity in now.living.items() if name != node}
    records = {}
    for index, record in now.records.items():
        left = tuple(member for member in record.in_sync if member != node)
        primary = record.primary
        if primary == node:
            heirs = [member for member in left if takeover_rank(record, member, living) == 0]
            assert len(heirs) == 1
            primary = heirs[0]
        learners = tuple(learner for learner in record.learners if learner != node)
        records[index] = BucketRecord(record.epoch + 1, primary, left, learners)
    return replace(now, living=living, records=records)


def held(now: Situation) -> dict[str, int]:
    found = dict.fromkeys(now.living, 0)
    for index, record in now.records.items():
        for member in record.in_sync:
            found[member] += now.size_bytes[index]
    return found


def served(now: Situation) -> dict[str, int]:
    found = dict.fromkeys(now.living, 0)
    for index, record in now.records.items():
        found[record.primary] += now.size_bytes[index]
    return found


def test_nothing_is_done_where_all_is_well() -> None:
    now = situation(3)
    assert all(plan(now, node) == [] for node in now.living)


def test_a_dead_servers_buckets_spread_over_the_living() -> None:
    now = lose(situation(4, 40), "s1")
    heirs = served(now)
    assert max(heirs.values()) <= 20 * MIB  # the rotation of `in_sync` alone
    end = run(now, copies_min=2)
    assert all(len(record.in_sync) == 3 for record in end.records.values())
    assert max(served(end).values()) - min(served(end).values()) <= MIB


def test_members_that_are_gone_are_not_too_many() -> None:
    record = BucketRecord(1, "s0", ("s0", "s1", "s2"))
    now = replace(situation(3, 1, replication=2), records={0: record}, living={"s0": 0})
    assert plan(now, "s0") == []


def test_missing_copies_wait_until_the_servers_have_settled_but_the_last_copy_does_not() -> None:
    now = replace(lose(situation(4), "s1"), settled=False)
    assert all(plan(now, node) == [] for node in now.living)
    now = replace(lose(now, "s2"), settled=False)
    alone = {index for index, record in now.records.items() if len(record.in_sync) == 1}
    assert alone and {step.bucket for node in now.living for step in plan(now, node)} <= alone


def test_a_new_server_takes_its_fair_share_a_little_at_a_time() -> None:
    now = situation(3, 40)
    now = replace(now, living={**now.living, "s9": 0})
    learners = [step for node in now.living for step in plan(now, node)]
    assert learners and all(isinstance(step, AddLearner) and step.node == "s9" for step in learners)
    assert len(learners) <= 3
    end = run(now, copies_min=3)
    mean = sum(held(end).values()) / 4
    assert all(abs(found - mean) <= 1.5 * MIB for found in held(end).values())
    assert all(abs(found - mean / 3) <= 1.5 * MIB for found in served(end).values())


def test_draining_moves_everything_off_and_never_takes_a_copy_first() -> None:
    now = replace(situation(4, 40), draining=frozenset({"s0"}))
    end = run(now, copies_min=3)
    assert held(end)["s0"] == 0 and all(len(record.in_sync) == 3 for record in end.records.values())


def test_draining_one_of_three_leaves_two_copies() -> None:
    end = run(replace(situation(3), draining=frozenset({"s0"})), copies_min=2)
    assert held(end)["s0"] == 0 and all(len(record.in_sync) == 2 for record in end.records.values())


def test_draining_one_of_two_single_copies() -> None:
    end = run(replace(situation(2, 10, replication=1), draining=frozenset({"s1"})), copies_min=1)
    assert held(end) == {"s0": 10 * MIB, "s1": 0}


def test_the_last_server_keeps_what_cannot_go_anywhere() -> None:
    now = replace(situation(1, 5, replication=1), draining=frozenset({"s0"}))
    assert plan(now, "s0") == []


def test_a_full_server_is_given_nothing() -> None:
    now = lose(situation(4), "s1")
    full = replace(now, living=dict.fromkeys(now.living, max(held(now).values())))
    heaviest = max(held(now), key=lambda node: held(now)[node])
    targets = {step.node for node in full.living for step in plan(full, node) if isinstance(step, AddLearner)}
    assert heaviest not in targets


def test_a_learner_that_is_gone_is_given_up() -> None:
    now = situation(4)
    record = now.records[0]
    stuck = BucketRecord(2, record.primary, record.in_sync, ("s3",))
    now = replace(now, records={**now.records, 0: stuck}, living={"s0": 0, "s1": 0, "s2": 0})
    (step,) = [step for step in plan(now, record.primary) if step.bucket == 0]
    assert step == RemoveMember(0, "s3", "learner removed: it is gone")


def test_takeover_goes_by_the_order_of_the_living_members() -> None:
    record = BucketRecord(5, "a", ("b", "a", "c", "d"))
    assert [takeover_rank(record, node, {"b", "c", "d"}) for node in "abcde"] == [None, 0, 1, 2, None]
    assert takeover_rank(record, "d", {"d"}) == 0
    assert takeover_rank(record, "b", {"c"}) is None


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_and_goes_it_ends_whole_and_even(seed: int) -> None:
    random = Random(seed)
    servers = random.randint(2, 7)
    replication = random.randint(1, 3)
    sizes = [random.choice((1, 3, 8)) * MIB // 8 for _ in range(random.randint(5, 60))]
    now = situation(servers, len(sizes), replication)
    now = replace(now, size_bytes=dict(enumerate(sizes)))
    born = 0
    for _ in range(6):
        hosts = now.available
        draw = random.random()
        safe = all(len(record.in_sync) > 1 for record in now.records.values())
        if draw < 0.3 and len(hosts) > replication and safe:
            now = lose(now, random.choice(sorted(now.living)))
        elif draw < 0.6:
            born += 1
            now = replace(now, living={**now.living, f"n{born}": 0})
        elif len(hosts) > max(replication, 1):
            now = replace(now, draining=now.draining | {random.choice(hosts)})
        if random.random() < 0.5:  # it goes on before the last change is through
            steps = [step for node in now.living for step in plan(now, node)]
            now = with_records(now, {step.bucket: carried_out(now.records[step.bucket], step) for step in steps})
        else:
            now = run(now)
    end = run(now)
    wanted = min(replication, len(end.available))
    assert all(len(record.in_sync) == wanted for record in end.records.values())
    assert all(held(end)[node] == 0 for node in end.draining if node in end.living)
    found = [held(end)[node] for node in end.available]
    assert max(found) - min(found) <= 2 * max(sizes)
