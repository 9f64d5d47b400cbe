"""Who is at the other end of a TLS connection, and what a certificate allows its holder to be. Pure.

An identity is a URI in the certificate's subject alternative names: `adam://CLUSTER/ROLE/NODE`. There is exactly one.
OpenSSL checks the chain; what is checked here is the rest: cluster, role and node, and that HELLO says the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from adamctl.config.names import NAME_EXPECTED, derived_name, is_name
from adamctl.errors import ConfigurationError

SCHEME: Final = "adam://"
_PARTS = re.compile(r"adam://([^/]+)/([^/]+)/([^/]+)")

OPERATOR: Final = "operator"
CLIENT: Final = "client"

CLAIMS: Final[Mapping[str, frozenset[str]]] = {
    OPERATOR: frozenset({OPERATOR, "front", "bench", "metrics", "coordinator", CLIENT}),
}
"""Role of a certificate -> roles that its holder may name in HELLO: a person's front, benchmark, metrics server, or run
that joins a cluster. Any other certificate allows its own role only."""

PART: Final = "."
"""Between a node's name and that of a part of it: a process or a connection of its own. No certificate has it."""


class Identity(NamedTuple):
    """Who a certificate names."""

    cluster: str
    role: str
    node: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.cluster}/{self.role}/{self.node}"

    def part(self, name: str) -> str:
        """Returns the name of one of several processes that use this certificate."""
        return derived_name(self.node, name)

    def speaks_for(self, role: str, node: str) -> bool:
        """Whether the holder of this certificate may say in HELLO that it is this role and node."""
        return role in self.roles and node.partition(PART)[0] == self.node

    @property
    def roles(self) -> frozenset[str]:
        """The roles that the holder of this certificate may have."""
        return CLAIMS.get(self.role, frozenset({self.role}))


ANYONE: Final = ("", "")
"""Role and node that a connection expects at the other end: any of this cluster."""


class Secured(NamedTuple):
    """Who the two ends of a connection are, by their certificates, which have been verified."""

    own: Identity
    peer: Identity


def parse_identity(uri: str) -> Identity:
    """Returns the identity that a URI names.

    Raises:
        ConfigurationError: it is not `adam://CLUSTER/ROLE/NODE`.
    """
    match = _PARTS.fullmatch(uri)
    if match is None:
        raise ConfigurationError(f"expected a certificate for adam://CLUSTER/ROLE/NODE; found {uri[:400]!a}")
    return make_identity(*match.groups())


def make_identity(cluster: str, role: str, node: str) -> Identity:
    """Returns an identity. Raises ConfigurationError: a certificate cannot name it."""
    for what, name in (("cluster", cluster), ("role", role), ("node", node)):
        if not is_name(name):
            raise ConfigurationError(f"expected a {what} of {NAME_EXPECTED}; found {name[:400]!a}")
    if PART in node:
        raise ConfigurationError(
            f"expected a node without a point in its name, which stands between a node and its parts; found {node!a}"
        )
    return Identity(cluster, role, node)


def certificate_identity(certificate: Mapping[str, Any]) -> Identity:
    """Returns the identity in a certificate, as `ssl.SSLObject.getpeercert` gives it.

    Raises:
        ConfigurationError: it names none, or several.
    """
    names = certificate.get("subjectAltName", ())
    found = [value for kind, value in names if kind == "URI" and value.startswith(SCHEME)]
    if len(found) != 1:
        what = f"{len(found)} of them" if found else "none"
        raise ConfigurationError(f"expected a certificate with one URI adam://CLUSTER/ROLE/NODE; found {what}")
    return parse_identity(found[0])


def other_cluster(own: Identity, peer: Identity, where: str) -> str:
    """Returns why a peer of another cluster is refused; empty if it belongs to this one."""
    if peer.cluster == own.cluster:
        return ""
    return (
        f"{own} and {peer}, {where}, belong to different clusters; use an address of cluster {own.cluster}, or a "
        f"certificate of cluster {peer.cluster}: adamctl tls create {own.role} {own.node}"
    )


def wrong_claim(own: Identity, peer: Identity, role: str, node: str) -> str:
    """Returns why a peer is refused that says in HELLO that it is `role` `node`; empty if its certificate allows it."""
    if peer.speaks_for(role, node):
        return ""
    return (
        f"{peer} says to {own} that it is {role} {node}, which its certificate does not allow ({allowed(peer)}); "
        f"give it a certificate of its own: {command_for(role, node)}"
    )


def wrong_peer(own: Identity, peer: Identity, said: tuple[str, str], role: str, node: str) -> str:
    """Returns why a connection to `role` `node` must not reach a peer that `said` which role and node it is; empty if
    it is the one. An empty role or node stands for any."""
    if (not role or said[0] == role) and (not node or said[1] == node):
        return ""
    wanted = " ".join(filter(None, (role, node)))
    return (
        f"{own} expected {wanted} there and found {peer}; give the address of {wanted}, or give the process there its "
        f"own certificate: {command_for(role or said[0], node or 'NODE')}"
    )


def allowed(identity: Identity) -> str:
    """Returns as whom a certificate's holder may speak, for messages."""
    return f"it allows {', '.join(sorted(identity.roles))} as {identity.node} or {identity.node}.PART"


def command_for(role: str, node: str) -> str:
    """Returns the command that makes a certificate for a role and node."""
    if role in (OPERATOR, "front", "bench"):
        return "adamctl tls create-operator NAME"
    return f"adamctl tls create {role} {node.partition(PART)[0]}"
