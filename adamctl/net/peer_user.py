"""Identifies the other end of a socket through the system: a user over Unix sockets, an address over TCP."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any

from adamctl.net.sources import source_of

_XUCRED = struct.Struct("=IIh2x16I")
"""macOS: version, user, number of groups, groups."""
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1
_UCRED = struct.Struct("3i")
"""Linux: process, user, group."""


def peer_user(sock: Any) -> int | None:
    """Returns the user number of the process at the other end; None if the system does not tell it.

    For a listening socket it is the user who started listening. In another user namespace it may be the number for
    unknown users, which no process has.
    """
    try:
        if sys.platform == "darwin":
            return int(_XUCRED.unpack(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))[1])
        return int(_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1])
    except (OSError, struct.error, AttributeError):
        return None


def peer_source(sock: Any) -> str:
    """Returns where a connection comes from: its address (for IPv6 its network), or the user of a Unix socket."""
    if sock is None:
        return "unknown"
    if sock.family == socket.AF_UNIX:
        return f"user {peer_user(sock)}"
    try:
        return source_of(str(sock.getpeername()[0]))
    except OSError:  # it is already gone
        return "unknown"


def is_own_user(sock: Any) -> bool:
    """Returns whether this process's own user is at the other end of a Unix socket."""
    return sock is not None and peer_user(sock) == os.geteuid()
