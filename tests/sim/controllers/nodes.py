"""Nodes that register, send beacons, and hold a lease for as long as they were told that they live."""

from __future__ import annotations

from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.service.events import Beacon, Event, Register
from adamctl.wire.messages import NodeRegisterReply, NodeRegisterRequest
from tests.sim.controllers.clients import Caller
from tests.sim.engine import Clock, ViolationError, World

DRIFTS = (0.08, 0.08, 0.01, 0.0)
"""How much faster or slower than true time a clock may run, at most; each seed has one of these."""


def lease_share(drift: float) -> float:
    """Returns D as a share of G, as long as it may just be: G > D * (1 + r) / (1 - r)."""
    return 0.995 * (1 - drift) / (1 + drift)


class Leases:
    """Until when, in true time, each incarnation may believe that it lives."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checked = True
        self._until_s: dict[tuple[str, int], float] = {}

    def renewed(self, node: str, incarnation: int, until_s: float) -> None:
        key = (node, incarnation)
        self._until_s[key] = max(self._until_s.get(key, 0.0), until_s)

    def given_up(self, node: str, incarnation: int) -> None:
        self._until_s.pop((node, incarnation), None)

    def removed(self, node: str, incarnation: int) -> None:
        """The controllers have decided that a node is lost."""
        until_s = self._until_s.get((node, incarnation), 0.0)
        if self.checked and until_s > self.world.now_s:
            raise ViolationError(
                f"a node removed within its lease: {node} ({incarnation}), {until_s - self.world.now_s:.3f} s too early"
            )


class SimNode:
    """One process after another under one name. Its clock may be fast or slow."""

    def __init__(self, world: World, name: str, caller: Caller, clock: Clock, leases: Leases, lease_s: float) -> None:
        self.world = world
        self.name = name
        self.caller = caller
        self.clock = clock
        self.leases = leases
        self.lease_s = lease_s
        self.interval_s = lease_s / 4
        self.incarnation = 0
        self.pid = 0
        self.patience = 0.7  # probability that it goes on when its beacon was not answered, and does not start anew
        self._sent_s = 0.0

    def begin(self) -> None:
        """Starts a new process, which registers."""
        self.pid += 1
        self.incarnation = 0
        request = NodeRegisterRequest(self.name, "ps", (), "h", self.pid)
        connection = self.pid * 1000 + int(self.name[1:])
        self.caller.call(lambda token: Register(token, connection, request), self._registered, 5.0)

    def _registered(self, answer: Answer | Refuse | None) -> None:
        if isinstance(answer, Answer) and isinstance(answer.message, NodeRegisterReply):
            self.incarnation = answer.message.incarnation
            self._beat()
        else:
            self.world.after(0.5, self.begin)

    def _beat(self) -> None:
        incarnation, sent_s = self.incarnation, self.world.now_s
        connection = self.pid * 1000 + int(self.name[1:])

        def event(token: int) -> Event:
            return Beacon(token, connection, self.name, incarnation)

        def answered(answer: Answer | Refuse | None) -> None:
            if incarnation != self.incarnation:
                return
            if isinstance(answer, Answer):
                self.leases.renewed(self.name, incarnation, sent_s + self.clock.true_length_s(self.lease_s))
                pause_s = self.clock.true_length_s(self.interval_s) - (self.world.now_s - sent_s)
                self.world.after(max(pause_s, 0.0), again)
            elif answer is None and self.world.chance(self.patience):
                self._beat()  # perhaps it is not too late
            else:
                self.leases.given_up(self.name, incarnation)
                self.world.after(0.2, self.begin)

        def again() -> None:
            if incarnation == self.incarnation:
                if self.world.chance(0.15):  # silent for a while, so that somebody is lost now and then
                    self.world.after(self.clock.true_length_s(self.lease_s) * self.world.random.random() * 3, again)
                else:
                    self._beat()

        self.caller.call(event, answered, self.clock.true_length_s(self.lease_s))
