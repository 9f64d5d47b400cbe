"""What an agent decides: which role processes run, what is reported, when it gives the front up. Pure.

Orders and reports are numbered. An order is carried out once, however often it comes; a report is sent until the front
has confirmed it, in order. Without the front, roles go on for `keep_s`; then they are ended, so that machines which
nobody can reach any more do not work on for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from adamctl.roles.host.core.arguments import Roots, credentials_refusal, refusal
from adamctl.roles.host.core.instructions import (
    FindPorts,
    Forget,
    ForgetOthers,
    Instruction,
    KillProcess,
    Leave,
    ReadTail,
    SignalProcess,
    StartProcess,
)
from adamctl.wire.messages import (
    HostDraining,
    HostEnded,
    HostFailing,
    HostFreePorts,
    HostJoinReply,
    HostLines,
    HostPorts,
    HostReading,
    HostServing,
    HostStart,
    HostStop,
    HostTail,
    Order,
    Report,
)

ROLES_MAX = 256
LINES_MAX = 1000
PORTS_MAX = 64
REPORTS_MAX = 4096
"""Reports that are not confirmed. More can only be made by a front that orders and never confirms."""
GRACE_S_MAX = 60.0
LEAVE_GRACE_S = 5.0
"""Seconds that roles may take to end when the agent ends, or gives the front up; then they are killed."""
UNUSABLE = 2
"""The exit status of a role that is not started: as one with a wrong configuration."""


@dataclass
class _Role:
    """A process that runs. `kill_s`: when it is killed, by the core's clock; `then`: what starts when it has ended."""

    role: str
    attempt: int
    kill_s: float = inf
    asked: bool = False
    then: HostStart | None = None


