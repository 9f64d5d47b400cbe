"""What is remembered of where connections come from, so that one address costs others nothing. Pure.

A source is an address of a machine, or a user of this one. Connections that have proved who they are are not counted
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
"""Of which log lines are counted one by one; those of all others are counted together."""
ELSEWHERE = "other addresses"
_PREFIX_BITS = 64  # of IPv6, of which one host may have all addresses


def source_of(host: str) -> str:
    """Returns the source that an IP address belongs to; what is no IP address stands for itself."""
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
    """Connections that have not said HELLO yet, oldest first, and which of them goes when there are too many."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._source: dict[Connection, str] = {}
        self._count: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._source))

    def __len__(self) -> int:
        return len(self._source)

    def add(self, connection: Connection, source: str) -> Connection | None:
        """Takes a connection in; returns the one that has to go for it, which is not among them any more.

        It is the oldest of the source that has the most: who means well says HELLO at once, and does so from a source
        that has fewer than one that holds places open.
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
        """Forgets a connection, if it is there."""
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
    """How many log lines each source may cause; what goes beyond is summed up."""

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
        """Returns (source, lines not written) of windows that have ended, which begin anew with the next line."""
        found = []
        for source, window in list(self._windows.items()):  # the oldest first
            if now - window.began_s < self._window_s:
                break
            del self._windows[source]
            if window.lines > self._lines_max:
                found.append((source, window.lines - self._lines_max))
        return found
