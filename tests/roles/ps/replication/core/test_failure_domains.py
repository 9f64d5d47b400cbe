"""Copies by failure domain: plans over random hosts of servers that die, come back and are drained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from adamctl.config.records import BucketRecord
from adamctl.roles.ps.core.instructions import Notice
from adamctl.roles.ps.replication.core.placement import AddLearner, RemoveMember, Situation, plan
from tests.roles.ps.replica_cluster import Cluster
from tests.roles.ps.replication.core.test_placement import MIB, carried_out, grown, held, lose, run, with_records


def on_hosts(hosts: dict[str, int], sizes: list[int], replication: int, random: Random) -> Situation:
    """Buckets on random servers, as if nobody had looked at hosts."""
    domain_of = {f"{host}-{number}": host for host, servers in hosts.items() for number in range(servers)}
    records = {}
    for index in range(len(sizes)):
        members = tuple(random.sample(sorted(domain_of), min(replication, len(domain_of))))
        records[index] = BucketRecord(1, members[0], members)
    living = dict.fromkeys(domain_of, 0)
    return Situation("job", replication, dict(enumerate(sizes)), records, living, domain_of=domain_of)


def fewest_together(now: Situation, copies: int) -> int:
    """How many pairs of copies must share a host, whoever places them."""
    room = Counter(now.domain(node) for node in now.available)
    taken = dict.fromkeys(room, 0)
    for _ in range(copies):
        host = min((host for host in room if taken[host] < room[host]), key=lambda host: taken[host])
        taken[host] += 1
    return sum(count * (count - 1) // 2 for count in taken.values())


def even_bytes(now: Situation, copies: int) -> dict[str, float]:
    """What each server holds if all hold the same, but for hosts that must hold more or cannot hold so much."""
    servers = Counter(now.domain(node) for node in now.available)
    total = sum(now.size_bytes[index] for index in now.records)
    least, most = divmod(copies, len(servers))
    most = least + bool(most)
    most += next((extra for extra in range(copies) if sum(min(n, most + extra) for n in servers.values()) >= copies), 0)
    low, high = 0.0, float(copies * total)
    for _ in range(100):
        level = (low + high) / 2
        bytes_of = {
            host: min(max(level * count, min(least, count) * total), min(most, count) * total)
            for host, count in servers.items()
        }
        low, high = (level, high) if sum(bytes_of.values()) < copies * total else (low, level)
    return {node: bytes_of[now.domain(node)] / servers[now.domain(node)] for node in now.available}


def expect_apart_and_even(now: Situation, slack_bytes: int) -> None:
    copies = min(now.replication, len(now.available))
    assert all(len(record.in_sync) == copies and not record.learners for record in now.records.values())
    assert all(held(now)[node] == 0 for node in now.draining if node in now.living)
    fewest = fewest_together(now, copies)
    assert {now.together(record.in_sync) for record in now.records.values()} == {fewest}
    wanted = even_bytes(now, copies)
    off = {node: held(now)[node] - wanted[node] for node in now.available}
    assert max(map(abs, off.values())) <= slack_bytes, off


def at_rest(now: Situation) -> Situation:
    """Carries plans out until there is none; no bucket goes to and fro between servers on the way.

    For balance a server may be given a bucket again, since two moves at once may each count on the other.
    """
    given: Counter[tuple[int, str]] = Counter()
    for _ in range(4000):
        changed: dict[int, BucketRecord] = {}
        for node in sorted(now.living):
            for step in plan(now, node):
                if isinstance(step, AddLearner):
                    given[step.bucket, step.node] += 1
                    assert given[step.bucket, step.node] <= (4 if "balance" in step.why else 1), f"to and fro: {step}"
                before = now.records[step.bucket]
                changed[step.bucket] = carried_out(before, step)
                if isinstance(step, RemoveMember) and step.node in before.in_sync:
                    staying = [member for member in before.in_sync if member in now.available]
                    assert len(staying) >= min(now.replication, 2), "a copy was taken before there was another"
        for index, record in now.records.items():
            if index not in changed and record.learners:
                changed[index] = grown(record)
        if not changed:
            return now
        now = with_records(now, changed)
    raise AssertionError("not at rest")


def expect_apart_whatever_happens(seed: int, hosts_max: int, servers_max: int) -> None:
    random = Random(seed)
    hosts = {f"h{number}": random.randint(1, servers_max) for number in range(random.randint(1, hosts_max))}
    sizes = [random.choice((1, 3, 8)) * MIB // 8 for _ in range(random.randint(5, 60))]
    now = at_rest(on_hosts(hosts, sizes, random.randint(1, 3), random))
    expect_apart_and_even(now, 2 * max(sizes))
    dead: list[str] = []
    for _ in range(6):
        draw = random.random()
        safe = all(len(record.in_sync) > 1 for record in now.records.values())
        if draw < 0.4 and safe and len(now.available) > now.replication:
            dead.append(random.choice(sorted(now.living)))
            now = lose(now, dead[-1])
        elif draw < 0.7 and dead:
            now = replace(now, living={**now.living, dead.pop(random.randrange(len(dead))): 0})
        elif len(now.available) > now.replication:
            now = replace(now, draining=now.draining | {random.choice(now.available)})
        if random.random() < 0.5:  # it goes on before the last change is through
            steps = [step for node in now.living for step in plan(now, node)]
            now = with_records(now, {step.bucket: carried_out(now.records[step.bucket], step) for step in steps})
        else:
            now = at_rest(now)
    expect_apart_and_even(at_rest(now), 2 * max(sizes))


def two_on_a() -> Situation:
    """One bucket, both copies on host a, and a server on host b."""
    records = {0: BucketRecord(1, "a1", ("a1", "a2"))}
    domain_of = {"a1": "a", "a2": "a", "b1": "b"}
    return Situation("job", 2, {0: MIB}, records, dict.fromkeys(domain_of, 0), domain_of=domain_of)


def test_copies_that_share_a_host_are_moved_apart_and_are_never_fewer() -> None:
    now = two_on_a()
    (step,) = plan(now, "a1")
    assert step == AddLearner(0, "b1", "copies share a failure domain, and this one is in another")
    now = with_records(now, {0: grown(carried_out(now.records[0], step))})
    end = run(now, copies_min=2)
    assert "b1" in end.records[0].in_sync and len(end.records[0].in_sync) == 2


def test_nothing_is_moved_apart_while_servers_come_and_go() -> None:
    assert plan(replace(two_on_a(), settled=False), "a1") == []


def test_a_host_without_room_is_not_waited_for_and_a_busy_one_is() -> None:
    full = replace(two_on_a(), living={"a1": 0, "a2": 0, "b1": MIB - 1})
    assert plan(full, "a1") == []
    alone = replace(two_on_a(), records={0: BucketRecord(1, "a1", ("a1",))})
    assert plan(replace(alone, living=full.living), "a1") == [AddLearner(0, "a2", "1 of 2 copies")]
    assert plan(alone, "a1") == [AddLearner(0, "b1", "1 of 2 copies")]
    busy = {number: BucketRecord(1, f"c{number}", (f"c{number}",), ("b1",)) for number in (1, 2)}
    living = {**alone.living, "c1": 0, "c2": 0}
    domain_of = {**alone.domain_of, "c1": "a", "c2": "a"}
    records, sizes = {**alone.records, **busy}, dict.fromkeys(range(3), 1)
    waits = replace(alone, living=living, domain_of=domain_of, records=records, size_bytes=sizes)
    assert plan(waits, "a1") == []


def test_domains_are_missing_when_there_are_fewer_than_copies() -> None:
    now = two_on_a()
    assert now.domains_missing == 0
    assert replace(now, draining=frozenset({"b1"})).domains_missing == 1
    assert replace(now, replication=3).domains_missing == 1


def notices(cluster: Cluster) -> list[str]:
    said = [one.text for one in cluster["a"].said if isinstance(one, Notice)]
    return [text for text in said if " for 2 copies" in text]


def test_too_few_hosts_are_told_of_once_and_so_is_their_end() -> None:
    cluster = Cluster(spare="d", replication=2, domain_of={"a": "h", "b": "h", "c": "h", "d": "i"})
    cluster.kill("d")
    cluster.pass_time(60.0)
    told = notices(cluster)
    assert told == ["1 failure domain for 2 copies: copies share one, and are lost with it; start servers elsewhere"]
    cluster.start("d")
    cluster.configure()
    cluster.pass_time(60.0)
    assert notices(cluster) == [*told, "2 failure domains for 2 copies: enough"]
    assert "d" in cluster.record().in_sync and len(cluster.record().in_sync) == 2


@pytest.mark.parametrize("seed", range(12))
def test_no_two_copies_share_a_host_where_that_can_be_avoided(seed: int) -> None:
    expect_apart_whatever_happens(seed, 5, 3)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(100))
def test_no_two_copies_share_a_host_in_a_thousand_clusters(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        print(f"seed {seed}")
        expect_apart_whatever_happens(seed, 12, 6)
