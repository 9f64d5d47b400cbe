"""What a client measures about its servers and network during pushes and pulls, to choose how to push."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adamctl.model.protocol import Prices
from adamctl.wire.messages import ServerLoad

PULL_BYTES_MIN = 1 << 20
"""Smaller pulls say nothing about bandwidth: their time is mostly latency."""
PULLS_KEPT = 16
PRODUCTS_PER_S = 40e9
ADDS_PER_S = 3e9
"""A server's assumed speed until it is measured: multiply-adds of factors, elements of gradients."""


class Measurements:
    """Measurements of one client. The best recent pull counts: slower ones waited for updates being applied."""

    def __init__(self) -> None:
        self._loads: dict[str, ServerLoad] = {}
        self._pulls_bytes_per_s: deque[float] = deque(maxlen=PULLS_KEPT)

    def pulled(self, size_bytes: int, elapsed_s: float) -> None:
        """Notes that a pull of `size_bytes` from all servers at once took `elapsed_s`."""
        if size_bytes >= PULL_BYTES_MIN and elapsed_s > 0:
            self._pulls_bytes_per_s.append(size_bytes / elapsed_s)

    def told(self, server: str, load: ServerLoad | None) -> None:
        """Notes a server's report of how busy it is."""
        if load is not None:
            self._loads[server] = load

    def prices(self, servers: Iterable[str]) -> Prices | None:
        """Returns what pushes to these servers cost, or None while too little is known."""
        loads = [self._loads.get(server) for server in servers]
        known = [load for load in loads if load is not None]
        if not known or len(known) < len(loads) or not self._pulls_bytes_per_s:
            return None
        return Prices(
            max(self._pulls_bytes_per_s),
            max(load.busy for load in known),
            sum(load.products_per_s or PRODUCTS_PER_S for load in known),
            sum(load.adds_per_s or ADDS_PER_S for load in known),
        )
