"""Several connections to a server: shards stay on theirs, and stretches of about equal bytes go on each."""

from __future__ import annotations

import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.layout import Bucket
from adamctl.roles.ps.client.route_table import CONNECTIONS_MAX, Route, RouteTable

BUCKETS = [Bucket(index, index, index + 1, 100 + 10 * (index % 3)) for index in range(24)]


@pytest.mark.parametrize("connections", [1, 2, 3, 4])
def test_each_server_gets_stretches_of_about_equal_bytes(connections: int) -> None:
    routes = RouteTable(connections).assign(BUCKETS, ["ab"[bucket.index % 2] for bucket in BUCKETS])
    for number, server in enumerate("ab"):
        mine = routes[number::2]
        assert {route.server for route in mine} == {server}
        numbers = [route.connection for route in mine]
        assert numbers == sorted(numbers) and set(numbers) == set(range(connections))
        loads = [
            sum(
                bucket.size_bytes
                for bucket, route in zip(BUCKETS, routes, strict=True)
                if route == Route(server, connection)
            )
            for connection in range(connections)
        ]
        assert max(loads) - min(loads) <= 2 * 120


def test_a_bucket_keeps_its_connection_as_long_as_its_server() -> None:
    table = RouteTable(2)
    before = table.assign(BUCKETS, ["a"] * 12 + ["b"] * 12)
    after = table.assign(BUCKETS, ["a"] * 11 + ["b"] * 13)
    assert before[:11] == after[:11] and before[12:] == after[12:]
    assert after[11].server == "b"
    back = table.assign(BUCKETS, ["a"] * 12 + ["b"] * 12)
    assert back[:11] == before[:11] and back[12:] == before[12:] and back[11].server == "a"


def test_what_comes_to_a_server_goes_where_least_is() -> None:
    table = RouteTable(2)
    table.assign(BUCKETS[:3], ["a", "a", "a"])
    routes = table.assign(BUCKETS[:4], ["a", "a", "a", "a"])
    loads = [sum(BUCKETS[n].size_bytes for n, route in enumerate(routes) if route.connection == c) for c in (0, 1)]
    assert max(loads) <= 240


@pytest.mark.parametrize("connections", [0, CONNECTIONS_MAX + 1])
def test_how_many_there_may_be(connections: int) -> None:
    with pytest.raises(ConfigurationError, match=f"expected 1 to {CONNECTIONS_MAX}"):
        RouteTable(connections)
