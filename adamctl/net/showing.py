"""The regions of its memory that a client has shared with the server at the other end of a connection."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from adamctl.errors import RemoteError
from adamctl.net.shared_memory import Region
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import MemoryRegisterRequest, Message

_LOG = logging.getLogger(__name__)


class _Connection(Protocol):
    async def request(self, message: Message, *, deadline_s: float) -> Any: ...


class ShownRegions:
    """The shared regions of one connection."""

    def __init__(self, scheme: str, shares: bool) -> None:
        self._scheme, self._shares = scheme, shares
        self._shown: dict[int, asyncio.Future[bool]] = {}
        self._accepted = False

    @property
    def kind(self) -> str:
        """`shared` once a region was accepted, else the scheme of the address."""
        return "shared" if self._accepted else self._scheme

    async def show(self, connection: _Connection, region: Region, deadline_s: float) -> bool:
        """Registers a region over its connection unless it is registered; returns whether the server has mapped it.

        A server that cannot map our memory is not asked again. Does not wait if the answer is known.
        """
        if not self._shares:
            return False
        answer = self._shown.get(region.number)
        if answer is not None:
            return answer.result() if answer.done() else await asyncio.shield(answer)
        answer = self._shown[region.number] = asyncio.get_running_loop().create_future()
        accepted = False
        try:
            accepted = await self._register(connection, region, deadline_s)
        except BaseException:
            del self._shown[region.number]
            raise
        finally:
            answer.set_result(accepted)  # other waiting callers use the socket this once
        return accepted

    async def _register(self, connection: _Connection, region: Region, deadline_s: float) -> bool:
        request = MemoryRegisterRequest(region.number, region.device, region.descriptor, region.size_bytes)
        try:
            await connection.request(request, deadline_s=deadline_s)
        except RemoteError as error:
            _LOG.info("bodies go through the socket: %s", error)
            if error.code == ErrorCode.NOT_SHAREABLE:
                self._shares = False
            return False
        self._accepted = True
        return True
