"""Two processes and a secure connection between them: ours, and the baseline, blocking `ssl.SSLSocket`s.

Both move blocks one way or the other, with the same certificates and the same socket options. What a side costs is the
processor time of each of its two processes: other work on the machine changes it little.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any, Literal

import psutil

from adamctl.bench.child import START_S, Child, Pipe
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.sockets import set_options
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.authority import issue, new_authority
from adamctl.net.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from adamctl.net.tls.identity import Identity
from adamctl.net.transport import Request
from adamctl.wire.messages import BenchBlockRequest, Empty, PullReply, PullRequest

Way = Literal["push", "pull"]
"""From the connecting process to the other one, or back."""

BLOCK_BYTES = 1 << 20
ROUND_S = 300.0
_IN_FLIGHT = 16
_PULL = PullRequest("bench", {}, (0,))


def make_certificates(folder: Path) -> dict[str, Path]:
    """Makes an authority and a certificate for each end; returns their folders, `server` and `client`.

    Raises ConfigurationError: the package that makes certificates is not installed.
    """
    authority, folders = new_authority("bench"), {}
    for name in ("server", "client"):
        made = issue(authority, Identity("bench", "bench", name))
        folders[name] = place = folder / name
        place.mkdir(mode=0o700)
        for file, content in ((AUTHORITY, authority.certificate), (CERTIFICATE, made.certificate), (KEY, made.key)):
            (place / file).touch(mode=0o600)
            (place / file).write_bytes(content)
    return folders


def processor_s(pid: int) -> float:
    """Returns the processor time that a process has used: on Linux to the nanosecond, else as psutil tells it."""
    threads = sorted(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class Side:
    """Rounds over one connection between two children."""

    def __init__(self, server: Any, client: Any, folders: dict[str, Path]) -> None:
        self._server = Child(server, str(folders["server"]))
        self._client = Child(client, self._server.receive(START_S), str(folders["client"]))
        self.cipher = str(self._client.receive(START_S))

    def round(self, way: Way, blocks: int) -> dict[str, float]:
        """Moves blocks; returns the processor seconds of the `sender` and the `receiver`."""
        before = self._used_s()
        self._client.ask((way, blocks), ROUND_S)
        used = [after - first for after, first in zip(self._used_s(), before, strict=True)]
        sender, receiver = used if way == "push" else reversed(used)
        return {"sender": sender, "receiver": receiver}

    def _used_s(self) -> list[float]:
        return [processor_s(child.pid) for child in (self._client, self._server)]

    def close(self) -> None:
        self._client.close()
        self._server.close()


# --- ours -------------------------------------------------------------------------------------------------------------


def our_server(folder: str, pipe: Pipe) -> None:
    """Answers each block, and each request for one, through `StreamTransport`."""
    block = bytes(BLOCK_BYTES)

    def handle(request: Request) -> None:
        if isinstance(request.message, PullRequest):
            request.reply(PullReply(()), [block])
        else:
            request.reply(Empty())

    async def serve() -> None:
        done = asyncio.Event()
        transport = StreamTransport(tls=Credentials(Path(folder)))
        hello = make_hello("bench", "server")
        server = await transport.serve(["tcp://127.0.0.1:0"], hello, handle, on_disconnect=lambda _: done.set())
        pipe.send(server.addresses[0])
        await done.wait()
        await server.close()

    run(serve())


def our_client(address: str, folder: str, pipe: Pipe) -> None:
    """Sends or requests as many blocks as it is told, 16 at a time."""

    async def main() -> None:
        transport = StreamTransport(tls=Credentials(Path(folder)))
        connection = await transport.connect(address, make_hello("bench", "client"), deadline_s=START_S)
        block, into = bytearray(BLOCK_BYTES), memoryview(bytearray(BLOCK_BYTES))
        pipe.send(_cipher(transport))
        while (told := pipe.recv()) is not None:
            way, blocks = told
            counter = iter(range(blocks))

            async def some(way: Way = way, counter: Any = counter) -> None:
                for number in counter:
                    if way == "push":
                        await connection.request(BenchBlockRequest(number, True), (block,), deadline_s=ROUND_S)
                    else:
                        await connection.request(_PULL, deadline_s=ROUND_S, into=(into,))

            await asyncio.gather(*(some() for _ in range(_IN_FLIGHT)))
            pipe.send("done")
        await connection.close()

    run(main())


def _cipher(transport: StreamTransport) -> str:
    """Returns the cipher that both ends prefer."""
    assert transport.tls is not None
    return transport.tls.current.client.get_ciphers()[0]["name"]


# --- the baseline -----------------------------------------------------------------------------------------------------


def plain_server(folder: str, pipe: Pipe) -> None:
    """Takes or sends blocks of one buffer with blocking calls, as the client asks in one byte and a number."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        accepted, _ = listener.accept()
        set_options(accepted)
        with Credentials(Path(folder)).current.server.wrap_socket(accepted, server_side=True) as secure:
            block = memoryview(bytearray(BLOCK_BYTES))
            while head := secure.recv(9):
                blocks = int.from_bytes(head[1:], "big")
                if head[:1] == b"s":
                    _receive(secure, block, blocks)
                    secure.sendall(b"!")
                else:
                    for _ in range(blocks):
                        secure.sendall(block)


def plain_client(port: int, folder: str, pipe: Pipe) -> None:
    """The other end of `plain_server`."""
    plain = socket.create_connection(("127.0.0.1", port))
    set_options(plain)
    with Credentials(Path(folder)).current.client.wrap_socket(plain) as secure:
        cipher = secure.cipher()
        pipe.send(cipher[0] if cipher is not None else "")
        block = memoryview(bytearray(BLOCK_BYTES))
        while (told := pipe.recv()) is not None:
            way, blocks = told
            secure.sendall((b"s" if way == "push" else b"r") + blocks.to_bytes(8, "big"))
            if way == "push":
                for _ in range(blocks):
                    secure.sendall(block)
                secure.recv(1)
            else:
                _receive(secure, block, blocks)
            pipe.send("done")


def _receive(secure: ssl.SSLSocket, block: memoryview, blocks: int) -> None:
    left = blocks * len(block)
    while left:
        left -= secure.recv_into(block, min(left, len(block)))
