"""Agents without processes, many in one: each joins a front, says of every role at once that it serves, and stays.

    python -m adamctl.bench.hosts.fake_agents FRONT FIRST COUNT

The token is in ADAMCTL_TOKEN. Ends when it is told to, or killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable, Sequence

from adamctl import __version__
from adamctl.net import loop
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.host.client import FrontLink
from adamctl.roles.host.core.arguments import Roots
from adamctl.roles.host.core.host_core import HostCore
from adamctl.roles.host.core.instructions import FindPorts, Instruction, Leave, SignalProcess, StartProcess
from adamctl.wire.messages import HostEnded, HostJoinReply, HostJoinRequest, Order

CORES = 16
WAIT_S = 60.0


class FakeAgent:
    """One agent: the core and the connection of a real one, and no processes."""

    def __init__(self, transport: StreamTransport, front: str, number: int, token: str) -> None:
        self._name = f"fake-{number}"
        self._core = HostCore(Roots(("/",), ("/",)))
        self._number = number
        self.left = asyncio.Event()
        self.link = FrontLink(
            transport, front, make_hello("host", self._name, 0, token), self._core, self._join, self._on_joined,
            self._on_orders, logging.getLogger(__name__),
        )  # fmt: skip

    def _join(self, run: str) -> HostJoinRequest:
        return HostJoinRequest(self._name, self._number + 1, self._name, CORES, 1 << 34, "127.0.0.1", run, __version__)

    def _on_joined(self, reply: HostJoinReply) -> None:
        self._core.joined(reply, asyncio.get_running_loop().time())

    def _on_orders(self, orders: Sequence[Order]) -> None:
        self._carry_out(self._core.ordered(orders, asyncio.get_running_loop().time()))
        self.link.tell()

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartProcess(node=node, attempt=attempt):
                    self._core.serving(node, attempt, (f"tcp://127.0.0.1:{1024 + self._number}",), 1)
                case SignalProcess(node=node):
                    attempt = self._core.roles[node].attempt
                    self._carry_out(self._core.ended(HostEnded(node, attempt, 0), 0.0))
                case FindPorts(order=order, count=count):
                    self._core.found_ports(order, range(1024, 1024 + count))
                case Leave():
                    self.left.set()


async def run(front: str, first: int, count: int, token: str) -> None:
    """Keeps so many agents, named from `first` on, until each is told to leave."""
    transport = StreamTransport()
    agents = [FakeAgent(transport, front, number, token) for number in range(first, first + count)]
    links = [asyncio.ensure_future(agent.link.keep_up(WAIT_S)) for agent in agents]
    try:
        await asyncio.gather(*(agent.left.wait() for agent in agents))
        await asyncio.gather(*(agent.link.flush(1.0) for agent in agents))
    finally:
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


if __name__ == "__main__":
    loop.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), os.environ.get("ADAMCTL_TOKEN", "")))
