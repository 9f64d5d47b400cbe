"""Decides where a role of a run that has begun goes: a part of the keeper, and pure as that is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from adamctl.config.experiment import Experiment
from adamctl.launch.hosts.decisions import Put
from adamctl.launch.hosts.placement import KnownHost, Placed, partitions_of, threads_of


@dataclass
class Homes:
    """Shares what the keeper knows: where roles are, the hosts, what is told to end and where it starts again."""

    experiment: Experiment
    placed: dict[str, Placed]
    hosts: dict[str, KnownHost]
    ending: dict[str, Placed | None]

    def nodes(self, role: str) -> list[str]:
        """Returns the nodes that have this role."""
        return [one.node for one in self.placed.values() if one.role == role]

    def usable(self) -> list[str]:
        """Returns the hosts that are there and will not be taken away, as far as is known."""
        return [name for name, host in self.hosts.items() if host.usable]

    def idle(self) -> list[str]:
        """Returns usable hosts without a worker, nor one on its way there."""
        coming = {one.host for one in self.ending.values() if one is not None and one.role == "worker"}
        busy = {one.host for one in self.placed.values() if one.role == "worker"} | coming
        return [name for name in self.usable() if name not in busy]

    def home(self, role: str) -> str | None:
        """Returns where a role starts that loses its host; None if the run goes on without it.

        A worker goes where none is. Without such a host it shares one only if no whole replica would be left.
        """
        usable, idle = self.usable(), self.idle()
        there = Counter(one.host for one in self.placed.values() if one.role == role)
        left = [node for node in self.nodes("worker") if self.placed[node].host in usable]
        if role == "worker" and not idle and len(left) >= partitions_of(self.experiment):
            return None
        roles = Counter(one.host for one in self.placed.values())
        return min(idle or usable, key=lambda name: (there[name], roles[name]), default=None)

    def new_name(self, role: str) -> str:
        """Returns a name that no role of this run has."""
        taken = {*self.placed, *self.ending}
        return next(name for number in range(1, len(taken) + 2) if (name := f"{role}-{number}") not in taken)

    def at(self, role: str, node: str, host: str) -> Placed:
        """Returns a role on a host, with the threads that are left for it beside what is there."""
        made = Placed(role, node, host)
        beside = Counter(one.role for one in self.placed.values() if one.host == host and one.node != node)
        beside[role] += 1
        cores = self.hosts[host].offer.cores
        return replace(made, threads=threads_of(self.experiment, role, cores, beside))

    def put(self, role: str, node: str, host: str) -> Put:
        """Has a role start on a host, from now on its place."""
        self.placed[node] = self.at(role, node, host)
        return Put(self.placed[node])
