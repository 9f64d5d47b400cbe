"""Which kind of connection to use where several would do; `ADAMCTL_TRANSPORT` forces one, for benchmarks and doubts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from adamctl.errors import ConfigurationError

TransportKind: TypeAlias = Literal["auto", "tcp", "unix", "shared"]
"""`auto` takes the fastest that both ends can: shared memory beside a Unix socket, a Unix socket, TCP. `tcp` takes TCP
alone, `unix` Unix sockets without shared memory, `shared` those with it; memory that a server cannot map goes through
the socket under `shared` too."""

VARIABLE = "ADAMCTL_TRANSPORT"


def chosen_kind(environment: Mapping[str, str] | None = None) -> TransportKind:
    """Returns what ADAMCTL_TRANSPORT says, `auto` without it.

    Raises:
        ConfigurationError: it says something else than is known.
    """
    return kind_named((os.environ if environment is None else environment).get(VARIABLE) or "auto")


def kind_named(name: str) -> TransportKind:
    """Returns the kind of this name. Raises ConfigurationError: there is none."""
    for kind in get_args(TransportKind):
        if name == kind:
            found: TransportKind = kind
            return found
    raise ConfigurationError(f"{VARIABLE}: expected {', '.join(get_args(TransportKind))}; found {name!r}")


def usable(scheme: str, kind: TransportKind) -> bool:
    """Whether an address of this scheme may be used."""
    return kind == "auto" or scheme == "memory" or scheme == ("tcp" if kind == "tcp" else "unix")
