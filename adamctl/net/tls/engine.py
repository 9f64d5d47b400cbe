"""One end of a TLS connection without a connection: bytes in, bytes out; no socket and no clock.

`ssl.SSLObject` between two memory BIOs. What is received is given to `receive`; what must be sent comes from `take`
during the handshake, and afterwards from `encrypt`, a piece at a time, so that no more is encrypted than the kernel
takes. Plain bytes go straight into the reader's own buffer.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

PIECE_BYTES = 128 << 10
"""Most plain bytes that are encrypted at once: eight records, which stay in the core's cache until they are sent."""

RECEIVED_BYTES = 256 << 10
"""Most bytes that one read brings."""


class TlsEngine:
    """A handshake, then two streams of bytes. After an `ssl.SSLError` only `take` may be called, for the alert.

    Attributes:
        established: whether the handshake is done on this side.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.established = False
        self._failure: ssl.SSLError | None = None

    def receive(self, data: memoryview) -> None:
        """Takes bytes that the peer has sent."""
        self._incoming.write(data)

    def shake(self) -> bool:
        """Goes on with the handshake; returns whether it is done. Send what `take` returns, even after an error.

        Raises:
            ssl.SSLError: it has failed.
        """
        if not self.established:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                return False
            self.established = True
        return True

    def decrypt(self, window: memoryview) -> int:
        """Fills a buffer with what has arrived and returns how many bytes; 0 if a whole record is not there yet.

        Raises:
            ssl.SSLZeroReturnError: the peer has ended its stream.
            ssl.SSLError: what was received is not what the peer has sent, or the peer has refused us.
        """
        if self._failure is not None:
            raise self._failure
        filled, size, read = 0, len(window), self._ssl.read
        try:
            while filled < size:
                count: int = read(size - filled, window[filled:])  # type: ignore[assignment]
                if not count:
                    raise ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "the peer has ended its stream")
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._failure = error  # OpenSSL gives the reason only once
            if not filled:
                raise
        return filled

    def encrypt(self, data: memoryview | bytes) -> bytes:
        """Returns what must be sent for these plain bytes; best not more than PIECE_BYTES of them.

        Raises:
            ssl.SSLError: the stream has failed, by `failure` if that is known.
        """
        self._ssl.write(data)
        return self._outgoing.read()

    def take(self) -> bytes:
        """Returns what must be sent now: parts of the handshake, and alerts."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Ends our stream; returns what tells the peer so."""
        if self.established:
            with suppress(ssl.SSLError):  # the peer's own end has not come, and need not
                self._ssl.unwrap()
        return self.take()

    @property
    def failure(self) -> ssl.SSLError | None:
        """What the next `decrypt` raises; found behind bytes that the last one has returned."""
        return self._failure

    @property
    def undecrypted_bytes(self) -> int:
        """Received bytes that `decrypt` has not seen."""
        return self._incoming.pending

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The peer's certificate, verified, as `ssl.SSLObject.getpeercert` gives it; empty before the handshake."""
        try:
            return self._ssl.getpeercert() or {}
        except ValueError:
            return {}
