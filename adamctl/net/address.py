"""Addresses in users' notation: `tcp://host:port`, `host:port`, `unix:///path`, `memory://name`; and which one is used.

`ADAMCTL_TRANSPORT` forces one kind if several are possible, e.g. for benchmarks.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from adamctl.errors import ConfigurationError

UNIX_PATH_BYTES_MAX = 103
"""The shortest limit of the systems we run on (macOS: 104 with the final zero byte; Linux: 108)."""

DEFAULT_CONTROLLER_PORT = 7070
DEFAULT_CONTROLLER = f"tcp://127.0.0.1:{DEFAULT_CONTROLLER_PORT}"
"""Where a controller listens by default, and where others look for one."""

TransportKind: TypeAlias = Literal["auto", "tcp", "unix", "shared"]
"""`auto` uses the fastest kind that both ends support: shared memory with a Unix socket, a Unix socket, TCP. `tcp` uses
only TCP, `unix` Unix sockets without shared memory, `shared` Unix sockets with it; data in memory that a server cannot
map goes through the socket with `shared`, too."""

TRANSPORT_VARIABLE = "ADAMCTL_TRANSPORT"
TLS_VARIABLE = "ADAMCTL_TLS"
"""Names the folder of this process's certificate; then it speaks TLS over TCP."""
INSECURE_VARIABLE = "ADAMCTL_INSECURE"
"""1: addresses beyond loopback are allowed without TLS, with a token."""

_EXPECTED = "expected tcp://host:port, host:port or unix:///path"


class Address(NamedTuple):
    """`scheme` is "tcp" (host, port), "unix" (path) or "memory" (path is the name)."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return format_address(self)


def parse_address(text: str) -> Address:
    """Returns the address that `text` names; a bare `host:port` is TCP, port 0 any free port.

    Raises:
        ConfigurationError: malformed; the message says what was expected and found.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "tcp", text
    if scheme == "tcp":
        return _parse_tcp(text, rest)
    if scheme == "unix":
        if not rest.startswith("/") or len(rest) == 1:
            raise ConfigurationError(f"{_EXPECTED}, found {text!r}: the path must be absolute and name a file")
        length = len(os.fsencode(rest))
        if length > UNIX_PATH_BYTES_MAX:
            raise ConfigurationError(
                f"expected a path of at most {UNIX_PATH_BYTES_MAX} bytes for a Unix socket, "
                f"found {text!r}, {length} bytes; choose a shorter folder"
            )
        return Address("unix", path=rest)
    if scheme == "memory" and rest:
        return Address("memory", path=rest)
    raise ConfigurationError(f"{_EXPECTED}, found {text!r}")


def _parse_tcp(text: str, rest: str) -> Address:
    host, separator, port_text = rest.rstrip("/").rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigurationError(f"{_EXPECTED}, found {text!r}: write an IPv6 host in brackets, as in tcp://[::1]:7070")
    if not separator or not host or "/" in host or not port_text.isascii() or not port_text.isdigit():
        raise ConfigurationError(f"{_EXPECTED}, found {text!r}")
    port = int(port_text)
    if port > 65535:
        raise ConfigurationError(f"{_EXPECTED}, found {text!r}: ports go from 0 to 65535")
    return Address("tcp", host=host, port=port)


def format_address(address: Address) -> str:
    """Returns the text that `parse_address` reads back."""
    if address.scheme == "tcp":
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"tcp://{host}:{address.port}"
    return f"{address.scheme}://{address.path}"


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine by definition, and thus a different one for every other machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def chosen_kind(environment: Mapping[str, str] | None = None) -> TransportKind:
    """Returns the value of ADAMCTL_TRANSPORT, `auto` if unset.

    Raises:
        ConfigurationError: its value is unknown.
    """
    return kind_named((os.environ if environment is None else environment).get(TRANSPORT_VARIABLE) or "auto")


def kind_named(name: str) -> TransportKind:
    """Returns the kind of this name. Raises ConfigurationError: there is no such kind."""
    for kind in get_args(TransportKind):
        if name == kind:
            found: TransportKind = kind
            return found
    raise ConfigurationError(f"{TRANSPORT_VARIABLE}: expected {', '.join(get_args(TransportKind))}; found {name!r}")


def usable(scheme: str, kind: TransportKind) -> bool:
    """Whether an address of this scheme may be used."""
    return kind == "auto" or scheme == "memory" or scheme == ("tcp" if kind == "tcp" else "unix")


def prefer(addresses: Iterable[str], peer_host_id: str, kind: TransportKind = "auto") -> str:
    """Returns the address to reach a peer at: its Unix socket if that is on this machine and exists, else TCP.

    Args:
        addresses: addresses that the peer listens on.
        peer_host_id: the peer's `host_id()`.
        kind: which addresses to consider.

    Raises:
        ConfigurationError: none of them is usable from here.
    """
    addresses = tuple(addresses)
    choices = [(text, address) for text in addresses if usable((address := parse_address(text)).scheme, kind)]
    for text, address in choices:
        if address.scheme == "memory":
            return text
        if address.scheme == "unix" and peer_host_id == host_id() and Path(address.path).is_socket():
            return text
    for text, address in choices:
        if address.scheme == "tcp":
            return text
    names = ", ".join(addresses) or "none"
    forced = "" if kind == "auto" else f" by {kind}, as ADAMCTL_TRANSPORT says"
    advice = "add a tcp:// address" if kind == "auto" else "unset it to use any address"
    raise ConfigurationError(
        f"expected an address that can be reached from this machine{forced}, found {names}; {advice}"
    )


def host_id() -> str:
    """Returns a name that two processes share if and only if they run on the same machine since the same boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = f"{uuid.getnode():012x}"
    return f"{platform.node()}/{boot}"
