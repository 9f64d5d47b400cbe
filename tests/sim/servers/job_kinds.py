"""Kinds of jobs that some seeds have: given initial values, restored, beside the bounds of memory, in step.

Each is decided by a stream of its own, so that all other seeds keep their course.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from adamctl.model.layout import Distribution
from adamctl.roles.ps.core.exactly_once import ClientMemory
from tests.sim.servers.clients.first_clients import KnowingClient, TakingClient
from tests.sim.servers.clients.push_client import SimPushClient
from tests.sim.servers.clients.step_clients import Rounds, replicas_of
from tests.sim.servers.clients.worker import SimWorker
from tests.sim.servers.ledger_parts import Bounds
from tests.sim.servers.restored_jobs import FOLDER, SimRestore

if TYPE_CHECKING:
    from tests.sim.servers.cluster import ServerCluster

GIVEN, RESTORES, EVICTS, STEPS = 0.07, 0.07, 0.07, 0.06
"""Of the seeds."""
KINDS = ("given", "restores", "evicts", "steps")
DISKS_FULL = 0.3
"""How often disks are full when initial values come."""
VISITORS_MAX, VISITORS_FIRST = 3, 11
VISIT_S_MAX = 1.2


class JobKinds:
    """What is special about the job of a seed.

    Attributes:
        given: a client gives its initial values.
        restores: it begins from a checkpoint.
        evicts: more clients come than are remembered.
        steps: its replicas go in step.
    """

    def __init__(self, seed: int, enabled: bool = True) -> None:
        self.random = Random(f"{seed} kinds")
        self.given = enabled and Random(f"{seed} given").random() < GIVEN
        self.restores = enabled and not self.given and Random(f"{seed} restores").random() < RESTORES
        self.evicts = enabled and not self.given and Random(f"{seed} evicts").random() < EVICTS
        self.steps = enabled and not (self.given or self.evicts) and Random(f"{seed} steps").random() < STEPS
        self.visitors: dict[str, SimWorker] = {}
        self.restore: SimRestore | None = None
        self._came = 0

    def become(self, kind: str) -> None:
        """Is of this kind and of no other."""
        self.given, self.restores, self.evicts, self.steps = (kind == one for one in KINDS)

    @property
    def any(self) -> bool:
        return self.given or self.restores or self.evicts or self.steps

    @property
    def distribution(self) -> Distribution:
        """Of tensors."""
        return "given" if self.given else "zeros"

    @property
    def folder(self) -> str:
        """Returns where the checkpoint is that the job begins from, "" if it does not."""
        return FOLDER if self.restores else ""

    def prepare(self, cluster: ServerCluster) -> None:
        """Makes what the job begins with, and has its clients know of it."""
        self._cluster, ledger = cluster, cluster.ledger
        replica: type[SimPushClient] = SimPushClient
        if self.steps:  # their parts are gradients
            cluster.rule, ledger.squares = "adagrad", True
            cluster.acks = ledger.acks = "durable"  # what is taken back of a step may be waited for in vain
            replica = replicas_of(Rounds(ledger, len(cluster.layout.shards), self.random))
        if self.restores:
            self.restore = SimRestore(cluster, self.random)
        if self.evicts:
            sizes = self.random.choice((6, 7, 9)), self.random.choice((3, 8, 40))
            ledger.bounds = Bounds(ledger, *sizes)
        ledger.begins_given = self.given
        if self.given and self.random.random() < DISKS_FULL:
            ledger.begun.on_given = self._fill_disks
        for client in cluster.clients:
            if self.given:
                client.client_type = TakingClient
            elif self.steps:
                client.client_type = replica
            elif self.restores:
                client.client_type = KnowingClient

    def _fill_disks(self) -> None:
        """What is given finds no room."""
        for server in self._cluster.servers.values():
            server.disk_full = self.random.random() < 0.8

    @contextmanager
    def planted(self) -> Iterator[None]:
        """What is not the simulator's otherwise, while the seed runs."""
        with ExitStack() as stack:
            if self.restore is not None:
                stack.enter_context(self.restore.planted())
            if self.evicts:
                bounds = self._cluster.ledger.bounds
                assert bounds is not None
                stack.enter_context(small_memory(bounds.clients_max, bounds.marks_max))
            yield

    def made(self) -> None:
        """The job is there."""
        if self.restore is not None:
            self.restore.look()
        if self.evicts:
            self._visit()

    def _visit(self) -> None:
        """A client comes, pushes a little, and is gone for good."""
        cluster, world = self._cluster, self._cluster.world
        if cluster.calm:
            return
        if sum(visitor.alive for visitor in self.visitors.values()) < VISITORS_MAX:
            name = f"v{VISITORS_FIRST + self._came}"
            self._came += 1
            self.visitors[name] = visitor = cluster.add_visitor(name)
            visitor.pause_s_max = 0.1
            visitor.down_s = lambda: 1e9
            visitor.start()
            world.after(0.3 + self.random.random() * VISIT_S_MAX, partial(self._leave, visitor))
        world.after(self.random.random() * 0.4, self._visit)

    def _leave(self, visitor: SimWorker) -> None:
        visitor.resume()
        visitor.crash()

    def stop(self) -> None:
        """Nobody comes any more."""
        for visitor in self.visitors.values():
            self._leave(visitor)


@contextmanager
def small_memory(clients_max: int, marks_max: int) -> Iterator[None]:
    """Makes memories so small that seeds come to their ends."""
    defaults = ClientMemory.__init__.__defaults__
    ClientMemory.__init__.__defaults__ = (clients_max, marks_max)
    try:
        yield
    finally:
        ClientMemory.__init__.__defaults__ = defaults
