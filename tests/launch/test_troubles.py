"""A server's full disk is seen by the front of its run, and seen to be over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from adamctl.launch.troubles import Troubles
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.transport import Request
from adamctl.wire.messages import Hello, StatusReply

WAIT_S = 10.0


def hello(role: str, node: str) -> Hello:
    return Hello(1, 1, (), role, node, 1)


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_a_server_says_is_wrong_is_found_and_forgotten_again() -> None:
    network, status = MemoryNetwork(Random(1)), {"store": {"degraded": ""}}

    def handle(request: Request) -> None:
        request.reply(StatusReply(status))

    server = await network.serve(["memory://ps-1"], hello("ps", "ps-1"), handle)
    troubles = Troubles(network, lambda: hello("front", "front"), every_s=0.01)
    troubles.serves("ps-1", ("memory://ps-1",))
    troubles.serves("ps-2", ("memory://nobody",))
    following = asyncio.create_task(troubles.follow())
    try:
        await asyncio.sleep(0.1)
        assert troubles.found == {}
        status["store"]["degraded"] = "no space left: /x"
        await wait_for(lambda: troubles.found == {"ps-1": "no space left: /x"})
        status["store"] = {}
        await wait_for(lambda: not troubles.found)
        odd: dict[str, Any] = {"store": "nothing that we know"}
        status.update(odd)
        await asyncio.sleep(0.05)
        assert troubles.found == {} and not following.done()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await server.close()
