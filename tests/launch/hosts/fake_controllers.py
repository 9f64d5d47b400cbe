"""Controllers that are not there, at agents whose processes are not: who is a member of which cluster, no more.

They form, decide and refuse as the real ones do: by a majority of living members, a member by its folder and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.host.core.instructions import StartProcess
from adamctl.wire.constants import ErrorCode

if TYPE_CHECKING:
    from tests.launch.hosts.hosts_under_test import Processes


@dataclass(frozen=True)
class Controller:
    """One folder of a controller: at an agent's process, under its name."""

    node: str
    processes: Processes
    peers: tuple[tuple[str, str], ...]

    @property
    def alive(self) -> bool:
        return self.node in self.processes.living

    @property
    def address(self) -> str:
        return f"tcp://{dict(self.peers)[self.node]}"


@dataclass
class Cluster:
    members: list[Controller]
    replaced: list[tuple[str, str]] = field(default_factory=list)

    def names(self) -> list[str]:
        return sorted(member.node for member in self.members)

    @property
    def majority(self) -> bool:
        return 2 * sum(member.alive for member in self.members) > len(self.members)


class FakeControllers:
    """All controllers of one world."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.known: dict[tuple[str, int], Controller] = {}
        self.clusters: list[Cluster] = []
        self.may_form = True

    def started(self, processes: Processes, what: StartProcess) -> None:
        """A controller's process was started, in its folder."""
        peers = tuple(tuple(one.split("=")) for one in _values(what.arguments, "--peers")[0].split(","))
        assert len(peers) == 3 and what.node in dict(peers), peers
        self.known.setdefault((what.node, id(processes)), Controller(what.node, processes, peers))  # type: ignore[arg-type]

    def form(self) -> None:
        """Those that were started with the same peers, and are all there, become a cluster."""
        free = [one for one in self.known.values() if one.alive and not self._cluster_of(one)]
        for one in free:
            together = [other for other in free if other.peers == one.peers]
            if self.may_form and len(together) == 3 and not any(map(self._cluster_of, together)):
                self.clusters.append(Cluster(together))

    def _cluster_of(self, controller: Controller) -> Cluster | None:
        return next((one for one in self.clusters if controller in one.members), None)

    def serve(self, arguments: Sequence[str]) -> bool:
        """Whether somebody that was started with these arguments has become a member of a cluster."""
        self.form()
        addresses = _values(arguments, "--controller")
        if not any(one.address in addresses for one in self.known.values()):
            return True  # the only controller is beside the front
        return any(one.address in addresses for cluster in self.clusters for one in cluster.members)

    def open(self, addresses: Sequence[str]) -> Store:
        return Store(self, addresses)


@dataclass
class Store:
    """Takes the place of `adamctl.roles.controller.client.ControllerClient`."""

    controllers: FakeControllers
    addresses: Sequence[str]

    def _cluster(self) -> Cluster:
        self.controllers.form()
        for cluster in reversed(self.controllers.clusters):
            if cluster.majority and any(one.alive and one.address in self.addresses for one in cluster.members):
                return cluster
        raise UnreachableError("no controller leads")

    async def members(self) -> dict[str, str]:
        return {one.node: one.address for one in self._cluster().members}

    async def replace_controller(self, old: str, name: str, address: str) -> None:
        cluster, random = self._cluster(), self.controllers._random
        former = next((one for one in cluster.members if one.node == old), None)
        leader = random.choice([one for one in cluster.members if one.alive])
        new = next((one for one in self.controllers.known.values() if one.node == name and one.alive), None)
        if former is None or former.alive or new is None or leader.node not in dict(new.peers):
            raise RemoteError(ErrorCode.BAD_CONFIGURATION, f"{old} cannot be replaced by {name} now")
        assert new.address == address and new not in cluster.members
        cluster.members[cluster.members.index(former)] = new
        cluster.replaced.append((old, name))
        if random.random() < 0.3:
            raise UnreachableError("the answer was lost")

    async def close(self) -> None: ...


def _values(arguments: Sequence[str], flag: str) -> list[str]:
    return [value for name, value in pairwise(arguments) if name == flag]
