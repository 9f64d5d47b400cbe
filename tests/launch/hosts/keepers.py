"""Keepers of runs that have begun, and what of their decisions tests look at."""

from __future__ import annotations

from typing import Any

from adamctl.config.experiment import ClusterConfig, Experiment
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.decisions import Decision, Put, Say, Substitute
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.placement import Offer
from adamctl.launch.places.engines import BY_HAND
from adamctl.model.description import Model, Softmax


def keeper(asked: HostsAsked, **cluster: Any) -> HostKeeper:
    given = ClusterConfig(**{"ps": 2, "replication": 2, **cluster})
    return HostKeeper(Experiment(name="small", model=Model((4,), (Softmax(2),)), cluster=given), asked)


def arrive(made: HostKeeper, *names: str, now_s: float = 0.0, again: bool = False) -> list[Decision]:
    return [one for name in names for one in made.arrived(Offer(name, 8), again, now_s)]


def texts(decisions: list[Decision]) -> list[str]:
    return [one.text for one in decisions if isinstance(one, Say)]


def puts(decisions: list[Decision]) -> dict[str, str]:
    return {one.placed.node: one.placed.host for one in decisions if isinstance(one, Put)}


def begun(hosts: int = 2, spares: int = 0, engine: str = BY_HAND, **cluster: Any) -> HostKeeper:
    made = keeper(HostsAsked(hosts, hosts, engine, spares=spares), **cluster)
    arrive(made, *(f"h{number}" for number in range(1, hosts + 1)))
    assert made.begun
    return made


def on_hosts(*names: str, spares: int = 0, serves: bool = True, **cluster: Any) -> HostKeeper:
    """Returns a run with controllers on the first three hosts."""
    made = keeper(HostsAsked(len(names), len(names), spares=spares), **{"ps": 3, "replication": 3, **cluster})
    arrive(made, *names)
    if serves:
        made.serves("worker-1")
    return made


def substitutes(decisions: list[Decision]) -> dict[str, str]:
    return {one.placed.node: one.placed.host for one in decisions if isinstance(one, Substitute)}


def homes(made: HostKeeper) -> dict[str, str]:
    return {node: one.host for node, one in made.placed.items() if one.role == "controller"}
