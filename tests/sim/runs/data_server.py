"""A data server of a simulated run: a member of the cluster that is there or not, process after process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from adamctl.roles.controller.core.service.events import Disconnected
from adamctl.roles.lease import Lease
from tests.sim.controllers.controller import SimController
from tests.sim.engine import Clock, World
from tests.sim.processes.process import Member, SimProcess


class SimDataServer(SimProcess):
    """One name. What it serves is not simulated, only whether it does.

    Attributes:
        stays_down: it is not started any more.
        down_s: how long until a process that has died is followed by another.
    """

    def __init__(self, world: World, name: str, hosts: Mapping[str, SimController], lease_s: float) -> None:
        super().__init__(world, name, Clock(world, 1.0))
        self.hosts, self.lease_s = hosts, lease_s
        self.stays_down, self.down_s = False, 0.1
        self.member: Member

    @property
    def incarnation(self) -> int:
        return self.member.incarnation if self.run else 0

    def start(self) -> None:
        if self.alive or self.stays_down:
            return
        view = self.begin()
        self.world.note(self.name, "starts", "run", self.run)
        self.member = Member(
            view,
            self.hosts,
            Lease(self.lease_s, self.clock.now),
            role="data",
            registered=lambda: None,
            renewed=lambda _: None,
            lost=self.crash,
        )
        self.member.join()

    def crash(self) -> None:
        """The process is gone, and the next one begins a little later."""
        if not self.alive:
            return
        self.end()
        self.world.note(self.name, "CRASHES")
        gone = Disconnected(self.member.connection)
        for host in self.hosts.values():
            self.world.after(self.world.random.random() * 0.05, partial(host.take, gone))
        self.world.after(self.down_s, self.start)
