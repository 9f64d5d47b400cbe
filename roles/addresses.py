"""Which of a node's addresses takes what: traffic of clients, of administration, of replication (Adam 3.3.4).

A node listens for clients, and may listen elsewhere for the two others. What has no address of its own shares that of
clients; what has one is refused anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from adamctl.config.records import AddressKind
from adamctl.net.address import parse_address
from adamctl.net.transport import Request
from adamctl.roles.process import CommonOptions, advertised
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    CheckpointRequest,
    Message,
    ReplicaFetchRequest,
    ReplicaPrepareRequest,
    ReplicaStateRequest,
    ShutdownRequest,
    StatusRequest,
)

KINDS: tuple[AddressKind, ...] = get_args(AddressKind)

_ADMINISTRATION: tuple[type[Message], ...] = (StatusRequest, ShutdownRequest, CheckpointRequest)
_REPLICATION: tuple[type[Message], ...] = (ReplicaPrepareRequest, ReplicaStateRequest, ReplicaFetchRequest)


def kind_of(message: Message) -> AddressKind:
    """Returns what a request is part of."""
    if isinstance(message, _ADMINISTRATION):
        return "administration"
    return "replication" if isinstance(message, _REPLICATION) else "clients"


@dataclass(frozen=True)
class Place:
    """An address to listen on, and what it takes."""

    address: str
    kinds: frozenset[AddressKind]


def places(
    clients: Sequence[str], administration: Sequence[str] = (), replication: Sequence[str] = ()
) -> tuple[Place, ...]:
    """Returns where to listen. The same address given twice is listened on once, except one with any free port.

    Raises:
        ConfigurationError: an address is malformed.
    """
    given: dict[AddressKind, Sequence[str]] = {"administration": administration, "replication": replication}
    shared: set[AddressKind] = {"clients"}
    shared.update(kind for kind, addresses in given.items() if not addresses)
    found = [Place(address, frozenset(shared)) for address in clients]
    for kind, addresses in given.items():
        for text in addresses:
            address = parse_address(text)
            same = next((number for number, place in enumerate(found) if parse_address(place.address) == address), None)
            if same is None or (address.scheme == "tcp" and not address.port):
                found.append(Place(text, frozenset({kind})))
            else:
                found[same] = Place(found[same].address, found[same].kinds | {kind})
    return tuple(found)


class BoundAddresses:
    """Where a node listens, ports filled in.

    Attributes:
        advertised: per kind what others are told; a kind that shares the addresses of clients has none.
        separate: whether any kind has addresses of its own.
    """

    def __init__(self, chosen: Sequence[Place], bound: Sequence[str], options: CommonOptions) -> None:
        """`bound` are the addresses that came of those chosen, in their order."""
        self._kinds = {address: place.kinds for address, place in zip(bound, chosen, strict=True)}
        self.separate = any(kinds != frozenset(KINDS) for kinds in self._kinds.values())
        # --advertise is the name of the network of clients; another network has another.
        elsewhere = replace(options, advertise="")
        self.advertised: dict[AddressKind, tuple[str, ...]] = {}
        for kind in KINDS:
            mine = tuple(address for address, kinds in self._kinds.items() if kind in kinds)
            shares = kind != "clients" and all("clients" in self._kinds[address] for address in mine)
            told = advertised(mine, options if kind == "clients" else elsewhere)
            self.advertised[kind] = () if shares else told

    def refuse_misplaced(self, request: Request) -> bool:
        """Refuses a request that came to an address of another kind, and says whether it did."""
        if not self.separate:
            return False
        kind = kind_of(request.message)
        here = self._kinds.get(request.local_address)
        if here is None or kind in here:
            return False
        where = self.advertised[kind] or self.advertised["clients"]
        request.fail(
            ErrorCode.WRONG_ADDRESS,
            f"{request.local_address} takes {' and '.join(sorted(here))}; a {type(request.message).__name__} is "
            f"{kind}, which is taken at {', '.join(where)}",
            {"kind": kind, "addresses": list(where)},
        )
        return True

    def describe(self) -> str:
        """Returns the addresses for the line that says that a role is ready: those of clients, then all others."""
        parts = [self.advertised["clients"][0] if self.advertised["clients"] else "no address"]
        parts += [f"{kind} on {', '.join(self.advertised[kind])}" for kind in KINDS[1:] if self.advertised[kind]]
        return ", ".join(parts)
