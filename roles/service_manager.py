"""Tells the service manager that started this process, such as systemd, that it is ready, lives, or stops.

The protocol of sd_notify(3): a datagram of lines `NAME=value` to the Unix socket that NOTIFY_SOCKET names. A program
that another one starts must not inherit that variable: it would speak for its parent (`roles/role_process.py`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

READY, WATCHDOG, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_BEATS_PER_LIMIT = 2


@dataclass(frozen=True)
class ServiceManager:
    """`socket_path` is empty where there is none, and then nothing is told to anybody.

    `watchdog_s` is the silence in seconds after which it ends the process; 0 if it does not watch.
    """

    socket_path: str = ""
    watchdog_s: float = 0.0

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> ServiceManager:
        """Returns the one that this environment names; `pid` is our process, as a watchdog may be meant for another."""
        path, text = environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", "")
        if not path.startswith(("/", "@")):
            return cls()
        watched = text.isascii() and text.isdecimal() and environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        return cls(path, int(text) / 1e6 if watched else 0.0)

    def tell(self, *lines: str) -> None:
        """Sends one datagram. A manager that does not receive it learns nothing; the process goes on."""
        if not self.socket_path:
            return
        address = f"\0{self.socket_path[1:]}" if self.socket_path.startswith("@") else self.socket_path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), os.fsencode(address))

    async def beat(self) -> None:
        """Shows again and again that the event loop moves, until cancelled; returns at once if nobody watches."""
        while self.socket_path and self.watchdog_s > 0:
            self.tell(WATCHDOG)
            await asyncio.sleep(self.watchdog_s / _BEATS_PER_LIMIT)