class HostCore:
    """One agent. Every call takes the clock and returns what to do."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self.run = ""
        self.keep_s = inf
        self.readings_every_s = inf
        self.last_order = 0
        """The number of the last order that was carried out."""
        self.roles: dict[str, _Role] = {}
        self._reports: deque[Report] = deque()
        self._first = 1
        self._away_since_s: float | None = None
        self._leaving: Leave | None = None
        self._forgets = False

    # --- the front --------------------------------------------------------------------------------------------------

    def joined(self, reply: HostJoinReply, now_s: float) -> list[Instruction]:
        """The front has taken us in, or back. Another run's front means that ours is over: its roles are ended.

        What an agent of our name has kept for this very run before is still there: it may be the only copy.
        """
        if self.run and self.run != reply.run:
            return self.leave("the front now runs another run", True, now_s)
        first, self.run = not self.run, reply.run
        self.keep_s, self.readings_every_s = max(reply.keep_s, 0.0), max(reply.readings_every_s, 0.1)
        self._away_since_s = None
        return [ForgetOthers(f"{reply.run} {reply.process}")] if first else []

    def lost_front(self, now_s: float) -> None:
        """The connection is broken; the first such call counts until `joined`."""
        if self._away_since_s is None:
            self._away_since_s = now_s

    def ordered(self, orders: Sequence[Order], now_s: float) -> list[Instruction]:
        """Carries out the orders that follow on the last one; the rest came before, or comes again after a gap."""
        found: list[Instruction] = []
        for order in sorted(orders, key=lambda order: order.number):
            if order.number == self.last_order + 1:
                self.last_order = order.number
                found += self._carry_out(order, now_s)
        return found

    def _carry_out(self, order: Order, now_s: float) -> list[Instruction]:
        match order:
            case HostStart():
                return self._start(order)
            case HostStop(node="", why=why, grace_s=grace_s):
                self._forgets = order.forget
                return self._leave(why, False, grace_s, now_s)
            case HostStop(node=node, attempt=attempt, grace_s=grace_s):
                role = self.roles.get(node)
                if role is not None and role.then is not None and role.then.number == attempt:
                    self._report(HostEnded(node, attempt, 0, error=order.why))
                    role.then = None
                    return []
                return [] if role is None or role.attempt != attempt else self._end(node, role, grace_s, now_s)
            case HostTail(number=number, node=node, lines=lines):
                return [ReadTail(number, node, min(max(lines, 1), LINES_MAX))]
            case HostPorts(number=number, count=count):
                return [FindPorts(number, min(max(count, 1), PORTS_MAX))]

    def _start(self, order: HostStart) -> list[Instruction]:
        why = refusal(order.role, order.node, order.arguments, order.needs, order.folder, self._roots)
        why = why or credentials_refusal(order.credentials)
        before = self.roles.get(order.node)
        if not why and before is not None and before.asked and before.then is None:
            before.then = order
            return []
        if not why and before is not None:
            why = f"{order.node} runs already"
        elif not why and len(self.roles) >= ROLES_MAX:
            why = f"this agent already runs {ROLES_MAX} roles"
        elif self._leaving is not None:
            why = f"this agent is ending: {self._leaving.why}"
        if why:
            ended = HostEnded(order.node, order.number, UNUSABLE, 0, why, UNUSABLE, retry_helps=False)
            self._report(ended)
            return []
        self.roles[order.node] = _Role(order.role, order.number)
        return [
            StartProcess(
                order.role,
                order.node,
                order.number,
                order.arguments,
                order.folder,
                order.needs,
                order.credentials,
            )
        ]

    # --- reports ----------------------------------------------------------------------------------------------------

    def unconfirmed(self) -> tuple[int, tuple[Report, ...]]:
        """Returns the number of the first report that the front has not confirmed, and all from it on."""
        return self._first, tuple(self._reports)

    def confirmed(self, up_to: int) -> None:
        """The front has all reports up to this number."""
        while self._reports and self._first <= up_to:
            self._reports.popleft()
            self._first += 1

    def serving(self, node: str, attempt: int, addresses: Sequence[str], incarnation: int) -> None:
        """A role has said that it serves."""
        self._report(HostServing(node, attempt, tuple(addresses), incarnation))

    def failing(self, report: HostFailing) -> None:
        """A role has said why it fails, and still runs."""
        self._report(report)

    def ended(self, report: HostEnded, now_s: float) -> list[Instruction]:
        """A role process was reaped, or could not be started."""
        role = self.roles.pop(report.node, None)
        self._report(report)
        then = [] if role is None or role.then is None else self._start(role.then)
        return [*then, *self._left(now_s)]

    def tailed(self, order: int, path: str, lines: Iterable[str]) -> None:
        """The end of a log was read."""
        self._report(HostLines(order, path, tuple(lines)))

    def found_ports(self, order: int, ports: Iterable[int]) -> None:
        """Free ports were found."""
        self._report(HostFreePorts(order, tuple(ports)))

    def read(self, readings: Iterable[HostReading]) -> None:
        """Readings of processes; they are worth nothing later, so a front that is away or behind gets none."""
        waiting = any(isinstance(one, HostReading) for one in self._reports)
        if self._away_since_s is None and self.run and not waiting:
            for reading in readings:
                self._report(reading)

    def drain(self, deadline_s: float, why: str) -> None:
        """This machine will be taken away."""
        self._report(HostDraining(deadline_s, why))

    def _report(self, report: Report) -> None:
        if len(self._reports) < REPORTS_MAX:
            self._reports.append(report)

    # --- the end ----------------------------------------------------------------------------------------------------

    def leave(self, why: str, failed: bool, now_s: float) -> list[Instruction]:
        """Ends all roles and then the agent; nobody asked the front, so it is told before any role has ended."""
        if self.run and self._leaving is None:
            self.drain(0.0, f"its agent ends: {why}")
        return self._leave(why, failed, LEAVE_GRACE_S, now_s)

    def tick(self, now_s: float) -> list[Instruction]:
        """Time has passed: kills what did not end in time, and gives up a front that stays away."""
        found: list[Instruction] = []
        for node, role in self.roles.items():
            if now_s >= role.kill_s:
                role.kill_s = inf
                found.append(KillProcess(node))
        if self._away_since_s is not None and self.run and now_s - self._away_since_s >= self.keep_s:
            why = f"the front has not been there for {self.keep_s:g} s"
            found += self.leave(why, True, now_s)
        return found

    def _leave(self, why: str, failed: bool, grace_s: float, now_s: float) -> list[Instruction]:
        if self._leaving is not None:
            return []
        self._leaving = Leave(why, failed)
        found: list[Instruction] = []
        for node, role in self.roles.items():
            found += self._end(node, role, grace_s, now_s)
        return [*found, *self._left(now_s)]

    def _end(self, node: str, role: _Role, grace_s: float, now_s: float) -> list[Instruction]:
        """Asks a process to end, once; a later order may only shorten its time."""
        role.kill_s = min(role.kill_s, now_s + min(max(grace_s, 0.0), GRACE_S_MAX))
        if role.asked:
            return []
        role.asked = True
        return [SignalProcess(node)]

    def _left(self, now_s: float) -> list[Instruction]:
        if self._leaving is None or self.roles:
            return []
        return [*([Forget()] if self._forgets else []), self._leaving]
