"""Which of a node's addresses serves which traffic: clients, administration or replication (Adam 3.3.4).

A node listens for clients, and may listen on separate addresses for the two others. A kind without an address of its
own shares the clients' address; a kind that has one is refused everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from adamctl.config.records import AddressKind, NodeRecord
from adamctl.net.address import TransportKind, host_id, parse_address, usable
from adamctl.net.transport import Request
from adamctl.roles.process import CommonOptions, advertised
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    CheckpointPartRequest,
    CheckpointRequest,
    Message,
    ReplicaFetchRequest,
    ReplicaPrepareRequest,
    ReplicaStateRequest,
    ShutdownRequest,
    StatusRequest,
)

KINDS: tuple[AddressKind, ...] = get_args(AddressKind)

_ADMINISTRATION: tuple[type[Message], ...] = (
    StatusRequest,
    ShutdownRequest,
    CheckpointRequest,
    CheckpointPartRequest,
)
_REPLICATION: tuple[type[Message], ...] = (ReplicaPrepareRequest, ReplicaStateRequest, ReplicaFetchRequest)


def kind_of(message: Message) -> AddressKind:
    """Returns the kind of traffic that a request belongs to."""
    if isinstance(message, _ADMINISTRATION):
        return "administration"
    return "replication" if isinstance(message, _REPLICATION) else "clients"


@dataclass(frozen=True)
class Place:
    """An address to listen on, and the kinds of traffic that it accepts."""

    address: str
    kinds: frozenset[AddressKind]


def places(
    clients: Sequence[str], administration: Sequence[str] = (), replication: Sequence[str] = ()
) -> tuple[Place, ...]:
    """Returns the addresses to listen on. An address given twice is used once, except one with any free port.

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
    """The addresses on which a node listens, with actual ports.

    Attributes:
        advertised: per kind, what others are told; a kind that shares the clients' addresses has none.
        separate: whether any kind has addresses of its own.
    """

    def __init__(self, chosen: Sequence[Place], bound: Sequence[str], options: CommonOptions) -> None:
        """`bound` are the actual addresses of those chosen, in the same order."""
        self._kinds = {address: place.kinds for address, place in zip(bound, chosen, strict=True)}
        self.separate = any(kinds != frozenset(KINDS) for kinds in self._kinds.values())
        # --advertise names this node in the clients' network; another network has another name for it.
        elsewhere = replace(options, advertise="")
        self.advertised: dict[AddressKind, tuple[str, ...]] = {}
        for kind in KINDS:
            mine = tuple(address for address, kinds in self._kinds.items() if kind in kinds)
            shares = kind != "clients" and all("clients" in self._kinds[address] for address in mine)
            told = advertised(mine, options if kind == "clients" else elsewhere)
            self.advertised[kind] = () if shares else told

    def refuse_misplaced(self, request: Request) -> bool:
        """Refuses a request that came to an address of another kind; returns whether it did."""
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
        """Returns the addresses for the line that says that a role is ready: first the clients', then all others."""
        parts = [self.advertised["clients"][0] if self.advertised["clients"] else "no address"]
        parts += [f"{kind} on {', '.join(self.advertised[kind])}" for kind in KINDS[1:] if self.advertised[kind]]
        return ", ".join(parts)


def usable_addresses(record: NodeRecord, kind: TransportKind, takes: AddressKind) -> list[str]:
    """Returns a node's addresses in the order to try them from this host."""
    order = {"memory": 0, "unix": 1, "tcp": 2}
    same_host = record.host == host_id()
    schemes = [(parse_address(text).scheme, text) for text in record.addresses_for(takes)]
    found = [(order[scheme], text) for scheme, text in schemes if usable(scheme, kind)]
    return [text for rank, text in sorted(found) if rank != 1 or same_host]


def no_address(own: str, record: NodeRecord, kind: TransportKind, takes: AddressKind) -> str:
    """Says why the node `own` can use none of a node's addresses, and what to do."""
    found = ", ".join(record.addresses_for(takes)) or "none"
    where = "the same machine" if record.host == host_id() else "another machine"
    if kind == "auto":
        wanted, advice = "a tcp:// address", "start it with --bind and --advertise"
    else:
        wanted, advice = f"one for {kind}, as ADAMCTL_TRANSPORT of {own} says", f"unset ADAMCTL_TRANSPORT of {own}"
    return f"it is on {where}; expected {wanted}, found {found}; {advice}"
