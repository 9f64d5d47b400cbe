"""Links that can be cut: a proxy in front of each process that knows, from its HELLO, who dials.

What is sent over a cut link is kept, as TCP keeps it, and arrives when the link is healed; connections that are made
meanwhile stay silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from adamctl.errors import ProtocolError
from adamctl.wire.codec import decode_message, parse_head
from adamctl.wire.constants import FRAME_HEADER_BYTES
from adamctl.wire.messages import Hello

CHUNK_BYTES = 1 << 16
POLL_S = 0.01


class Links:
    """Proxies on this loop; an async context manager.

    Attributes:
        cut: (from, to) names between which nothing passes, in that direction.
        cut_off: names to and from which nothing passes at all.
    """

    def __init__(self) -> None:
        self.cut: set[tuple[str, str]] = set()
        self.cut_off: set[str] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Links:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    async def before(self, name: str, port: int, host: str = "127.0.0.1", at: int = 0) -> str:
        """Returns the address of a proxy for the process that listens on a port of loopback.

        The proxy listens on `host` at port `at`, 0 for any free one.
        """

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with suppress(OSError, EOFError, ProtocolError, asyncio.CancelledError):
                await self._serve(name, port, reader, writer)
            writer.close()

        server = await asyncio.start_server(accept, host, at)
        self._servers.append(server)
        return f"tcp://{host}:{server.sockets[0].getsockname()[1]}"

    def isolate(self, names: Collection[str], others: Collection[str]) -> None:
        """Cuts some off from others, both ways."""
        for name in names:
            for other in others:
                self.cut |= {(name, other), (other, name)}

    async def _serve(self, name: str, port: int, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        head = await near.readexactly(FRAME_HEADER_BYTES)
        parsed = parse_head(head)
        typed = await near.readexactly(parsed.header_bytes)
        hello = decode_message(parsed.opcode, parsed.flags, typed)
        source = hello.node if isinstance(hello, Hello) else ""
        await self._passing(source, name)
        far, forward = await asyncio.open_connection("127.0.0.1", port)
        try:
            forward.write(head + typed)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(near, forward, source, name))
                group.create_task(self._pump(far, back, name, source))
        except* OSError:
            pass
        finally:
            forward.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, to: str) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._passing(source, to)
            writer.write(data)
            await writer.drain()
        await self._passing(source, to)
        raise ConnectionResetError  # one side has ended: so does the other

    async def _passing(self, source: str, to: str) -> None:
        while (source, to) in self.cut or not self.cut_off.isdisjoint((source, to)):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
