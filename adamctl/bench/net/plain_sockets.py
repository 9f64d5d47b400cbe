"""The baseline of the transports: blocking sockets between two processes, without any work.

Blocking `sendall` of one reused buffer, `recv_into` one preallocated buffer, default socket buffers, one connection.
The system chooses all other socket options, unless ours are requested.
"""

from __future__ import annotations

import socket
import time

from adamctl.bench.child import START_S, Child, Pipe
from adamctl.net.sockets import set_options

BLOCK_BYTES = 1 << 20
ROUND_S = 300.0
_FAMILIES = {"tcp": socket.AF_INET, "unix": socket.AF_UNIX}


def _receive_rounds(scheme: str, path: str, block_bytes: int, pipe: Pipe) -> None:
    with socket.socket(_FAMILIES[scheme]) as listener:
        listener.bind(path if scheme == "unix" else ("127.0.0.1", 0))
        listener.listen(1)
        pipe.send(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            block = bytearray(block_bytes)
            while (blocks := pipe.recv()) is not None:
                left = blocks * block_bytes
                while left:
                    left -= accepted.recv_into(block, min(left, block_bytes))
                pipe.send("done")


class PlainSockets:
    """Rounds of blocks over one connection from this process to a child."""

    def __init__(self, scheme: str, folder: str, block_bytes: int = BLOCK_BYTES, *, our_options: bool = False) -> None:
        """`scheme` is "tcp" (loopback) or "unix", whose socket goes into `folder`; `our_options`: as transports set."""
        name = "plain-ours" if our_options else "plain"
        self._child = Child(_receive_rounds, scheme, f"{folder}/{name}.sock", block_bytes)
        self._socket = socket.socket(_FAMILIES[scheme])
        self._socket.connect(self._child.receive(START_S))
        if our_options:
            set_options(self._socket)
        self._block = bytearray(block_bytes)

    def round(self, blocks: int) -> float:
        """Returns the seconds from the first byte sent until the last was received."""
        self._child.send(blocks)
        start = time.perf_counter()
        for _ in range(blocks):
            self._socket.sendall(self._block)
        self._child.receive(ROUND_S)
        return time.perf_counter() - start

    def gb_per_s(self, blocks: int) -> float:
        """Returns the rate of one round in 10^9 bytes per second."""
        return blocks * len(self._block) / 1e9 / self.round(blocks)

    def close(self) -> None:
        """Ends the child."""
        self._child.close()
        self._socket.close()
