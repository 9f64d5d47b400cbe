"""Which servers hold which buckets: even in bytes, alike whoever asks, and few for each partition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import BUCKETS_PER_SERVER, ParameterLayout, build_layout
from adamctl.model.partition.rules import make_plan
from adamctl.model.placement import place_buckets, place_copies
from tests.model.test_layout import MNIST, SERVERS, models


def loads(layout: ParameterLayout, placement: dict[int, str], servers: list[str]) -> list[int]:
    return [sum(b.size_bytes for b in layout.buckets if placement[b.index] == server) for server in servers]


@settings(deadline=None, max_examples=60)
@given(models(), SERVERS, st.text("abcxyz-09", max_size=8))
def test_every_bucket_is_placed_and_servers_differ_by_one_bucket_at_most(model: Model, count: int, job: str) -> None:
    layout, servers = build_layout(model, count), [f"ps-{number}" for number in range(count)]
    placement = place_buckets(layout, job, servers)
    assert sorted(placement) == list(range(len(layout.buckets)))
    assert set(placement.values()) <= set(servers)
    filled = loads(layout, placement, servers)
    assert max(filled) - min(filled) <= max(bucket.size_bytes for bucket in layout.buckets)


@settings(deadline=None, max_examples=30)
@given(models(), st.permutations(["a", "b", "c", "d"]))
def test_whoever_places_places_alike(model: Model, servers: list[str]) -> None:
    layout = build_layout(model, 4)
    assert place_buckets(layout, "job", servers) == place_buckets(layout, "job", sorted(servers))


def test_jobs_break_ties_differently() -> None:
    """One bucket after another of the same size: only the name of the job says where it goes."""
    layout = build_layout(Model((64,), (Dense(400), Softmax(2))), 3)
    placements = [tuple(place_buckets(layout, f"job-{n}", ["a", "b", "c"]).values()) for n in range(10)]
    assert len(set(placements)) == 10


def test_ties_are_broken_by_a_hash_that_does_not_change() -> None:
    """A coordinator that comes back must find every bucket where it was."""
    layout = build_layout(Model((8,), (Dense(4), Softmax(2))), 2)
    assert place_buckets(layout, "job", ["a", "b"]) == dict(enumerate("bababbbaa"))


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(3, 21))
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_are_on_different_servers_even_in_bytes_and_fall_evenly_to_the_living(count: int, copies: int) -> None:
    layout, servers = build_layout(MNIST, count), [f"ps-{number}" for number in range(count)]
    placement = place_copies(layout, "job", servers, copies)
    assert {index: there[0] for index, there in placement.items()} == place_buckets(layout, "job", servers)
    assert all(len(set(there)) == copies for there in placement.values())
    assert placement == place_copies(layout, "job", servers[::-1], copies)
    largest = max(bucket.size_bytes for bucket in layout.buckets)
    held = [sum(b.size_bytes for b in layout.buckets if server in placement[b.index]) for server in servers]
    assert max(held) - min(held) <= 3 * largest
    for dead in servers if copies > 1 else ():
        left_bytes = dict.fromkeys((server for server in servers if server != dead), 0)
        for bucket in layout.buckets:
            if placement[bucket.index][0] == dead:
                left_bytes[placement[bucket.index][1]] += bucket.size_bytes
        assert max(left_bytes.values()) - min(left_bytes.values()) <= largest


@pytest.mark.parametrize("hosts", [(2, 2, 2), (1, 1, 1), (3, 3, 3, 3), (1, 2, 3, 4, 5, 6), (1, 6, 6)])
@pytest.mark.parametrize("copies", [2, 3])
def test_copies_are_on_different_hosts(hosts: tuple[int, ...], copies: int) -> None:
    host_of = {f"ps-{host}-{number}": str(host) for host, count in enumerate(hosts) for number in range(count)}
    layout = build_layout(MNIST, len(host_of))
    placement = place_copies(layout, "job", list(host_of), copies, host_of)
    assert {index: there[0] for index, there in placement.items()} == place_buckets(layout, "job", list(host_of))
    assert all(len({host_of[server] for server in there}) == copies for there in placement.values())


def test_copies_share_hosts_evenly_where_there_are_too_few() -> None:
    host_of = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    layout = build_layout(MNIST, 4)
    for there in place_copies(layout, "job", list(host_of), 3, host_of).values():
        assert len(set(there)) == 3 and {host_of[server] for server in there} == {"a", "b"}
    one_host = dict.fromkeys(host_of, "a")
    assert place_copies(layout, "job", list(host_of), 3, one_host) == place_copies(layout, "job", list(host_of), 3)


def test_two_copies_need_two_servers() -> None:
    with pytest.raises(ConfigurationError, match=r"cluster\.replication: found 2 copies on 1 servers"):
        place_copies(build_layout(MNIST, 1), "job", ["a"], 2)


def test_there_must_be_a_server_to_place_on() -> None:
    with pytest.raises(ConfigurationError, match="at least one parameter server"):
        place_buckets(build_layout(MNIST, 1), "job", [])


# --- partitions of a replica ----------------------------------------------------------------------------------------

SPEECH = Model((440,), (Dense(512), Dense(512), Dense(512), Softmax(1024)))


def servers_of_partitions(layout: ParameterLayout, placement: dict[int, str], partitions: int) -> list[set[str]]:
    found: list[set[str]] = [set() for _ in range(partitions)]
    for bucket, server in placement.items():
        found[layout.partition_of_bucket[bucket]].add(server)
    return found


@pytest.mark.parametrize(("count", "partitions"), [(2, 2), (4, 2), (8, 2), (8, 4), (2, 4), (3, 3), (9, 3)])
def test_a_partition_has_its_share_of_the_servers_to_itself(count: int, partitions: int) -> None:
    servers = [f"ps-{number}" for number in range(count)]
    layout = build_layout(SPEECH, count, make_plan(SPEECH, partitions).owners)
    placement = place_buckets(layout, "job", servers)
    found = servers_of_partitions(layout, placement, partitions)
    assert {len(there) for there in found} == {max(count // partitions, 1)}
    assert set.union(*found) == set(servers)


@settings(deadline=None, max_examples=100, print_blob=True)
@given(models(), SERVERS, st.integers(2, 9))
def test_servers_stay_even_and_few_serve_a_partition(model: Model, count: int, partitions: int) -> None:
    try:
        owners = make_plan(model, partitions).owners
    except ConfigurationError:
        return
    servers = [f"ps-{number}" for number in range(count)]
    layout = build_layout(model, count, owners)
    placement = place_buckets(layout, "job", servers)
    assert sorted(placement) == list(range(len(layout.buckets)))
    filled = loads(layout, placement, servers)
    step = max(max(bucket.size_bytes for bucket in layout.buckets), sum(filled) // (count * BUCKETS_PER_SERVER))
    assert max(filled) - min(filled) <= 3 * step
    for partition, there in enumerate(servers_of_partitions(layout, placement, partitions)):
        mine = sum(b.size_bytes for b in layout.buckets if layout.partition_of_bucket[b.index] == partition)
        assert len(there) <= mine * count // sum(filled) + 2


def test_second_copies_of_a_partition_are_spread_over_all_other_servers() -> None:
    """So that a dead server's load falls evenly to the living."""
    servers = ["a", "b", "c", "d"]
    layout = build_layout(SPEECH, 4, make_plan(SPEECH, 2).owners)
    placement = place_copies(layout, "job", servers, 2)
    assert {bucket: there[0] for bucket, there in placement.items()} == place_buckets(layout, "job", servers)
    seconds = {there[1] for there in placement.values() if there[0] == "a"}
    assert seconds == {"b", "c", "d"}
