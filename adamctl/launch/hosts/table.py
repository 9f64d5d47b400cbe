"""What a front knows of its agents: who is there, what each was ordered, what each has confirmed and reported. Pure.

A broken connection, or the word of an engine, makes a host `lost` for this table: what ran there is started elsewhere.
It never says that a process is dead. Only an agent that reaped it says so, and leases decide for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from msgspec.structs import replace

from adamctl.config.names import NAME_EXPECTED, is_name
from adamctl.errors import RemoteError
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    HostJoinReply,
    HostJoinRequest,
    HostReportRequest,
    Order,
    Report,
)

LOST_AFTER_S = 5.0
"""Seconds without a word after which a host counts as lost; an agent that has no news asks for orders every 2 s."""
KEEP_S = 60.0
"""Seconds for which agents keep their roles without the front."""
READINGS_EVERY_S = 5.0
HOSTS_MAX = 10_000
ORDERS_MAX = 256
"""Orders sent at once; the rest follows when these are carried out."""
CORES_MAX = 65_536


@dataclass(frozen=True)
class Arrived:
    """A host is there: for the first time, under a process of its own, or again after it was lost."""

    host: str
    again: bool


@dataclass(frozen=True)
class Lost:
    """A host is lost: silent for too long, taken away, or its agent has ended."""

    host: str
    why: str


@dataclass(frozen=True)
class Reported:
    """An agent's report, once."""

    host: str
    report: Report


Event: TypeAlias = Arrived | Lost | Reported


@dataclass
class Host:
    """One agent's process, under its name."""

    name: str
    process: int
    machine: str
    cores: int
    memory_bytes: int
    address: str
    heard_s: float
    connections: set[int] = field(default_factory=set)
    lost: bool = False
    ordered: int = 0
    confirmed: int = 0
    orders: list[Order] = field(default_factory=list)
    reported: int = 0


