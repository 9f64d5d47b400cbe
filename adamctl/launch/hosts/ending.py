"""The orderly end of a run on many hosts: roles end, controllers last so that the others can leave, then the agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from signal import SIGKILL
from typing import Any

from adamctl.launch.hosts.roles_there import RolesThere
from adamctl.launch.hosts.table import HostTable
from adamctl.wire.messages import HostStop

STOP_S = 15.0
"""Seconds beyond their grace in which agents have reaped their roles; hosts that are lost are not waited for."""
AGENTS_LEAVE_S = 5.0
POLL_S = 0.05


class Ending:
    """Used by the front's event loop only. `reaped` is to be set whenever an agent has reaped a role."""

    def __init__(self, table: HostTable, there: RolesThere, order: Callable[[str, Callable[[int], Any]], int]) -> None:
        """`order` gives a host an order, which is made of its number."""
        self._table, self._there, self._order = table, there, order
        self._asked: set[str] = set()
        self._agents_told = False
        self.reaped = asyncio.Event()

    async def end_roles(self, grace_s: float, controllers: bool) -> None:
        """Ends the controllers at agents, or all other roles; returns when all hosts that are there have done so."""
        chosen = self._there.chosen(controllers)
        self._asked |= chosen.keys()
        for node, there in chosen.items():
            self._order(there.placed.host, stop(node, there.attempt, "the run is over", grace_s))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s + STOP_S
        while loop.time() < until_s:
            left = [one for node, one in chosen.items() if self._there.roles.get(node) is one]
            if all(self._table.hosts[one.placed.host].lost for one in left):
                return
            self.reaped.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.reaped.wait()

    def forced(self) -> list[str]:
        """Returns the roles that were asked to end and had to be killed."""
        killed = {node for node, end in self._there.ends.items() if end.status == -SIGKILL}
        return sorted(killed & self._asked)

    def end_agents(self, grace_s: float, forget: bool) -> None:
        """Ends every agent, once, and what it still runs; `forget`: and removes what its roles kept on disk."""
        if self._agents_told:
            return
        self._agents_told = True
        for host in self._table.hosts:
            self._order(host, lambda number: HostStop(number, "", 0, grace_s, "the run is over", forget))

    async def agents_gone(self) -> None:
        """Returns when all agents that are there have left, or have had the time to."""
        for _ in range(round(AGENTS_LEAVE_S / POLL_S)):
            if not any(host.connections for host in self._table.living()):
                break
            await asyncio.sleep(POLL_S)


def stop(node: str, attempt: int, why: str, grace_s: float = 5.0) -> Callable[[int], HostStop]:
    """Returns what makes the order to end the process that the order `attempt` started; without a node, the agent."""
    return lambda number: HostStop(number, node, attempt, grace_s, why)
