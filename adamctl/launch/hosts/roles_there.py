"""What is known of the roles at agents: where each runs, under which order, what was reported of it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from adamctl.launch.hosts.placement import Placed
from adamctl.launch.supervision import RoleEnd
from adamctl.live.reading import ProcessReading
from adamctl.net.address import parse_address
from adamctl.wire.messages import HostEnded, HostFailing, HostReading, HostServing


@dataclass
class There:
    """A role at an agent. `attempt`: the number of the order that started it."""

    placed: Placed
    attempt: int
    served: bool = False
    failing: RoleEnd | None = None


class RolesThere:
    """The roles that agents were told to start. A report about an earlier process of a name changes nothing.

    Attributes:
        roles: node -> where it is now.
        ends: how roles ended that are not there any more.
        readings: what agents have said last of their processes.
    """

    def __init__(self) -> None:
        self.roles: dict[str, There] = {}
        self.ends: dict[str, RoleEnd] = {}
        self.readings: dict[str, ProcessReading] = {}
        self._running: dict[str, dict[str, int]] = {}  # host -> node -> attempt, until its agent has reported an end

    def started(self, placed: Placed, attempt: int) -> None:
        """A role was ordered to start, for the first time or again, there or elsewhere than before."""
        self.roles[placed.node] = There(placed, attempt)
        self.ends.pop(placed.node, None)
        self._running.setdefault(placed.host, {})[placed.node] = attempt

    def keep_only(self, placed: Container[str]) -> list[str]:
        """Forgets roles that the run goes on without; returns their nodes."""
        gone = [node for node in self.roles if node not in placed]
        for node in gone:
            del self.roles[node]
            self.readings.pop(node, None)
        return gone

    def arrived(self, host: str, again: bool) -> list[tuple[str, int]]:
        """A host is there; returns what may still run there but is elsewhere now, as (node, attempt).

        An agent's new process runs nothing.
        """
        if not again:
            self._running[host] = {}
        running = self._running.get(host, {})
        return [one for one in running.items() if self._current(host, *one) is None]

    def serves(self, host: str, report: HostServing) -> tuple[str, ...]:
        """Returns the addresses at which a role is reached from other machines, if it serves for the first time."""
        there = self._current(host, report.node, report.attempt)
        if there is None or there.served:
            return ()
        there.served = True
        return tuple(address for address in report.addresses if parse_address(address).scheme != "unix")

    def fails(self, host: str, report: HostFailing, now_s: float) -> None:
        """A role has said why it fails, and still runs."""
        there = self._current(host, report.node, report.attempt)
        if there is not None:
            there.failing = _end(host, report, 1, 0, now_s)

    def reads(self, reading: HostReading) -> None:
        """An agent has read what a process uses."""
        there = self.roles.get(reading.node)
        if there is not None:
            role = there.placed.role
            self.readings[reading.node] = ProcessReading(reading.cpu_share, reading.memory_bytes, role)

    def reaped(self, host: str, report: HostEnded, now_s: float) -> RoleEnd | None:
        """Returns the end of a role that an agent has reaped; None of a process that nobody counts on any more."""
        if self._running.get(host, {}).get(report.node) == report.attempt:
            del self._running[host][report.node]
        if self._current(host, report.node, report.attempt) is None:
            return None
        end = _end(host, report, report.status, report.incarnation, now_s)
        del self.roles[report.node]
        self.readings.pop(report.node, None)
        self.ends[report.node] = end
        return end

    def failing(self) -> list[RoleEnd]:
        """Returns roles that have said why they fail, and still run."""
        return [there.failing for there in self.roles.values() if there.failing is not None]

    def host_of(self, node: str) -> str:
        """Returns where a role is or ended; empty if at no agent."""
        there, end = self.roles.get(node), self.ends.get(node)
        return there.placed.host if there is not None else "" if end is None else end.host

    def places(self, node: str) -> Iterable[tuple[str, str]]:
        """Returns (node, host) of one role, or, without a name, of all that are or were there."""
        nodes = [node] if node else sorted({*self.roles, *self.ends})
        return [(one, host) for one in nodes if (host := self.host_of(one))]

    def chosen(self, controllers: bool) -> Mapping[str, There]:
        """Returns the controllers, or all others."""
        return {node: one for node, one in self.roles.items() if (one.placed.role == "controller") is controllers}

    def _current(self, host: str, node: str, attempt: int) -> There | None:
        there = self.roles.get(node)
        return there if there is not None and (there.placed.host, there.attempt) == (host, attempt) else None


def _end(host: str, report: HostEnded | HostFailing, status: int, incarnation: int, now_s: float) -> RoleEnd:
    """Returns an end as supervision takes it, at this machine's clock."""
    return RoleEnd(
        report.node,
        status,
        report.error,
        report.exit_code,
        report.retry_helps,
        now_s - report.ago_s,
        incarnation,
        host,
        report.ends_run,
    )
