"""The links between controllers: send messages, best effort, over one connection to each, renewed when it is lost.

Paxos tolerates the loss of any message, so a link drops what it cannot send soon: it never holds more than QUEUE_MAX
messages, and never blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from adamctl.config.names import NAME_EXPECTED, is_name
from adamctl.errors import AdamctlError, ConfigurationError
from adamctl.net.address import parse_address
from adamctl.net.transport import Connection, Transport
from adamctl.roles.controller.core.instructions import Send
from adamctl.roles.controller.core.paxos.messages import encode_peer
from adamctl.roles.controller.core.paxos.paxos_core import PaxosCore
from adamctl.wire.messages import ControllerPeerRequest, Hello

QUEUE_MAX = 256
SEND_DEADLINE_S = 2.0
CONNECT_DEADLINE_S = 2.0
RETRY_S = 0.1
SIZES = (1, 3, 5)


def parse_peers(text: str, name: str) -> dict[str, str]:
    """Returns name -> address of `a=host:port,b=host:port,...`, empty for an empty text.

    Raises:
        ConfigurationError: the text is malformed, does not name 1, 3 or 5 controllers, or does not name `name`.
    """
    peers: dict[str, str] = {}
    for part in text.replace(",", " ").split():
        peer, separator, address = part.partition("=")
        if not separator or not is_name(peer):
            raise ConfigurationError(
                f"--peers: expected name=host:port,name=host:port,... with names of {NAME_EXPECTED}; found {part!a}"
            )
        if peer in peers:
            raise ConfigurationError(f"--peers names {peer} twice")
        peers[peer] = str(parse_address(address))
    if peers and len(peers) not in SIZES:
        raise ConfigurationError(f"--peers: expected 1, 3 or 5 controllers (this one included), found {len(peers)}")
    if peers and name not in peers:
        raise ConfigurationError(f"--peers: expected this controller, --name {name}, among {', '.join(peers)}")
    return peers


class PeerLinks:
    """One task per address. All calls on the event loop."""

    def __init__(
        self,
        transport: Transport,
        hello: Callable[[], Hello],
        member: PaxosCore,
        address: str,
        limits: str,
        log: logging.Logger,
    ) -> None:
        """
        Args:
            member: gives the cluster and identity that messages carry.
            address: where the others reach this controller.
            limits: this controller's (`adamctl.roles.controller.core.service.limits`).
        """
        self._transport = transport
        self._hello = hello
        self._member = member
        self._address = address
        self._limits = limits
        self._log = log
        self._links: dict[str, _Link] = {}

    def send(self, instruction: Send) -> None:
        """Sends a message soon, or drops it."""
        address = instruction.address
        if address not in self._links:
            self._links[address] = _Link(self._transport, self._hello, address, self._log)
        vote = self._member.acceptor.vote
        head = ControllerPeerRequest(vote.cluster, vote.identity, self._address, instruction.destination, self._limits)
        self._links[address].put(head, encode_peer(instruction.message))

    async def close(self) -> None:
        """Stops the tasks and closes the connections."""
        await asyncio.gather(*(link.close() for link in self._links.values()))


class _Link:
    """The link to one address. If no connection can be made, everything queued is dropped."""

    def __init__(self, transport: Transport, hello: Callable[[], Hello], address: str, log: logging.Logger) -> None:
        self._transport = transport
        self._hello = hello
        self._address = address
        self._log = log
        self._queue: deque[tuple[ControllerPeerRequest, bytes]] = deque(maxlen=QUEUE_MAX)
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._lost = False
        self._task = asyncio.create_task(self._run())

    def put(self, head: ControllerPeerRequest, body: bytes) -> None:
        self._queue.append((head, body))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                try:
                    connection = await self._connected()
                    head, body = self._queue.popleft()
                    await connection.send_one_way(head, (body,), deadline_s=SEND_DEADLINE_S)
                except AdamctlError as error:
                    if not self._lost:
                        self._log.warning("controller at %s cannot be reached: %s", self._address, error)
                    self._lost = True
                    self._queue.clear()
                    await asyncio.sleep(RETRY_S)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._transport.connect(
                self._address, self._hello(), deadline_s=CONNECT_DEADLINE_S, expects=("controller", "")
            )
            if self._lost:
                self._log.info("controller at %s can be reached again", self._address)
            self._lost = False
        return self._connection

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            with suppress(AdamctlError):
                await self._connection.close()
