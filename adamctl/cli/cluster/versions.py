"""Which version each node of a cluster runs, and whether they may work together: docs/upgrades.md. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from adamctl.config.names import printable

_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\D|$)")
UNTOLD = "-"
"""Of a node that does not tell its version: one from before nodes did, or one that does not answer."""


class Version(NamedTuple):
    """What a node tells: its version of adamctl, and the lowest and highest version of the wire format."""

    product: str
    wire: tuple[int, int]

    def shown(self) -> str:
        lowest, highest = self.wire
        return f"{self.product}, wire {lowest if lowest == highest else f'{lowest} to {highest}'}"


def version_of(status: Mapping[str, Any]) -> Version | None:
    """Returns what a node's status tells of its version; None if it does not tell it."""
    told = status.get("versions")
    if not isinstance(told, Mapping):
        return None
    product, wire = told.get("adamctl"), told.get("wire")
    if not isinstance(product, str) or not isinstance(wire, (list, tuple)):
        return None
    if len(wire) != 2 or not all(isinstance(number, int) for number in wire):
        return None
    return Version(printable(product)[:32], (wire[0], wire[1]))


def shown_version(status: Mapping[str, Any]) -> str:
    """Returns a node's version as text for a table."""
    found = version_of(status)
    return UNTOLD if found is None else found.shown()


def versions_of(cluster: Mapping[str, Any]) -> dict[str, Version | None]:
    """Returns node -> version of all nodes and controllers that answer."""
    statuses = {node["node"]: node["status"] for node in cluster.get("nodes", ())}
    for status in (cluster.get("controller", {}), *cluster.get("controllers", ())):
        if name := str(status.get("node") or status.get("name") or ""):
            statuses[name] = status
    return {name: version_of(status) for name, status in statuses.items() if status and "error" not in status}


def releases_apart(one: str, other: str) -> int:
    """Returns how many releases lie between two versions: 0, 1, or more, which is too many for one cluster.

    Releases are minor ones, such as 0.1 and 0.2; X.0 follows the last of the major version before it, whichever that
    is. A version that is not of this form is more than one away from any other.
    """
    if one == other:
        return 0
    found = [_NUMBERS.match(text) for text in (one, other)]
    if found[0] is None or found[1] is None:
        return 2
    (low_major, low_minor), (high_major, high_minor) = sorted((int(m[1]), int(m[2])) for m in found if m is not None)
    if low_major == high_major:
        return high_minor - low_minor
    return 1 if high_major - low_major == 1 and high_minor == 0 else 2


def too_far_apart(versions: Collection[Version]) -> str:
    """Returns what is wrong with these versions in one cluster; empty if each is at most one release from any other."""
    for one in versions:
        for other in versions:
            if releases_apart(one.product, other.product) > 1:
                return f"{one.product} and {other.product} are more than one release apart"
            if one.wire[0] > other.wire[1] or other.wire[0] > one.wire[1]:
                return f"{one.shown()} and {other.shown()} have no version of the wire format in common"
    return ""


def grouped(versions: Mapping[str, Version | None]) -> str:
    """Returns which nodes run which version: `adamctl 0.2.0, wire 1: ps-1, ps-2; ...`, most nodes first."""
    nodes: dict[str, list[str]] = {}
    for name, version in sorted(versions.items()):
        nodes.setdefault("no version told" if version is None else f"adamctl {version.shown()}", []).append(name)
    ordered = sorted(nodes.items(), key=lambda item: -len(item[1]))
    if len(ordered) == 1:
        return f"{ordered[0][0]} on all {len(versions)} nodes"
    return "; ".join(f"{version}: {', '.join(names)}" for version, names in ordered)