class HostTable:
    """The agents of one run. Every call takes the clock of the front's loop."""

    def __init__(self, run: str, version: str, process: int = 0) -> None:
        """`version`: of adamctl, the same for all. `process`: a random number, of this front alone."""
        self._run, self._version, self._process = run, version, process
        self._events: list[Event] = []
        self._looked_s = inf
        self.hosts: dict[str, Host] = {}

    def take_events(self) -> list[Event]:
        """Returns what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def living(self) -> list[Host]:
        """Returns the hosts that are not lost."""
        return [host for host in self.hosts.values() if not host.lost]

    # --- what agents say --------------------------------------------------------------------------------------------

    def join(self, request: HostJoinRequest, connection: int, now_s: float) -> HostJoinReply:
        """Takes an agent in, or back.

        Raises:
            RemoteError: BAD_CONFIGURATION, it cannot be one of this run's; NOT_READY, its name is still in use.
        """
        if request.version != self._version:
            text = f"the front has adamctl {self._version}, this host {request.version[:64]!a}; install the same on all"
            raise RemoteError(ErrorCode.BAD_CONFIGURATION, text)
        if not is_name(request.node) or not 1 <= request.cores <= CORES_MAX:
            text = f"expected a name of {NAME_EXPECTED} and 1 to {CORES_MAX} cores"
            raise RemoteError(ErrorCode.BAD_CONFIGURATION, text)
        reply = HostJoinReply(self._run, READINGS_EVERY_S, KEEP_S, self._process)
        if request.run not in ("", self._run):
            return reply  # of a front that was here before: it sees that by our run, and ends
        known = self.hosts.get(request.node)
        if known is not None and known.process == request.process:
            self._heard(known, connection, now_s)
            return reply
        if request.run and known is None:
            return replace(reply, run="")  # of a front that was here before, for a run of our run's name
        if request.run:
            text = f"another agent has the name {request.node} now; its roles run elsewhere"
            raise RemoteError(ErrorCode.BAD_CONFIGURATION, text)
        if known is not None:
            self._take_name(known, request)
        elif len(self.hosts) >= HOSTS_MAX:
            raise RemoteError(ErrorCode.OVER_QUOTA, f"this run already has {HOSTS_MAX} hosts")
        self.hosts[request.node] = Host(
            request.node, request.process, request.machine, request.cores, request.memory_bytes, request.address,
            now_s, {connection},
        )  # fmt: skip
        self._events.append(Arrived(request.node, again=False))
        return reply

    def _take_name(self, known: Host, request: HostJoinRequest) -> None:
        """Raises RemoteError: the process that has the name may still be there."""
        if known.lost:
            return
        if known.machine != request.machine and known.connections:
            text = f"host {known.name} is there already, on another machine; start this agent with another --name"
            raise RemoteError(ErrorCode.BAD_CONFIGURATION, text)
        text = f"the agent that had the name {known.name} may still be there; this is known within {LOST_AFTER_S:g} s"
        raise RemoteError(ErrorCode.NOT_READY, text)

    def poll(self, node: str, process: int, after: int, connection: int, now_s: float) -> tuple[Order, ...]:
        """Notes which orders are carried out, and returns those that are not.

        Raises:
            RemoteError: STALE_INCARNATION, it must join first.
        """
        host = self._of(node, process)
        self._heard(host, connection, now_s)
        host.confirmed = max(host.confirmed, min(after, host.ordered))
        host.orders = [order for order in host.orders if order.number > host.confirmed]
        return self.pending(node, process)

    def pending(self, node: str, process: int) -> tuple[Order, ...]:
        """Returns the orders of an agent's process that are not carried out, as far as it knows; no sign of life."""
        host = self.hosts.get(node)
        return () if host is None or host.process != process else tuple(host.orders[:ORDERS_MAX])

    def report(self, request: HostReportRequest, reports: Sequence[Report], connection: int, now_s: float) -> None:
        """Takes reports that are new; a batch after a gap is refused, as it would be lost for ever.

        Raises:
            RemoteError: STALE_INCARNATION, it must join first; BAD_MESSAGE, reports before these are missing.
        """
        host = self._of(request.node, request.process)
        self._heard(host, connection, now_s)
        if request.first > host.reported + 1:
            text = f"expected report {host.reported + 1} of {host.name}, found {request.first}"
            raise RemoteError(ErrorCode.BAD_MESSAGE, text)
        for number, report in enumerate(reports, request.first):
            if number > host.reported:
                host.reported = number
                self._events.append(Reported(host.name, report))

    def disconnected(self, connection: int) -> None:
        """A connection is gone. That proves nothing: the agent redials, or stays silent."""
        for host in self.hosts.values():
            host.connections.discard(connection)

    def _of(self, node: str, process: int) -> Host:
        host = self.hosts.get(node)
        if host is None or host.process != process:
            raise RemoteError(ErrorCode.STALE_INCARNATION, f"no agent {node} with this process is known; join first")
        return host

    def _heard(self, host: Host, connection: int, now_s: float) -> None:
        host.heard_s = now_s
        host.connections.add(connection)
        if host.lost:
            host.lost = False
            self._events.append(Arrived(host.name, again=True))

    # --- what the front decides -------------------------------------------------------------------------------------

    def order(self, name: str, make: Callable[[int], Order]) -> int:
        """Adds an order for a host and returns its number, of which `make` makes it; 0 if there is no such host."""
        host = self.hosts.get(name)
        if host is None:
            return 0
        host.ordered += 1
        host.orders.append(make(host.ordered))
        return host.ordered

    def lose(self, name: str, why: str) -> None:
        """Counts a host as lost, once; one that is heard from again is there again."""
        host = self.hosts.get(name)
        if host is not None and not host.lost:
            host.lost = True
            self._events.append(Lost(name, why))

    def tick(self, now_s: float, every_s: float = inf) -> None:
        """Time has passed: hosts that were silent for too long are lost.

        `every_s`: how often the front looks. When it stood still for longer, what agents said waits unread: that time
        is no silence of theirs.
        """
        stood_still_s, self._looked_s = max(now_s - self._looked_s - every_s, 0.0), now_s
        for host in self.living():
            host.heard_s = min(host.heard_s + stood_still_s, now_s)
            if now_s - host.heard_s >= LOST_AFTER_S:
                self.lose(host.name, f"nothing was heard from it for {LOST_AFTER_S:g} s")

    def next_s(self) -> float:
        """Returns when `tick` may have something to do; infinity if never."""
        return min((host.heard_s + LOST_AFTER_S for host in self.living()), default=inf)
