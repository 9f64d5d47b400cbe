"""TLS between a transport of the event loop, for which it is the protocol, and the frame protocol above.

The back-pressure stays exact. What the frame protocol writes stays plain in its own buffers until the kernel has taken
everything before it; then the next piece is encrypted and handed over. So "the transport wants more" still means that
the kernel has taken every byte, and no more than one piece is held encrypted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any, cast

from adamctl.errors import ConfigurationError, ProofError, UnreachableError
from adamctl.net.protocol import FrameProtocol
from adamctl.net.tls.credentials import Credentials
from adamctl.net.tls.engine import PIECE_BYTES, TlsEngine
from adamctl.net.tls.expiry import Lifetime
from adamctl.net.tls.identity import Secured, certificate_identity, other_cluster
from adamctl.net.tls.refusals import Ends, answers_without_tls, failure
from adamctl.wire.codec import encode_error
from adamctl.wire.constants import MAGIC, ErrorCode, Opcode

RECORD_BYTES = 16 << 10
"""Frames and parts of them up to this length are sent in one record."""
LINGER_S = 1.0
"""How long a peer may take to read why it is refused. Closing at once could destroy the reason on its way."""
LOOK_AGAIN_S_MAX = 30.0
"""How often a connection looks at the clock, and at what this process trusts."""
WITHDRAWN_S = 30.0
"""Connections end within this time after an authority has been found to be taken away."""
IDLE_LOOK_S = 0.05
"""How often a client looks whether it has no request open, once its connection should end."""


class TlsLayer(asyncio.BufferedProtocol, asyncio.Transport):
    """One end of a connection with TLS. The event loop gets this as the protocol, `inner` as its transport.

    Args:
        inner: the frame protocol above.
        credentials: this process's certificate; the newest is taken.
        received: a buffer for what the kernel gives; may be shared by all connections of a loop.
        where: the other end's address, or ours if we accept; for messages.
        refusal: of a server: what it tells a peer that speaks without TLS; None at a client.
        chance: spreads the ends of connections whose certificates are no longer good.
    """

    def __init__(
        self,
        inner: FrameProtocol,
        credentials: Credentials,
        received: memoryview,
        *,
        where: str,
        refusal: str | None,
        chance: Random,
    ) -> None:
        self.inner = inner
        self.loop = inner.loop
        self._credentials = credentials
        self._loaded = loaded = credentials.current
        self._received = received
        self._where = where
        self._refusal = refusal
        self._chance = chance
        is_server = refusal is not None
        self._engine = TlsEngine(loaded.server if is_server else loaded.client, server_side=is_server)
        self._below: asyncio.Transport
        self._first = b""  # of what was received, until it is known to be TLS
        self._plain: deque[memoryview] = deque()  # not encrypted yet
        self._plain_bytes = 0
        self._piece_bytes = 0  # of the last piece, of which the kernel may not have taken everything
        self._below_paused = False
        self._inner_paused = False
        self._reading = True
        self._delivering = False
        self._closing = False  # nothing more is read or written
        self._ended = False  # no more bytes for the transport below
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = self._hard_s = 0.0  # by the clock: when the connection ends if it is idle, and in any case
        self._ends_because = f"a certificate of the connection to {where} has expired"

    # --- the protocol of the transport below ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._below.set_write_buffer_limits(high=0)
        self.inner.connection_made(self)
        if self._refusal is None:
            self._step()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        data = self._received[:nbytes]
        if len(self._first) < len(MAGIC):
            self._first += bytes(data[: len(MAGIC)])
            if self._first.startswith(MAGIC):
                self._met_plain_frames()
                return
        self._engine.receive(data)
        self._step()

    def eof_received(self) -> bool:
        if self._closing:
            self._below.close()
        elif not self._engine.established:
            self.inner.fail(UnreachableError(f"the connection to {self._where} ended during the TLS handshake"))
        else:
            self.inner.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._drop_plain()
        self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._below_paused = True

    def resume_writing(self) -> None:
        self._below_paused = False
        self._pump()

    # --- the transport of the frame protocol ------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "the protocol keeps what waits in its own queue"

    def get_write_buffer_size(self) -> int:
        """Returns the plain bytes that the kernel has not taken."""
        return self._plain_bytes + min(self._piece_bytes, self._below.get_write_buffer_size())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._closing:
            return
        for data in list_of_data:
            view = memoryview(data)
            if view.nbytes:
                self._plain.append(view)
                self._plain_bytes += view.nbytes
        self._pump()
        if (self._plain or self._below_paused) and not self._inner_paused:
            self._inner_paused = True
            self.inner.pause_writing()

    def pause_reading(self) -> None:
        self._reading = False
        if not self._closing:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if not self._closing:
            self._below.resume_reading()
            if not self._delivering:
                self.loop.call_soon(self._step)  # what has been received and not decrypted yet

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Ends the connection after the written bytes."""
        if not self._closing:
            self._closing = True
            if not self._engine.established:
                self._drop_plain()
            self._pump()

    def abort(self) -> None:
        self._closing = self._ended = True
        self._drop_plain()
        self._below.abort()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Goes as far as what has been received allows."""
        if self._closing:
            return
        try:
            if not self._engine.established:
                done = self._engine.shake()
                self._send(self._engine.take())
                if not done or not self._established():
                    return
            self._deliver()
            self._send(self._engine.take())
        except ssl.SSLZeroReturnError:
            if self._reading:
                self.inner.eof_received()
                self.close()
        except ssl.SSLError as error:
            self._refuse(self._engine.take())
            self.inner.fail(failure(error, self._ends))

    def _share(self) -> float:
        """Returns by chance when in a grace this end acts: first the client, where it waits for no answer."""
        return self._chance.random() / 2 + (0.5 if self._refusal is not None else 0.0)

    def _established(self) -> bool:
        """Tells the frame protocol who is at the other end; returns whether it may go on."""
        found = self._engine.certificate
        own = self._loaded.identity
        try:
            peer = certificate_identity(found)
        except ConfigurationError as error:
            self._refuse(b"")
            text = f"{own} refuses the process at {self._where}: {error}; adamctl tls create makes one"
            self.inner.fail(ProofError(text))
            return False
        self.inner.secured = Secured(own, peer)
        problem = other_cluster(own, peer, f"at {self._where}")
        if problem and self._refusal is None:  # a server says so in its answer to HELLO
            self._refuse(b"")
            self.inner.fail(ProofError(problem))
            return False
        theirs = Lifetime(*(ssl.cert_time_to_seconds(found[name]) for name in ("notBefore", "notAfter")))
        shorter = min(theirs, self._loaded.lifetime, key=lambda lifetime: lifetime.not_after_s)
        self._until_s = shorter.closing_s(self._share())
        self._hard_s = shorter.closing_s(1.0)
        self._look_at_clock()
        self._pump()
        return True

    def _look_at_clock(self) -> None:
        """Ends the connection when a certificate has expired, or an authority that it was trusted by is taken away.

        Looks again and again, because clocks are set and files are changed.
        """
        now = self._credentials.clock()
        current = self._credentials.current
        if not self._loaded.authorities <= current.authorities:
            self._loaded = current
            self._until_s = min(self._until_s, now + self._share() * WITHDRAWN_S)
            self._hard_s = min(self._hard_s, now + WITHDRAWN_S)
            self._ends_because = f"an authority that the connection to {self._where} may rest on is no longer trusted"
        if now >= self._until_s and (now >= self._hard_s or not self.inner.busy):
            self._timer = None
            self.inner.end(UnreachableError(self._ends_because))
            return
        wait_s = min(self._until_s - now, LOOK_AGAIN_S_MAX) if now < self._until_s else IDLE_LOOK_S
        self._timer = self.loop.call_later(wait_s, self._look_at_clock)

    def _deliver(self) -> None:
        """Gives the frame protocol what it wants of what has been received."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._reading and not self._closing:
                window = memoryview(self.inner.get_buffer(-1))
                count = self._engine.decrypt(window)
                if count:
                    self.inner.buffer_updated(count)
                if count < len(window) and self._engine.failure is None:
                    return  # all that has been received is decrypted, but for a part of a record
        finally:
            self._delivering = False
        failed = self._engine.failure
        if failed is not None and not self._closing and not isinstance(failed, ssl.SSLZeroReturnError):
            raise failed  # also while nothing is read: nothing could be sent, and the end would never be met

    def _pump(self) -> None:
        """Encrypts and hands over one piece after another until the kernel takes no more."""
        if self._engine.established and not self._ended:
            while self._plain and not self._below_paused:
                piece = self._next_piece()
                try:
                    data = self._engine.encrypt(piece)
                except ssl.SSLError as error:  # by what was received: whoever writes must not meet it
                    self._refuse(self._engine.take())
                    self.loop.call_soon(self.inner.fail, failure(self._engine.failure or error, self._ends))
                    return
                self._plain_bytes -= len(piece)
                self._piece_bytes = len(piece)
                self._below.write(data)
        if self._plain or self._below_paused:
            return
        if self._closing:
            self._finish()
        elif self._inner_paused:
            self._inner_paused = False
            self.inner.resume_writing()

    def _next_piece(self) -> memoryview | bytes:
        """Takes the next plain bytes: a piece of a long buffer, or short buffers joined to one record."""
        first = self._plain.popleft()
        if len(first) > PIECE_BYTES:
            self._plain.appendleft(first[PIECE_BYTES:])
            return first[:PIECE_BYTES]
        if len(first) >= RECORD_BYTES // 2 or not self._plain:
            return first
        parts, size = [first], len(first)
        while self._plain and size < RECORD_BYTES:
            part = self._plain.popleft()
            if len(part) > RECORD_BYTES - size:
                self._plain.appendleft(part[RECORD_BYTES - size :])
                part = part[: RECORD_BYTES - size]
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _send(self, data: bytes) -> None:
        if data and not self._ended:
            self._below.write(data)

    def _drop_plain(self) -> None:
        self._plain.clear()
        self._plain_bytes = 0

    def _finish(self) -> None:
        if not self._ended:
            self._send(self._engine.end())
            self._ended = True
            self._below.close()

    def _refuse(self, last: bytes) -> None:
        """Sends the last bytes, and closes when the peer has, or after a while: it is to read them."""
        self._send(last)
        self._closing = self._ended = True
        self._drop_plain()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(LINGER_S if last else 0.0, self._below.close)

    def _met_plain_frames(self) -> None:
        if self._refusal is None:
            self._refuse(b"")
            self.inner.fail(answers_without_tls(self._ends))
        else:
            self._refuse(encode_error(Opcode.HELLO, 0, ErrorCode.WRONG_IDENTITY, self._refusal))
            self.inner.fail(ProofError(f"the process at {self._where} speaks without TLS"))

    @property
    def _ends(self) -> Ends:
        secured = self.inner.secured
        return Ends(self._loaded.identity, secured and secured.peer, self._where, self._loaded.folder)
