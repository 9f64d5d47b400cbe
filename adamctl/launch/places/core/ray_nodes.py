"""Which of Ray's nodes can take a host, what a host is called, and which addresses of Ray cannot be used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adamctl.config.names import NAME_CHARACTERS_MAX, as_name
from adamctl.errors import ConfigurationError

LABEL = "ray.io/node-id"
"""Of each node of Ray, from 2.49 on."""


@dataclass(frozen=True)
class RayNode:
    """One node that Ray believes alive."""

    node: str
    hostname: str
    cores: int


def living(rows: Iterable[Mapping[str, Any]]) -> list[RayNode]:
    """Returns what `ray.nodes()` tells of nodes that are alive."""
    return [
        RayNode(str(row["NodeID"]), str(row.get("NodeManagerHostname", "")), int(row["Resources"].get("CPU", 0)))
        for row in rows
        if row.get("Alive")
    ]


def fitting(nodes: Iterable[RayNode], cores: int, taken: Collection[str] = ()) -> list[RayNode]:
    """Returns the nodes with so many cores, used or not, that are not among `taken`."""
    return [node for node in nodes if node.cores >= cores and node.node not in taken]


def cores_of_each(nodes: Iterable[RayNode], hosts: int) -> int:
    """Returns how many cores a host may have where all are wanted: as many as the `hosts` largest nodes all have."""
    have = sorted((node.cores for node in nodes if node.cores), reverse=True)
    return have[hosts - 1] if len(have) >= hosts else 1


def too_few(hosts: int, cores: int, nodes: Iterable[RayNode]) -> str:
    """Says what was expected of a cluster and what it has."""
    alive = list(nodes)
    found = len(fitting(alive, cores))
    return (
        f"expected {hosts} nodes of Ray with {cores} free cores each; of its {len(alive)} nodes "
        f"{found} {'has' if found == 1 else 'have'} {cores} cores, free or not"
    )


def host_name(hostname: str, used: Collection[str]) -> str:
    """Returns a name for a host that no other had: its machine's, with a number if that was used before."""
    name = as_name(hostname)[: NAME_CHARACTERS_MAX - 8] or "host"
    if name not in used:
        return name
    return next(numbered for number in range(2, len(used) + 3) if (numbered := f"{name}-{number}") not in used)


def without(nodes: Iterable[str]) -> dict[str, str]:
    """Returns the selector of labels that leaves out these nodes; empty if there are none."""
    names = sorted(nodes)
    return {LABEL: f"!in({','.join(names)})"} if names else {}


def check_address(address: str) -> None:
    """Raises ConfigurationError: the address is one of Ray's client, whose proxy cannot hold actors for a front."""
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"RAY_ADDRESS {address}: Ray's client cannot hold a run's hosts; submit a job to the cluster: "
            "adamctl launch ray EXP.toml --print prints the script, for ray job submit"
        )
