"""Which kind of connection to use if several are possible; `ADAMCTL_TRANSPORT` forces one, e.g. for benchmarks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from adamctl.errors import ConfigurationError

TransportKind: TypeAlias = Literal["auto", "tcp", "unix", "shared"]
"""`auto` uses the fastest kind that both ends support: shared memory with a Unix socket, a Unix socket, TCP. `tcp` uses
only TCP, `unix` Unix sockets without shared memory, `shared` Unix sockets with it; data in memory that a server cannot
map goes through the socket with `shared`, too."""

VARIABLE = "ADAMCTL_TRANSPORT"


def chosen_kind(environment: Mapping[str, str] | None = None) -> TransportKind:
    """Returns the value of ADAMCTL_TRANSPORT, `auto` if unset.

    Raises:
        ConfigurationError: its value is unknown.
    """
    return kind_named((os.environ if environment is None else environment).get(VARIABLE) or "auto")


def kind_named(name: str) -> TransportKind:
    """Returns the kind of this name. Raises ConfigurationError: there is no such kind."""
    for kind in get_args(TransportKind):
        if name == kind:
            found: TransportKind = kind
            return found
    raise ConfigurationError(f"{VARIABLE}: expected {', '.join(get_args(TransportKind))}; found {name!r}")


def usable(scheme: str, kind: TransportKind) -> bool:
    """Whether an address of this scheme may be used."""
    return kind == "auto" or scheme == "memory" or scheme == ("tcp" if kind == "tcp" else "unix")
