"""What a client learns in passing of its servers and of the network to them, for the choice of how to push."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adamctl.model.protocol import Prices
from adamctl.wire.messages import ServerLoad

PULL_BYTES_MIN = 1 << 20
"""Of a pull that says something about the network: less is latency."""
PULLS_KEPT = 16
PRODUCTS_PER_S = 40e9
ADDS_PER_S = 3e9
"""What one server is taken to do before it has been seen to: multiply-adds of factors, elements of gradients."""


class Measurements:
    """One client's. The best of the last pulls counts: others have waited for updates that were being applied."""

    def __init__(self) -> None:
        self._loads: dict[str, ServerLoad] = {}
        self._pulls_bytes_per_s: deque[float] = deque(maxlen=PULLS_KEPT)

    def pulled(self, size_bytes: int, elapsed_s: float) -> None:
        """A pull of this many bytes, from all servers at once, took so long."""
        if size_bytes >= PULL_BYTES_MIN and elapsed_s > 0:
            self._pulls_bytes_per_s.append(size_bytes / elapsed_s)

    def told(self, server: str, load: ServerLoad | None) -> None:
        """A server has said how busy it is."""
        if load is not None:
            self._loads[server] = load

    def prices(self, servers: Iterable[str]) -> Prices | None:
        """Returns what pushes to these servers cost, or None as long as too little is known."""
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
