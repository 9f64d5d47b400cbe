"""Ports for processes that have to be told theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

FIRST, LAST = 20_000, 32_000
"""Below those that systems hand out by themselves: no connection of another test can take one meanwhile."""
_CHANCE = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Returns as many TCP ports of loopback that were free just now."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", _CHANCE.randint(FIRST, LAST)))
                ports.append(one.getsockname()[1])
        return ports
