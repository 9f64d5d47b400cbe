"""Which parameter servers hold which buckets of a job: a pure function, so that every role finds the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

from adamctl.errors import ConfigurationError
from adamctl.model.layout import BUCKETS_PER_SERVER, ParameterLayout


def place_buckets(layout: ParameterLayout, job: str, servers: list[str]) -> dict[int, str]:
    """Returns bucket index -> server: each bucket goes to the server with the fewest bytes, smallest layers first.

    So servers differ by at most one bucket. A server with a part of a small layer, which is often pushed as a whole, is
    skipped by the next layers, each of which sends all of its activations to every server that holds a part.
    A stable hash of (job, bucket, server) breaks ties, so that every caller gets the same placement and jobs spread
    differently.

    With partitions, servers are filled with the buckets of one partition after the other. So each one's are on as few
    servers as keep the servers even, S / P of S servers for each of P equal partitions, and its factors go to few.

    Raises:
        ConfigurationError: there are no servers.
    """
    if not servers:
        raise ConfigurationError("expected at least one parameter server to place buckets on; found none")
    layer_bytes: dict[int, int] = {}
    partition_bytes = [0] * (layout.owners.partitions if layout.owners else 1)
    for bucket in layout.buckets:
        layer_bytes[layout.layer_of(bucket)] = layer_bytes.get(layout.layer_of(bucket), 0) + bucket.size_bytes
        partition_bytes[layout.partition_of_bucket[bucket.index]] += bucket.size_bytes
    smallest_first = sorted(layout.buckets, key=lambda b: (layer_bytes[layout.layer_of(b)], -b.size_bytes, b.index))
    load_bytes = dict.fromkeys(sorted(servers), 0)
    placement: dict[int, str] = {}
    for partition in range(len(partition_bytes)):
        room = _room(partition, partition_bytes, load_bytes)
        for bucket in smallest_first:
            if layout.partition_of_bucket[bucket.index] != partition:
                continue
            chosen = min(room, key=lambda server: (-room[server], _tie(job, bucket.index, server)))
            placement[bucket.index] = chosen
            load_bytes[chosen] += bucket.size_bytes
            room[chosen] -= bucket.size_bytes * len(servers)
    return placement


def _room(partition: int, partition_bytes: list[int], load_bytes: dict[str, int]) -> dict[str, int]:
    """Returns how much of a partition each server takes, in bytes times the number of servers.

    Partitions, and servers of equal room, lie side by side on the same line: a server takes what lies above it, less
    what it has got too much of before. Overlaps smaller than a bucket are left to the neighbour.
    """
    count, share = len(load_bytes), sum(partition_bytes)
    start = sum(partition_bytes[:partition]) * count
    stop = start + partition_bytes[partition] * count
    overlap: dict[str, int] = {}
    room: dict[str, int] = {}
    for number, (server, load) in enumerate(load_bytes.items()):
        last = min(stop, (number + 1) * share)
        overlap[server] = last - max(start, number * share)
        room[server] = last - number * share - load * count
    least = min(share // BUCKETS_PER_SERVER, max(overlap.values()))
    return {server: room[server] for server in room if overlap[server] >= least}


def place_copies(
    layout: ParameterLayout, job: str, servers: list[str], copies: int, domain_of: Mapping[str, str] | None = None
) -> dict[int, tuple[str, ...]]:
    """Returns bucket index -> `copies` different servers: the primary, as in `place_buckets`, then the others.

    The next server in order takes over when a primary dies. So the second copies of a primary's buckets are spread over
    all other servers, which share a dead server's load evenly; if that leaves a choice, a copy goes to the server with
    the fewest bytes. Third copies are spread the same way, for each pair of first and second.

    `domain_of` names servers' failure domains; one that is missing there fails alone. Copies of a bucket share a domain
    only if there are fewer domains than copies. `roles/ps/replication/core/placement.py` keeps to the same rule later.

    Raises:
        ConfigurationError: there are fewer servers than copies.
    """
    if copies > len(servers):
        raise ConfigurationError(
            f"cluster.replication: found {copies} copies on {len(servers)} servers; expected at most cluster.ps"
        )
    primaries = place_buckets(layout, job, servers)
    placement: dict[int, tuple[str, ...]] = {index: (primary,) for index, primary in primaries.items()}
    domains = {server: (domain_of or {}).get(server, server) for server in servers}
    held_bytes = dict.fromkeys(sorted(servers), 0)  # without the primaries, which are already even
    largest_first = sorted(layout.buckets, key=lambda bucket: (-bucket.size_bytes, bucket.index))
    for _ in range(1, copies):
        follows_bytes: dict[tuple[str, ...], int] = {}
        for bucket in largest_first:
            there = placement[bucket.index]
            beside = Counter(domains[server] for server in there)
            free = [server for server in held_bytes if server not in there]
            fewest = min(beside[domains[server]] for server in free)
            free = [server for server in free if beside[domains[server]] == fewest]
            ties = {server: _tie(job, bucket.index, server) for server in free}
            chosen = min(
                free, key=lambda server: (follows_bytes.get((*there, server), 0), held_bytes[server], ties[server])
            )
            placement[bucket.index] = (*there, chosen)
            follows_bytes[*there, chosen] = follows_bytes.get((*there, chosen), 0) + bucket.size_bytes
            held_bytes[chosen] += bucket.size_bytes
    return placement


def _tie(job: str, bucket: int, server: str) -> bytes:
    return hashlib.blake2b(f"{job}/{bucket}/{server}".encode(), digest_size=8).digest()
