"""One end of a TCP or Unix connection: bytes to frames, frames to bytes. The base of client and server.

`asyncio.BufferedProtocol` receives bodies straight into their final buffers; head and body are handed to the kernel as
separate buffers. The transport's own write buffer is kept empty (high-water mark 0): while the kernel takes no more,
frames wait in `_outgoing`, where they can still be withdrawn, and "the transport wants more" means that the kernel has
taken every byte handed over before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from adamctl.errors import AdamctlError, ProtocolError, UnreachableError
from adamctl.net.sockets import set_options
from adamctl.net.tls.identity import Secured
from adamctl.wire.codec import FrameHead
from adamctl.wire.decoder import BodyTarget, Frame, FrameDecoder

WRITE_BATCH_BYTES = 4 << 20
"""Most frames handed to the kernel in one call: enough to keep it busy until the next turn of the loop."""


class Outgoing:
    """An outgoing frame: first queued, then handed to the transport, then sent."""

    __slots__ = ("body", "head", "in_transport", "on_sent", "size_bytes")

    def __init__(
        self, head: bytes, body: Sequence[memoryview], size_bytes: int, on_sent: Callable[[], None] | None
    ) -> None:
        self.head = head
        self.body = body
        self.size_bytes = size_bytes  # of head and body
        self.on_sent = on_sent
        self.in_transport = False


class FrameProtocol(asyncio.BufferedProtocol):
    """Base of both ends. Subclasses define `allocate`, `handle_frame`, `may_read` and `disconnected`.

    All methods run on the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.decoder = FrameDecoder(self.allocate)
        # The transport calls this before each read; using the decoder's method directly saves a call.
        self.get_buffer = self.decoder.want  # type: ignore[method-assign, assignment]
        self.reason: AdamctlError | None = None  # why the connection ended, first cause
        self.secured: Secured | None = None  # who is at both ends, by TLS, before the first frame comes
        self.lost = loop.create_future()  # resolved when the transport is gone
        self.outgoing_bytes = 0
        self.received_bytes = self.handed_over_bytes = 0  # since the connection was made
        self._transport: asyncio.Transport | None = None
        self._incoming: deque[tuple[Frame, float]] = deque()  # with the start time of each
        self._body_began_s = 0.0
        self._body_number = -1
        self._outgoing: deque[Outgoing] = deque()
        self._handed_over: list[Outgoing] = []
        self._write_paused = False
        self._read_paused = False
        self._corked = False
        self._draining = False
        self._closing = False

    # --- for subclasses ---------------------------------------------------------------------------------------------

    def allocate(self, head: FrameHead) -> BodyTarget | None:
        """Returns where a body goes, or None if there is no room; then call `resume_blocked` later."""
        raise NotImplementedError

    def handle_frame(self, frame: Frame, began_s: float) -> None:
        """Handles a frame that began to arrive at `began_s` (loop.time()); may raise ProtocolError."""
        raise NotImplementedError

    def may_read(self) -> bool:
        """Whether another frame may be handled now; call `advance` when the answer changes to yes."""
        return True

    def disconnected(self) -> None:
        """Called once, when the connection is gone; `reason` says why."""

    def count_outgoing(self, change_bytes: int) -> None:
        """Updates `outgoing_bytes`, the bytes of frames that the kernel has not taken yet."""
        self.outgoing_bytes += change_bytes

    def refuse(self, error: AdamctlError) -> None:
        """Called when the peer broke the format, or TLS below has failed, before the connection is cut."""

    @property
    def busy(self) -> bool:
        """Whether ending the connection now would disturb someone who waits for it."""
        return False

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        set_options(self._transport.get_extra_info("socket"))

    @property
    def socket(self) -> Any:
        """The socket below, as far as the transport has one and shows it; else None."""
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        frames = self.decoder.received(nbytes)
        if frames:
            self._queue(frames)
        elif self.decoder.failure is None and not self.decoder.blocked:
            return
        self.advance()

    def eof_received(self) -> bool:
        if self.decoder.mid_frame:
            self.end(UnreachableError("the connection ended in the middle of a frame"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self.reason is None:
            why = f": {exc}" if exc is not None else " by the peer"
            self.reason = UnreachableError(f"the connection was closed{why}")
        handed_over, self._handed_over = self._handed_over, []
        waiting, self._outgoing = self._outgoing, deque()
        self.count_outgoing(-self.outgoing_bytes)
        self._incoming_dropped()
        self.disconnected()
        for frame in (*handed_over, *waiting):
            self._call(frame.on_sent)
        if not self.lost.done():
            self.lost.set_result(None)
        self.let_go()

    def let_go(self) -> None:
        """Ends the circles of this with its decoder, transport and failure; nothing more comes or goes, or ever did."""
        self.decoder.let_go()
        self._transport = None
        for error in (self.reason, self.decoder.failure):
            if error is not None:
                error.__traceback__ = None  # it has the frames that it passed, and they have this

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._sent()
        self.flush()

    # --- receiving --------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Handles as many waiting frames as allowed, then resumes or pauses reading accordingly."""
        if self._draining:
            return
        self._draining = True  # the loop below does what callbacks request meanwhile
        try:
            while True:
                self._corked = True
                while self._incoming and not self._closing and self.may_read():
                    self.handle_frame(*self._incoming.popleft())
                self._corked = False
                self.flush()
                if self._closing or not self._incoming or not self.may_read():
                    break
            if self.decoder.failure is not None and not self._incoming:
                self.fail(self.decoder.failure)
        except ProtocolError as error:
            self.fail(error)
        finally:
            self._draining = self._corked = False
        self._set_reading(not (self._incoming or self.decoder.blocked or self.decoder.failure or not self.may_read()))

    def resume_blocked(self) -> None:
        """Tries to continue with a body for which there was no room."""
        if self.decoder.blocked and not self._closing:
            self._queue(self.decoder.resume())
            self.advance()

    def room_again(self) -> None:
        """Like `resume_blocked`, to be called by the thread that released a buffer."""
        try:
            self.loop.call_soon_threadsafe(self.resume_blocked)
        except RuntimeError:  # the loop has ended meanwhile
            return

    def body_begins(self) -> None:
        """Called by `allocate`: deadlines count from here, however long the body takes or waits."""
        if self._body_number != self.decoder.frames_seen:
            self._body_number = self.decoder.frames_seen
            self._body_began_s = self.loop.time()

    def _queue(self, frames: Sequence[Frame]) -> None:
        now = self.loop.time()
        for frame in frames:
            self._incoming.append((frame, now if frame.target is None else self._body_began_s))

    @property
    def reading(self) -> bool:
        return not self._read_paused

    def _set_reading(self, wanted: bool) -> None:
        if self._closing or self._transport is None or wanted is not self._read_paused:
            return
        self._read_paused = not wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def fail(self, error: AdamctlError) -> None:
        """Ends the connection because of what the peer has sent."""
        if not self._closing:
            self.refuse(error)
        self.end(error)

    def _incoming_dropped(self) -> None:
        """Drops frames that were received but not handled; `release_target` frees their memory."""
        for frame, _ in self._incoming:
            self.release_target(frame.target)
        self._incoming.clear()
        self.release_target(self.decoder.current)

    def release_target(self, target: BodyTarget | None) -> None:
        """Frees the result of `allocate`, for a frame that will not be handled."""

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        head: bytes,
        body: Sequence[memoryview] = (),
        size_bytes: int = 0,
        on_sent: Callable[[], None] | None = None,
    ) -> Outgoing:
        """Queues a frame. `on_sent` is called when the kernel has taken its last byte or the connection is gone."""
        frame = Outgoing(head, body, size_bytes + len(head), on_sent)
        if self._closing:
            self._call(on_sent)
            return frame
        self._outgoing.append(frame)
        self.count_outgoing(frame.size_bytes)
        if not self._corked and not self._write_paused:
            self.flush()
        return frame

    def withdraw(self, frame: Outgoing) -> bool:
        """Removes a frame from the queue; False if some of its bytes may already have been sent."""
        if frame.in_transport:
            return False
        try:
            self._outgoing.remove(frame)
        except ValueError:
            return False
        self.count_outgoing(-frame.size_bytes)
        return True

    def flush(self) -> None:
        """Hands frames to the kernel until it takes no more."""
        while self._outgoing and not self._write_paused and not self._closing:
            assert self._transport is not None
            buffers: list[Any] = []
            size = 0
            while self._outgoing and size < WRITE_BATCH_BYTES:
                frame = self._outgoing.popleft()
                frame.in_transport = True
                self._handed_over.append(frame)
                buffers.append(frame.head)
                buffers.extend(frame.body)
                size += frame.size_bytes
            self.handed_over_bytes += size
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)
            if not self._write_paused:
                self._sent()

    @property
    def write_stalled(self) -> bool:
        """Whether bytes are waiting for the peer to take them."""
        return self._write_paused

    @property
    def taken_bytes(self) -> int:
        """Bytes that the kernel has taken since the connection was made; grows as long as the peer reads."""
        waiting_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self.handed_over_bytes - waiting_bytes

    def _sent(self) -> None:
        handed_over, self._handed_over = self._handed_over, []
        for frame in handed_over:
            self.count_outgoing(-frame.size_bytes)
            self._call(frame.on_sent)

    def _call(self, callback: Callable[[], None] | None) -> None:
        if callback is None:
            return
        try:
            callback()
        except Exception as error:  # a caller's error must not end the connection
            self.loop.call_exception_handler({"message": "an on_sent callback failed", "exception": error})

    # --- ending -----------------------------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        return self._closing

    def end(self, reason: AdamctlError, *, at_once: bool = False) -> None:
        """Closes the connection, at once or after all bytes handed to the transport are sent."""
        if self.reason is None:
            self.reason = reason
        if self._transport is None:
            return
        if not self._closing:
            self.flush()
        self._closing = True
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()

    async def wait_lost(self, grace_s: float = 1.0) -> None:
        """Waits until the connection is gone; after `grace_s` it is cut."""
        await asyncio.wait({self.lost}, timeout=grace_s)
        if not self.lost.done() and self._transport is not None:
            self._transport.abort()
            await asyncio.wait({self.lost}, timeout=grace_s)


def body_views(body: Sequence[Any]) -> tuple[list[memoryview], int]:
    """Returns flat byte views of a body's buffers, without empty ones, and the sum of their lengths.

    Raises:
        TypeError: one of them is not a C-contiguous buffer.
    """
    views: list[memoryview] = []
    size = 0
    for buffer in body:
        view = memoryview(buffer)
        if not view.nbytes:
            continue
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        elif not view.c_contiguous:
            raise TypeError("expected C-contiguous buffers as a body")
        views.append(view)
        size += view.nbytes
    return views, size
