"""Chooses which of several connections to a server a bucket uses.

Sequence numbers of one client on one shard must arrive in order, so a shard uses one connection at a time: its bucket
keeps its connection as long as it stays on its server. A server's buckets are cut into contiguous ranges of about equal
bytes, so that neighbours, which share the activations of factors, mostly use the same connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from adamctl.errors import ConfigurationError
from adamctl.model.layout import Bucket

CONNECTIONS_MAX = 16


class Route(NamedTuple):
    """One connection to one server; connections are numbered from 0."""

    server: str
    connection: int


def check_connections(connections: int) -> int:
    """Returns the number. Raises ConfigurationError: fewer than 1 or more than CONNECTIONS_MAX."""
    if not 1 <= connections <= CONNECTIONS_MAX:
        raise ConfigurationError(f"connections: expected 1 to {CONNECTIONS_MAX} to each server; found {connections}")
    return connections


class RouteTable:
    """The connections of one client's buckets."""

    def __init__(self, connections: int = 1) -> None:
        """`connections`: how many to use to each server.

        Raises:
            ConfigurationError: fewer than 1 or more than CONNECTIONS_MAX.
        """
        self._connections = check_connections(connections)
        self._routes: dict[int, Route] = {}

    def assign(self, buckets: Sequence[Bucket], servers: Sequence[str]) -> tuple[Route, ...]:
        """Returns each bucket's route; `servers` names the server of each."""
        by_server: dict[str, list[Bucket]] = {}
        for bucket, server in zip(buckets, servers, strict=True):
            by_server.setdefault(server, []).append(bucket)
        for server, mine in by_server.items():
            load_bytes = dict.fromkeys(range(self._connections), 0)
            fresh: list[Bucket] = []
            for bucket in mine:
                route = self._routes.get(bucket.index)
                if route is not None and route.server == server:
                    load_bytes[route.connection] += bucket.size_bytes
                else:
                    fresh.append(bucket)
            if len(fresh) == len(mine):
                self._cut(server, fresh)
            else:
                for bucket in fresh:  # a few have moved to this server
                    connection = min(load_bytes, key=lambda number: (load_bytes[number], number))
                    load_bytes[connection] += bucket.size_bytes
                    self._routes[bucket.index] = Route(server, connection)
        return tuple(self._routes[bucket.index] for bucket in buckets)

    def _cut(self, server: str, buckets: Sequence[Bucket]) -> None:
        total_bytes = max(sum(bucket.size_bytes for bucket in buckets), 1)
        before_bytes = 0
        for bucket in buckets:
            middle_bytes = before_bytes + bucket.size_bytes // 2
            connection = min(middle_bytes * self._connections // total_bytes, self._connections - 1)
            self._routes[bucket.index] = Route(server, connection)
            before_bytes += bucket.size_bytes
