"""Ownership of blocks: all agree, shares are even, and nobody else's blocks move when a server comes or goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.roles.data.order.block_order import BlockOrder
from adamctl.roles.data.order.ownership import Blocks, Ownership, Share, blocks_of, share_problem
from tests.roles.data.orders import in_file_order

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


@settings(max_examples=40)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 4))
def test_parts_are_each_place_once_at_the_owner_of_its_block(blocks: list[int], count: int) -> None:
    ownership = Ownership(DATASET, SERVERS[:count])
    parts = {server: ownership.part(np.array(blocks, np.int64), server) for server in ownership.servers}
    assert sorted(place for places in parts.values() for place in places.tolist()) == list(range(len(blocks)))
    for server, places in parts.items():
        assert places.tolist() == sorted(places.tolist())
        assert all(ownership.owner(blocks[place]) == server for place in places)


def test_every_window_draws_from_owners_in_proportion() -> None:
    """A window of 64 blocks is a fair draw of them: its share at each of four servers is near a quarter."""
    order, ownership = BlockOrder([20] * 1280, 7), Ownership(DATASET, SERVERS)
    shares = []
    for run in order.find(0, 0, order.examples):
        shares.append([len(ownership.part(run.blocks, server)) / len(run.blocks) for server in SERVERS])
    assert np.abs(np.array(shares) - 0.25).max() < 5 * (0.25 * 0.75 / 64) ** 0.5


def test_a_death_in_mid_pass_changes_who_serves_and_not_what() -> None:
    order = BlockOrder([20] * 128, 7)
    asked = order.find(3, 700, 1700)
    for servers in (SERVERS, SERVERS[1:], SERVERS[:1]):
        for run in asked:
            ownership = Ownership(DATASET, servers)
            gathered = np.full(len(run.blocks), -1)
            for places in (ownership.part(run.blocks, server) for server in servers):
                gathered[places] = in_file_order(order, run)[places]
            assert gathered.tolist() == in_file_order(order, run).tolist()


@pytest.mark.parametrize("examples", [0, 1, 700, 20_000, 5_000_000])
def test_a_set_of_any_size_has_blocks_enough_to_share_out_evenly(examples: int) -> None:
    blocks = Blocks(examples).of(np.arange(examples))
    assert len(set(blocks.tolist())) >= min(examples, 1024)
    if examples:
        part = Ownership(DATASET, SERVERS[:2]).part(blocks, SERVERS[0])
        assert abs(len(part) / examples - 0.5) < 5 * 0.5 / min(examples, 1024) ** 0.5


def test_what_is_read_at_once_has_one_owner() -> None:
    groups = np.array([0, 0, 1, 1, 1, 2])
    labels = np.zeros(6, np.int32)
    of_groups = SimpleNamespace(groups=lambda split: groups, labels=lambda split: labels)
    assert blocks_of(of_groups, "train").of(np.array([5, 0, 3])).tolist() == [2, 0, 1]  # type: ignore[arg-type]
    by_block = SimpleNamespace(
        blocks=lambda split: np.array([2, 3, 1]), labels=lambda split: labels, sequential=True, resident=False
    )
    assert blocks_of(by_block, "train").of(np.arange(6)).tolist() == [0, 0, 1, 1, 1, 2]  # type: ignore[arg-type]
    by_block.sequential = False
    assert blocks_of(by_block, "train").of(np.arange(6)).tolist() == list(range(6)), "read one by one as well"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (Share((), 0), "servers"),
        (Share(("a", "b"), 2), "servers"),
        (Share(("a", "b"), -1), "servers"),
        (Share(("b", "a"), 0), "sorted"),
        (Share(("a", "a"), 0), "sorted"),
        (Share(("a",), 0, b"abc"), "4 bytes each"),
        (Share(("a",), 0, np.array([3, 2], np.int32).tobytes()), "ascending"),
        (Share(("a",), 0, np.array([-1], np.int32).tobytes()), "range of 10"),
        (Share(("a",), 0, np.array([4, 10], np.int32).tobytes()), "range of 10"),
        (Share(tuple(f"{number:04d}" for number in range(1025)), 0), "1 to 1024"),
    ],
)
def test_shares_that_cannot_be_are_refused(share: Share, said: str) -> None:
    assert said in str(share_problem(share, 10))


def test_shares_that_can_be_are_not() -> None:
    rows = np.array([0, 9], np.int32).tobytes()
    assert all(share_problem(share, 10) is None for share in (None, Share(("a",), 0), Share(("a", "b"), 1, rows)))


def test_blocks_without_servers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one data server"):
        Ownership(DATASET, ())


def test_files_that_are_fetched_are_owned_whole() -> None:
    examples = 40 * 25
    source: Any = SimpleNamespace(
        labels=lambda split: np.zeros(examples, np.int32), sequential=True, blocks=lambda split: np.full(100, 10)
    )
    assert blocks_of(source, "train").of(np.array([0, 9, 10, 999])).tolist() == [0, 0, 1, 99]
    source.fetched = lambda split: np.full(40, 25)
    assert blocks_of(source, "train").of(np.array([0, 24, 25, 999])).tolist() == [0, 0, 1, 39]
    for few in (np.array([500, 500]), None):
        source.fetched = lambda split, few=few: few
        assert blocks_of(source, "train").of(np.array([0, 9, 10, 999])).tolist() == [0, 0, 1, 99]
