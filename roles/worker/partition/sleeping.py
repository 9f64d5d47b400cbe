"""How threads of a partition sleep until another partition, or their own event loop, has something for them.

On Linux a sleeper is woken by a datagram to a socket without a file, whose name the others are told; elsewhere, and
from partitions on other hosts, by a datagram from its own event loop. Where nobody sleeps, nobody sends one.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from contextlib import suppress

from adamctl.kernels.segments import Wake, Words, count_sleeper

NAMELESS = sys.platform == "linux"
"""Whether sockets may have names that are no files, and are gone with their process."""

SLEEP_S = 0.1
"""The longest sleep: with nothing compiled, a wake may be missed."""


class Sleeping:
    """The sleep of one process's threads. `sleepers`: how many sleep, [1], in memory that the others map."""

    def __init__(
        self, sleepers: Words, name: str = "", ends: tuple[socket.socket, socket.socket] | None = None
    ) -> None:
        """`name`: of the socket, unique on this machine; without one only this process can wake its threads.

        `ends`: of a pair of datagram sockets in its place, where they sleep and what wakes them, which others have too.
        """
        self.sleepers, self.name = sleepers, ""
        if ends is not None:
            self._socket, self._own = ends
            for end in ends:
                end.setblocking(False)
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if NAMELESS and name:
            self._socket.bind(f"\0{name}")
            self._own.connect(f"\0{name}")
            self.name = name
        else:
            self._socket.close()
            self._own.close()
            self._socket, self._own = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (self._socket, self._own):
            end.setblocking(False)

    @property
    def wake(self) -> Wake:
        """How this process wakes its own threads."""
        return Wake(self.sleepers, self._own.fileno())

    def awaken(self) -> None:
        """Wakes a thread of this process, if one sleeps."""
        if self.sleepers[0] > 0:
            with suppress(BlockingIOError):  # it is full of wakes
                self._own.send(b"\0")

    def begin(self) -> None:
        """Counts the calling thread as asleep: it has to look for work once more before it sleeps."""
        count_sleeper(self.sleepers, 1)

    def end(self) -> None:
        """Counts the calling thread as awake."""
        count_sleeper(self.sleepers, -1)

    def sleep(self) -> None:
        """Sleeps until somebody wakes this process; for SLEEP_S at most. Takes one wake: each is for one thread."""
        poll = select.poll()  # one of each thread: they must not share one
        poll.register(self._socket, select.POLLIN)
        poll.poll(SLEEP_S * 1000)
        with suppress(BlockingIOError):
            self._socket.recv(1)

    def close(self) -> None:
        self._socket.close()
        self._own.close()


class Waker:
    """Another process's threads, woken by their socket's name."""

    def __init__(self, sleepers: Words, name: str) -> None:
        """Raises OSError: nobody has that name."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(f"\0{name}")
        except OSError:
            self._socket.close()
            raise
        self.wake = Wake(sleepers, self._socket.fileno())

    def close(self) -> None:
        self._socket.close()


def unique_name(node: str) -> str:
    """Returns a name for a socket, which no other process on this machine has."""
    return f"adamctl-{os.getpid()}-{node}-{os.urandom(6).hex()}"
