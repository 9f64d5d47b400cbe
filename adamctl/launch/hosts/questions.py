"""Questions to agents: free ports, and the ends of logs, which stay on their hosts. An agent answers by a report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from adamctl.launch.failure import LastWords
from adamctl.net.transport import Request
from adamctl.wire.messages import HostFreePorts, HostLines, HostLog, HostPorts, HostTail, HostTailReply

ANSWER_S = 3.0
LINES_MAX = 1000
WORDS_LINES = 20
"""Lines of a log that the message of a failure quotes."""
Answer: TypeAlias = HostLines | HostFreePorts
Order: TypeAlias = Callable[[str, Callable[[int], Any]], int]
"""Gives a host an order, which is made of its number; returns the number, 0 if there is no such host."""


class Questions:
    """What was asked and is not answered yet. Used by the front's event loop only."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._waiting: dict[tuple[str, int], asyncio.Future[Answer | None]] = {}

    def answered(self, host: str, answer: Answer) -> None:
        """Passes an answer on to who waits for it, if anybody still does."""
        future = self._waiting.pop((host, answer.order), None)
        if future is not None and not future.done():
            future.set_result(answer)

    def lost(self, host: str) -> None:
        """Nothing that this host was asked will be answered."""
        for key in [key for key in self._waiting if key[0] == host]:
            future = self._waiting.pop(key)
            if not future.done():
                future.set_result(None)

    async def _ask(self, host: str, make: Callable[[int], Any]) -> Answer | None:
        number = self._order(host, make)
        if not number:
            return None
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting[host, number] = future
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return await future
        self._waiting.pop((host, number), None)
        return None

    async def free_port(self, host: str) -> int:
        """Returns a TCP port that is free on a host; 0 if it does not say."""
        found = await self._ask(host, lambda number: HostPorts(number, 1))
        return found.ports[0] if isinstance(found, HostFreePorts) and found.ports else 0

    async def log(self, node: str, host: str, lines: int) -> HostLog:
        """Returns the end of a role's log on a host."""
        count = min(max(lines, 1), LINES_MAX)
        found = await self._ask(host, lambda number: HostTail(number, node, count))
        if not isinstance(found, HostLines):
            return HostLog(node, host, "", (), "its host does not answer")
        return HostLog(node, host, found.path, found.lines)

    async def last_words(self, node: str, host: str) -> LastWords:
        """Returns the end of a role's log, as the message of a failure quotes it."""
        log = await self.log(node, host, WORDS_LINES)
        return LastWords(host, log.path or log.problem, log.lines)

    async def answer_tails(self, request: Request, places: Iterable[tuple[str, str]], lines: int) -> None:
        """Answers an operator's request with the ends of the logs of (node, host) pairs."""
        found = await asyncio.gather(*(self.log(node, host, lines) for node, host in places))
        request.reply(HostTailReply(), (msgspec.msgpack.encode(found),))
