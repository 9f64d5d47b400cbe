"""What a run asks of its engine, and what it makes of the engine's notices: a reason to replace a host, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from adamctl.errors import AdamctlError, UnreachableError
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.table import HostTable
from adamctl.launch.places.engines import BY_HAND
from adamctl.launch.places.places import AgentCommand, Draining, Places

END_S = 30.0
MISSED_MAX = 3
"""Agents that may end one after the other before they have dialled, and are replaced."""


class EngineUse:
    """The engine of one run. Used by the front's event loop only."""

    def __init__(
        self,
        engine: Places,
        keeper: HostKeeper,
        table: HostTable,
        on_draining: Callable[[str, float, str], None],
        on_news: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """`on_draining` is told host, seconds and reason; `on_news` that the table may have events."""
        self._engine, self._keeper, self._table = engine, keeper, table
        self._on_draining, self._on_news, self._say = on_draining, on_news, say
        self._missed = 0

    async def use(self, agent: AgentCommand) -> None:
        """Asks for all hosts that the run wants, and follows the notices.

        Raises:
            UnreachableError, ConfigurationError: the engine cannot give the least that is needed, or agents that it
                starts end before they dial and the run has not begun.
        """
        asked = self._keeper.asked
        more = asked.most - asked.least + asked.spares
        by_hand = asked.engine == BY_HAND  # whoever starts agents by hand is asked once
        await self._engine.begin(asked.least + (more if by_hand else 0), asked.needs, agent)
        for _ in range(0 if by_hand else more):
            if not await self._engine.one_more("the run can use it"):
                break
        async for notice in self._engine.notices():
            if isinstance(notice, Draining):
                self._on_draining(notice.host, notice.deadline_s, notice.why)
            elif notice.host in self._table.hosts:
                self._table.lose(notice.host, notice.why)
            else:
                await self._never_came(notice.host, notice.why)
            self._on_news()

    def came(self) -> None:
        """An agent has dialled: those that did not are no sign that none ever will."""
        self._missed = 0

    async def _never_came(self, host: str, why: str) -> None:
        """Asks for another host in place of one whose agent never dialled: a few times, for that may never change."""
        self._missed += 1
        if self._missed <= MISSED_MAX:
            await self._engine.one_more(f"{host} has never dialled: {why}")
            return
        text = f"{self._missed} agents have ended before they dialled the front; the last one, {host}: {why}"
        if not self._keeper.begun:
            raise UnreachableError(text)
        self._say(f"{text}; the run goes on with the hosts that it has")

    async def one_more(self, why: str) -> None:
        """Asks for one more host, if the engine has one."""
        await self._engine.one_more(why)

    async def end(self) -> None:
        """Gives all hosts back."""
        with suppress(AdamctlError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._engine.end()
