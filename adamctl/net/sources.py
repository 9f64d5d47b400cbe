"""Accounts for where connections come from, so that one address cannot harm others. Pure.

A source is a machine's address, or a user of this machine. Connections that have proved their identity are not counted
here: hundreds of workers of one host may have several each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)
SOURCES_MAX = 1024
"""Most sources whose log lines are counted separately; all others are counted together."""
ELSEWHERE = "other addresses"
_PREFIX_BITS = 64  # IPv6: one host may have all addresses of such a network


def source_of(host: str) -> str:
    """Returns the source that an IP address belongs to; any other text is its own source."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address) if address.is_loopback else str(IPv6Network((address, _PREFIX_BITS), strict=False))


class Newcomers(Generic[Connection]):
    """Connections that have not said HELLO yet, oldest first; decides which one goes when there are too many."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._source: dict[Connection, str] = {}
        self._count: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._source))

    def __len__(self) -> int:
        return len(self._source)

    def add(self, connection: Connection, source: str) -> Connection | None:
        """Adds a connection; returns the one that has to go for it, which has been removed.

        It is the oldest one of the source with the most: honest clients say HELLO at once, so their source has fewer
        than one that keeps connections open.
        """
        self._source[connection] = source
        self._count[source] += 1
        if len(self._source) <= self._count_max:
            return None
        most = max(self._count.values())
        gone = next(one for one, where in self._source.items() if self._count[where] == most)
        self.discard(gone)
        return gone

    def discard(self, connection: Connection) -> None:
        """Removes a connection if present."""
        source = self._source.pop(connection, None)
        if source is not None:
            self._count[source] -= 1
            if not self._count[source]:
                del self._count[source]


@dataclass
class _Window:
    began_s: float
    lines: int = 0


class LineQuota:
    """How many log lines each source may cause; further ones are only counted."""

    def __init__(self, lines_max: int, window_s: float) -> None:
        self._lines_max = lines_max
        self._window_s = window_s
        self._windows: dict[str, _Window] = {}

    def take(self, source: str, now: float) -> bool:
        """Counts a line about a source; returns whether it may be written. Ask for `sums` first."""
        if source not in self._windows and len(self._windows) >= SOURCES_MAX:
            source = ELSEWHERE
        window = self._windows.setdefault(source, _Window(now))
        window.lines += 1
        return window.lines <= self._lines_max

    def sums(self, now: float) -> list[tuple[str, int]]:
        """Returns (source, lines not written) of windows that have ended; the next line starts a new window."""
        found = []
        for source, window in list(self._windows.items()):  # the oldest first
            if now - window.began_s < self._window_s:
                break
            del self._windows[source]
            if window.lines > self._lines_max:
                found.append((source, window.lines - self._lines_max))
        return found
