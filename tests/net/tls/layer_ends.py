"""Both ends of a TLS connection without a kernel: tests hand over what one end has sent, and say how much is taken."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from adamctl.net.protocol import FrameProtocol
from adamctl.net.tls.credentials import Credentials
from adamctl.net.tls.engine import RECEIVED_BYTES
from adamctl.net.tls.layer import TlsLayer
from tests.net.tls.certificates import Authority


class Below(asyncio.Transport):
    """A kernel that takes so many bytes and then no more, until it is told to."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__()
        self.room_bytes = room_bytes
        self.taken = bytearray()
        self.waiting = bytearray()
        self.calls: list[str] = []
        self.layer: TlsLayer

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def write(self, data: Any) -> None:
        assert not self.waiting, "more was handed over although the kernel had not taken everything"
        self.waiting += data
        self.take()
        if self.waiting:
            self.layer.pause_writing()

    def take(self, more_bytes: int = 0) -> None:
        self.room_bytes += more_bytes
        count = min(self.room_bytes, len(self.waiting))
        self.taken += self.waiting[:count]
        del self.waiting[:count]
        self.room_bytes -= count
        if more_bytes and not self.waiting:
            self.layer.resume_writing()

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class Frames(FrameProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.received = bytearray()
        self.window = memoryview(bytearray(100_000))
        self.get_buffer = lambda _: self.window  # type: ignore[method-assign, assignment]

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.window[:nbytes]


def layer(
    credentials: Credentials, *, server: bool, below: Below, kind: type[Frames] = Frames
) -> tuple[TlsLayer, Frames]:
    frames = kind(asyncio.get_running_loop())
    made = TlsLayer(
        frames, credentials, memoryview(bytearray(RECEIVED_BYTES)), where="there",
        refusal="speak TLS" if server else None, chance=Random(1),
    )  # fmt: skip
    below.layer = made
    made.connection_made(below)
    return made, frames


def hand(below: Below, to: TlsLayer) -> None:
    """Gives one end what the other's kernel has taken."""
    data = bytes(below.taken)
    below.taken.clear()
    for start in range(0, len(data), RECEIVED_BYTES):
        piece = data[start : start + RECEIVED_BYTES]
        to.get_buffer(-1)[: len(piece)] = piece
        to.buffer_updated(len(piece))


def joined(authority: Authority, room_bytes: int = 1 << 30) -> tuple[Any, ...]:
    near, far = Below(1 << 30), Below(1 << 30)
    client, client_frames = layer(authority.credentials("worker", "w"), server=False, below=near)
    server, server_frames = layer(authority.credentials("ps", "s"), server=True, below=far)
    for _ in range(3):
        hand(near, server)
        hand(far, client)
    near.room_bytes = room_bytes
    return client, client_frames, near, server, server_frames, far
