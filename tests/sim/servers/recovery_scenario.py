"""Servers that stay away for long or lose their disks, and an operator who goes on without them (recovery).

The operator sees what `adamctl recover` sees: the records and what living servers say of themselves; and acts on it a
moment later, when it may no longer be so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from adamctl.cli.cluster.stuck import findings, servers_of
from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.service.events import CompareAndSet, Read
from adamctl.roles.ps.replication.core.recovery import Finding, State, recovery
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply, ConfigEntry
from tests.sim.controllers.clients import Caller
from tests.sim.servers.cluster import JOB, ServerCluster, ServerFault
from tests.sim.servers.scenario import ServerScenario
from tests.sim.servers.shells.log_disk import SimLogDisk
from tests.sim.servers.shells.server import SimServer

CALL_S = 3.0
AWAY_S_MIN, AWAY_S_MAX = 3.0, 12.0


class Operator:
    """Looks again and again.

    Attributes:
        recovered, refused: buckets that were recovered, and such as had changed meanwhile.
    """

    def __init__(self, scenario: RecoveryScenario) -> None:
        self._scenario, self._cluster, self._world = scenario, scenario.cluster, scenario.world
        self._caller = Caller(self._world, "operator", self._cluster.hosts)
        self._session = 0
        self.recovered = self.refused = 0

    def look(self) -> None:
        if self._scenario.calm:
            return
        self._world.after(0.1 + 0.5 * self._world.random.random(), self.look)
        self._read(f"/jobs/{JOB}", lambda jobs: self._read("/nodes/", lambda nodes: self._asked(jobs, nodes)))

    def _read(self, prefix: str, then: Callable[[tuple[ConfigEntry, ...]], None]) -> None:
        def answered(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer):
                then(answer.entries or ())

        self._caller.call(lambda token: Read(token, prefix), answered, CALL_S)

    def _asked(self, jobs: tuple[ConfigEntry, ...], nodes: tuple[ConfigEntry, ...]) -> None:
        if not jobs:  # it is not made yet
            return
        statuses = {name: self._status(server) for name, server in self._cluster.servers.items()}
        stuck = [one for one in findings(JOB, jobs, servers_of(nodes), statuses) if one.state is State.STUCK]
        if stuck:
            late_s = self._world.random.random() * self._world.random.choice((0.01, 0.1, 1.0))
            self._world.after(late_s, lambda: self._recover(stuck))

    def _status(self, server: SimServer) -> dict[str, Any]:
        if not server.alive or server.paused or server.core is None:
            return {}
        kept = server.replication.kept().get(JOB, {})
        values = {bucket: one.values() for bucket, one in kept.items()}
        return {"incarnation": server.incarnation, "replication": {"jobs": {JOB: {"kept": values}}}}

    def _recover(self, stuck: list[Finding]) -> None:
        if self._scenario.calm:
            return
        for one in stuck:
            self._world.note("operator", "recovers", "bucket", one.bucket, "on", one.primary, "without", one.given_up)
        (changes,) = recovery(JOB, stuck, 0.0)
        self._change(changes, len(stuck))

    def _change(self, changes: ConfigChanges, count: int) -> None:
        self._session += 1
        session = f"operator+{self._session}"

        def answered(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer) and isinstance(answer.message, ConfigCompareAndSetReply):
                self.refused += count if answer.message.conflicts else 0
                self.recovered += 0 if answer.message.conflicts else count

        self._caller.call(lambda token: CompareAndSet(token, session, 1, changes, 0), answered, CALL_S)


class RecoveryScenario(ServerScenario):
    """One seed in which all servers crash often, and some of them stay away or come back with nothing.

    Nothing promises that initial values, or what a removed checkpoint had, outlive a lost disk: its jobs have neither.
    """

    cluster_type = partial(ServerCluster, special=False)  # type: ignore[assignment]

    def __init__(
        self, seed: int, members: int = 0, *, planted: ServerFault | None = None, keep_trace: bool = False
    ) -> None:
        super().__init__(seed, members, planted=planted, keep_trace=keep_trace)
        self.cluster.kinds = (*self.cluster.kinds, *("crash-all",) * 4)
        self.operator = Operator(self)
        self.world.after(2.0, self.operator.look)

    def _server_crashed(self, server: SimServer) -> None:
        super()._server_crashed(server)
        if self.cluster.acks != "durable" and not self.calm and self.world.chance(0.1):
            self.world.note(server.name, "loses", "its disk")
            server.disk = SimLogDisk(self.world.random, lambda: self.world.now_s)
            self.cluster.invariants.disk_lost()

    def _downtime_s(self) -> float:
        if not self.calm and self.world.chance(0.5):
            return AWAY_S_MIN + self.world.random.random() * (AWAY_S_MAX - AWAY_S_MIN)
        return super()._downtime_s()
