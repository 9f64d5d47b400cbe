"""One address that opens many connections, or causes many log lines, takes nothing from others."""

from __future__ import annotations

import pytest

from adamctl.net.sources import ELSEWHERE, SOURCES_MAX, LineQuota, Newcomers, source_of


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("user 1000", "user 1000"),
    ],
)
def test_sources(host: str, source: str) -> None:
    assert source_of(host) == source


def test_the_oldest_of_the_address_with_the_most_goes() -> None:
    newcomers = Newcomers[int](4)
    assert [newcomers.add(number, "honest") for number in (1, 2)] == [None, None]
    assert [newcomers.add(number, "hostile") for number in (3, 4)] == [None, None]
    assert [newcomers.add(number, "hostile") for number in (5, 6, 7)] == [3, 4, 5]
    assert list(newcomers) == [1, 2, 6, 7]


def test_an_address_alone_may_have_all_places_and_loses_them_to_others() -> None:
    newcomers = Newcomers[int](4)
    assert [newcomers.add(number, "one") for number in range(4)] == [None] * 4
    assert newcomers.add(10, "other") == 0 and newcomers.add(11, "third") == 1
    newcomers.discard(10)
    newcomers.discard(10)
    assert list(newcomers) == [2, 3, 11] and len(newcomers) == 3
    assert newcomers.add(12, "other") is None


def test_lines_beyond_the_quota_of_an_address_are_summed_up() -> None:
    lines = LineQuota(2, 10.0)
    assert [lines.take("a", 0.0) for _ in range(5)] == [True, True, False, False, False]
    assert lines.take("b", 4.0), "another address is not in its way"
    assert lines.sums(9.9) == []
    assert lines.sums(10.0) == [("a", 3)]
    assert lines.take("a", 10.0) and lines.sums(15.0) == [], "nothing is said of an address within its quota"


def test_the_memory_of_addresses_is_bounded() -> None:
    lines = LineQuota(1, 10.0)
    assert all(lines.take(str(number), 0.0) for number in range(SOURCES_MAX))
    assert [lines.take(f"new {number}", 1.0) for number in range(3)] == [True, False, False]
    assert lines.take("0", 1.0) is False
    assert lines.sums(11.0) == [("0", 1), (ELSEWHERE, 2)]
