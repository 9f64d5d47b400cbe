"""An `asyncio.Transport` whose other end is an object: carries whole frames, each with its own fate."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from adamctl.net.protocol import FrameProtocol
from adamctl.net.testing.faults import FaultPlan, Link
from adamctl.net.tls.layer import TlsLayer
from adamctl.wire.codec import parse_head
from adamctl.wire.constants import FRAME_HEADER_BYTES, Opcode

_HANDSHAKE = (Opcode.HELLO, Opcode.PROVE)
Note = Callable[[str, str, str, int], None]


class MemoryPipe(asyncio.Transport):
    """One end of a connection. Bytes are taken one loop turn after they were written, as a kernel might do.

    Attributes:
        on_lost: called when this end is gone.
    """

    def __init__(self, plan: FaultPlan, note: Note, link: Link, protocol: FrameProtocol | TlsLayer) -> None:
        super().__init__()
        self.on_lost: Callable[[MemoryPipe], None] = lambda _: None
        self._plan = plan
        self._note = note
        self._link = link  # from this end to the other
        self._protocol = protocol
        self._loop = protocol.loop
        self._peer: MemoryPipe
        self._written: list[Any] = []
        self._on_its_way: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._last_s = 0.0  # arrival of the latest frame that keeps its order
        self._arrived: deque[memoryview] = deque()
        self._end: list[Exception | None] = []  # how the other side ended, once it has
        self._reading = True
        self._delivering = False
        self._closing = False
        self._lost = False

    def connect(self, peer: MemoryPipe) -> None:
        self._peer = peer

    # --- asyncio.Transport ------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "the protocol keeps what waits in its own queue"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._closing:
            return
        if not self._written:
            self._loop.call_soon(self._take)
            self._protocol.pause_writing()
        self._written.extend(list_of_data)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._deliver)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Ends the connection after the written bytes."""
        if not self._closing:
            self._take()
            self._finish(None, tell_peer=True)

    def abort(self) -> None:
        self.cut(tell_peer=True)

    # --- the network's side -----------------------------------------------------------------------------------------

    def cut(self, *, tell_peer: bool) -> None:
        """Ends the connection at once; written bytes that were not yet taken are lost."""
        if not self._lost:
            self._written.clear()
            self._finish(ConnectionResetError("connection reset by peer"), tell_peer)

    def _finish(self, how: Exception | None, tell_peer: bool) -> None:
        if not self._closing and tell_peer:
            self._carry("reset" if how else "end", partial(self._peer._ended, how), control=True)
        self._closing = True
        if not self._lost:
            self._lost = True
            self._lose(None)

    def _lose(self, how: Exception | None) -> None:
        self._loop.call_soon(self._protocol.connection_lost, how)
        self._loop.call_soon(self._let_go)
        self.on_lost(self)

    def _let_go(self) -> None:
        """Knows neither its protocol nor its peer any more, as no transport does: or tests would find circles here."""
        del self._protocol, self._peer

    def _take(self) -> None:
        """Takes the written bytes as they are now, and delivers or drops the frames in them."""
        if not self._written:
            return
        data = b"".join(self._written)
        self._written.clear()
        if isinstance(self._protocol, TlsLayer):  # bytes of a stream, which a network delivers or the connection ends
            self._carry("TLS", partial(self._peer._arrive, memoryview(data)), control=True)
            data = b""
        for frame, opcode in _frames(data):
            self._carry(Opcode(opcode).name, partial(self._peer._arrive, frame), control=opcode in _HANDSHAKE)
        if not self._closing:
            self._protocol.resume_writing()

    def _carry(self, what: str, deliver: Callable[[], None], *, control: bool) -> None:
        arrivals = self._plan.fate(self._link, reliable=control)
        self._note(*self._link, what, len(arrivals))
        for arrival in arrivals:
            when = self._loop.time() + arrival.delay_s
            if arrival.in_order:
                when = self._last_s = max(when, self._last_s)
            # Our own heap, because timers due at the same time run in no particular order.
            heapq.heappush(self._on_its_way, (when, next(self._number), deliver))
            self._loop.call_at(when, self._next_arrives)

    def _next_arrives(self) -> None:
        _, _, deliver = heapq.heappop(self._on_its_way)
        if not self._plan.is_partitioned(self._link):
            deliver()

    def _arrive(self, frame: memoryview) -> None:
        if not self._closing:
            self._arrived.append(frame)
            self._deliver()

    def _ended(self, how: Exception | None) -> None:
        if not self._closing:
            self._end.append(how)
            self._deliver()

    def _deliver(self) -> None:
        """Gives the protocol what has arrived, as long as it wants to read."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._arrived and self._reading and not self._closing:
                frame = self._arrived[0]
                window = memoryview(self._protocol.get_buffer(-1))
                count = min(len(window), len(frame))
                window[:count] = frame[:count]
                if count < len(frame):
                    self._arrived[0] = frame[count:]
                else:
                    self._arrived.popleft()
                self._protocol.buffer_updated(count)
        finally:
            self._delivering = False
        if self._end and not self._arrived and not self._closing:
            self._closing = self._lost = True
            self._lose(self._end[0])


def _frames(data: bytes) -> Iterator[tuple[memoryview, int]]:
    """Yields the frames of a batch, which is always whole frames, and their opcodes."""
    view = memoryview(data)
    while len(view):
        head = parse_head(view)
        size = FRAME_HEADER_BYTES + head.header_bytes + head.body_bytes
        yield view[:size], head.opcode
        view = view[size:]


def join_pipes(
    plan: FaultPlan, note: Note, link: Link, ours: FrameProtocol | TlsLayer, theirs: FrameProtocol | TlsLayer
) -> tuple[MemoryPipe, MemoryPipe]:
    """Returns the two ends of a new connection between the nodes of `link`."""
    near = MemoryPipe(plan, note, link, ours)
    far = MemoryPipe(plan, note, (link[1], link[0]), theirs)
    near.connect(far)
    far.connect(near)
    return near, far
