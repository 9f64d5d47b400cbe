"""A relay of TCP connections whose links can be cut, as a network can."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PIECE_BYTES = 1 << 16
HOST = "127.0.0.2"
"""Where relays listen: an address of this machine that roles by default do not use."""


class Relay:
    """Passes on what comes to HOST at a port to 127.0.0.1 at the same port."""

    def __init__(self, port: int) -> None:
        self._port, self._lock, self._ends = port, threading.Lock(), list[socket.socket]()
        self._listener = socket.create_server((HOST, port))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> int:
        """Ends all connections, whatever is on its way in them; returns how many there were."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        return len(ends) // 2

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a relay's thread does not end"

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port), 10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._ends = [end for end in self._ends if end.fileno() >= 0] + [near, far]
            done = threading.Barrier(2)
            for source, target in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pump, args=(source, target, done), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, done: threading.Barrier) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                target.sendall(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with suppress(threading.BrokenBarrierError):
            done.wait(60)
        source.close()
