"""Unix sockets that every user can reach: each end asks the system who the other is."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import HandshakeError
from adamctl.net.handshake import make_hello
from adamctl.net.peer_user import is_own_user, peer_user
from adamctl.net.stream import StreamTransport
from adamctl.wire.codec import encode_request
from adamctl.wire.messages import Empty

EVE = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can write to."""
    folder = Path(tempfile.mkdtemp(prefix="eve-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_the_system_says_who_is_at_the_other_end(tmp_path: Path) -> None:
    near, far = socket.socketpair(socket.AF_UNIX)
    with near, far, socket.socket(socket.AF_INET) as other:
        assert peer_user(near) == os.geteuid() and is_own_user(far)
        assert not is_own_user(None)
        assert not is_own_user(other), "there is nobody"


def become(function: Callable[[Any], Awaitable[None]], pipe: Any) -> None:
    os.setgroups([])
    os.setgid(EVE)
    os.setuid(EVE)
    asyncio.run(function(pipe))  # type: ignore[arg-type]


def as_eve(function: Callable[[Any], Awaitable[None]]) -> tuple[Any, Any]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=become, args=(function, theirs))
    process.start()
    return process, ours


@needs_root
def test_a_server_refuses_another_user(open_folder: Path) -> None:
    path = open_folder / "s"

    async def knock(pipe: Any) -> None:
        pipe.recv()
        with socket.socket(socket.AF_UNIX) as raw:  # our own client would not speak to another user
            raw.connect(str(path))
            raw.sendall(encode_request(make_hello("worker", "eve"), 1))
            pipe.send(raw.recv(10_000))

    process, pipe = as_eve(knock)

    async def serve() -> bytes:
        server = await StreamTransport().serve(
            [f"unix://{path}"], make_hello("ps", "ps-0"), lambda request: request.reply(Empty())
        )
        path.chmod(0o777)
        pipe.send("go")
        said: bytes = await asyncio.to_thread(pipe.recv)
        await server.close()
        return said

    assert b"another user is at the other end" in asyncio.run(serve())
    process.join(10)


@needs_root
def test_a_client_speaks_to_no_other_user(open_folder: Path) -> None:
    path = open_folder / "s"

    async def serve(pipe: Any) -> None:
        server = await StreamTransport().serve(
            [f"unix://{path}"], make_hello("ps", "ps-0"), lambda request: request.reply(Empty())
        )
        path.chmod(0o777)
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        await server.close()

    process, pipe = as_eve(serve)
    assert pipe.recv() == "ready"

    async def connect() -> None:
        with pytest.raises(HandshakeError, match="another user listens"):
            await StreamTransport().connect(f"unix://{path}", make_hello("worker", "w"), deadline_s=10)

    asyncio.run(connect())
    pipe.send("end")
    process.join(10)
