"""Listening sockets, with errors that say what to do."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.net.address import INSECURE_VARIABLE, Address

UNIX_SEND_BUFFER_BYTES = 1 << 20
"""Unix sockets do not tune their buffers as TCP does: with the default of about 200 KiB, both ends sleep and wake up
several times per block, and 1 MiB frames reached 0.6 of plain sockets' rate instead of 0.9. The kernel may grant less.
"""

UNPACED = b"reno"
"""Congestion control of TCP between two processes of one host, where no network must be shared fairly. With BBR,
segments leave by a timer and out of order, which costs a third of the rate. Every Linux offers this one to every user.
"""


def is_insecure(environment: Mapping[str, str]) -> bool:
    """Returns whether ADAMCTL_INSECURE allows addresses beyond loopback without TLS, as `--insecure` does.

    Raises ConfigurationError: it is neither 1 nor 0.
    """
    value = environment.get(INSECURE_VARIABLE, "") or "0"
    if value not in ("0", "1"):
        raise ConfigurationError(f"{INSECURE_VARIABLE}: expected 1 or 0; found {value!r}")
    return value == "1"


def beyond_loopback(token: str, *, tls: bool, insecure: bool) -> str:
    """Returns why a server may listen on loopback only, and what to do; empty if it may listen anywhere."""
    if tls:
        return ""
    if not insecure:
        return (
            "without TLS: anyone on the network could read and change what is sent; give --tls-dir DIR or set "
            "ADAMCTL_TLS (adamctl tls create-ca begins), or, on a network that you trust, --insecure with a token"
        )
    if token:
        return ""
    return (
        "without a token: anyone who reaches it could read and change everything; give --token-file FILE or set "
        "ADAMCTL_TOKEN, the same for every process of the cluster"
    )


async def bind_tcp(address: Address, *, only_loopback: str = "") -> tuple[socket.socket, Address]:
    """Returns a bound TCP socket and its address. Raises ConfigurationError.

    `only_loopback`: if not empty, why all but loopback addresses are refused.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {address}: host {address.host!r} is unknown ({error})") from error
    found.sort(key=lambda info: info[0] != socket.AF_INET)  # "localhost" means 127.0.0.1 if both families exist
    family, kind, protocol, _, endpoint = found[0]
    if only_loopback and not ipaddress.ip_address(str(endpoint[0]).partition("%")[0]).is_loopback:
        raise ConfigurationError(f"cannot listen on {address} {only_loopback}; or listen on 127.0.0.1")
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(endpoint)
        # Listening here, not later, makes the second of two servers on one port fail in this call.
        sock.listen(1)
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"cannot listen on {address}: {bind_reason(address.host, address.port, error)}"
        ) from error
    return sock, Address("tcp", address.host, sock.getsockname()[1])


def bind_reason(host: str, port: int, error: OSError) -> str:
    """Returns why a host and a port cannot be listened on, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken by another process; stop it or choose another port (0 picks a free one)"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; use one of its own, 127.0.0.1 or 0.0.0.0"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} needs privileges; choose one above 1023"
    return f"{error.strerror or error}"


def bind_unix(address: Address) -> tuple[socket.socket, Callable[[], None]]:
    """Returns a bound Unix socket that only this user may connect to, and a function that removes its file.

    A stale socket file, left by a killed process, is replaced.

    Raises:
        ConfigurationError: the path is taken or cannot be made.
    """
    path = Path(address.path)
    _clear_stale(address, path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(address.path)
        # Connecting is impossible before listen, so the file is never open to others.
        os.chmod(address.path, 0o600)
        made = os.stat(address.path).st_ino
    except OSError as error:
        sock.close()
        hint = "create the folder first" if error.errno == errno.ENOENT else "choose another path"
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror or error}; {hint}") from error

    def remove() -> None:
        try:
            if os.stat(address.path).st_ino == made:  # not the file of a later server
                os.unlink(address.path)
        except FileNotFoundError:
            pass

    return sock, remove


def _clear_stale(address: Address, path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"cannot listen on {address}: {path} is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise ConfigurationError(
        f"cannot listen on {address}: another process listens there; stop it, or choose another path"
    )


def set_options(sock: socket.socket | None) -> None:
    """On TCP, sends small frames at once and detects dead peers; on Unix sockets, requests a larger send buffer.

    TCP between two processes of one host is not paced (`UNPACED`).
    """
    if sock is None:
        return
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_CONGESTION") and _stays_on_host(sock):
            with suppress(OSError):  # an administrator may have forbidden it; then it is only slower
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
    elif sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BUFFER_BYTES)


def _stays_on_host(sock: socket.socket) -> bool:
    """Whether both ends have the same address."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # it has already ended
        return False
