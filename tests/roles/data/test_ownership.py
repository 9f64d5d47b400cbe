"""Ownership of blocks: all agree, shares are even, and nobody else's blocks move when a server comes or goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.roles.data.block_order import BlockOrder
from adamctl.roles.data.ownership import Ownership

DATASET = "0f" * 16
BLOCKS = range(2000)
SERVERS = ("data-1", "data-2", "data-3", "data-4")
OWNERS_OF_TWELVE = "444421121344"


def owners(servers: tuple[str, ...], dataset: str = DATASET) -> list[str]:
    ownership = Ownership(dataset, servers)
    return [ownership.owner(block) for block in BLOCKS]


def test_all_agree_in_whatever_order_they_know_the_servers() -> None:
    assert owners(SERVERS) == owners(SERVERS[::-1]) == owners((*SERVERS, SERVERS[0]))


def test_owners_never_change_between_releases() -> None:
    ownership = Ownership(DATASET, SERVERS)
    assert [ownership.owner(block)[-1] for block in range(12)] == list(OWNERS_OF_TWELVE)


@pytest.mark.parametrize("count", [2, 4])
def test_every_server_owns_its_share(count: int) -> None:
    """Within five standard deviations of a fair draw: hashes are fixed, so this holds always or never."""
    found = owners(SERVERS[:count])
    deviation = (len(BLOCKS) * (1 / count) * (1 - 1 / count)) ** 0.5
    for server in SERVERS[:count]:
        assert abs(found.count(server) - len(BLOCKS) / count) < 5 * deviation


@pytest.mark.parametrize("dead", SERVERS)
def test_a_dead_servers_blocks_fall_to_all_others_and_no_other_moves(dead: str) -> None:
    before = owners(SERVERS)
    after = owners(tuple(server for server in SERVERS if server != dead))
    assert all(new == old for old, new in zip(before, after, strict=True) if old != dead)
    fallen = [new for old, new in zip(before, after, strict=True) if old == dead]
    for server in set(SERVERS) - {dead}:
        assert 0.25 < fallen.count(server) / len(fallen) < 0.42


def test_a_server_that_comes_takes_blocks_and_no_other_moves() -> None:
    before, after = owners(SERVERS), owners((*SERVERS, "data-5"))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"data-5"}
    assert 0.15 < len(moved) / len(BLOCKS) < 0.25


def test_data_sets_of_one_cluster_are_owned_differently() -> None:
    same = sum(one == other for one, other in zip(owners(SERVERS), owners(SERVERS, "1e" * 16), strict=True))
    assert same < len(BLOCKS) / 2


def test_blocks_of_all_servers_are_all_blocks_once() -> None:
    ownership = Ownership(DATASET, SERVERS)
    kept = [ownership.blocks_of(server, BLOCKS) for server in SERVERS]
    assert all(blocks == sorted(blocks) for blocks in kept)
    assert sorted(block for blocks in kept for block in blocks) == list(BLOCKS)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 4))
def test_parts_are_each_place_once_at_the_owner_of_its_block(blocks: list[int], count: int) -> None:
    ownership = Ownership(DATASET, SERVERS[:count])
    parts = ownership.parts(np.array(blocks, np.int64))
    assert sorted(place for places in parts.values() for place in places.tolist()) == list(range(len(blocks)))
    for server, places in parts.items():
        assert len(places)
        assert places.tolist() == sorted(places.tolist())
        assert all(ownership.owner(blocks[place]) == server for place in places)


def test_every_window_draws_from_owners_in_proportion() -> None:
    """A window of 64 blocks is a fair draw of them: its share at each of four servers is near a quarter."""
    order, ownership = BlockOrder([20] * 1280, 7), Ownership(DATASET, SERVERS)
    shares = []
    for run in order.find(0, 0, order.examples):
        parts = ownership.parts(run.blocks)
        shares.append([len(parts[server]) / len(run.blocks) for server in SERVERS])
    assert np.abs(np.array(shares) - 0.25).max() < 5 * (0.25 * 0.75 / 64) ** 0.5


def test_a_death_in_mid_pass_changes_who_serves_and_not_what() -> None:
    order = BlockOrder([20] * 128, 7)
    asked = order.find(3, 700, 1700)
    for servers in (SERVERS, SERVERS[1:], SERVERS[:1]):
        for run in asked:
            parts = Ownership(DATASET, servers).parts(run.blocks)
            gathered = np.full(len(run.blocks), -1)
            for places in parts.values():
                gathered[places] = order.in_file_order(run)[places]
            assert gathered.tolist() == order.in_file_order(run).tolist()


def test_blocks_without_servers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one data server"):
        Ownership(DATASET, ())
