"""What the end of a role means for a run: a pure state machine, an event in, decisions out.

    role ended       before it served        a worker or data server, later  anything else, later
    ---------------  ----------------------  ------------------------------  --------------------
    run not over     the run fails *         start it again, else go on      the run fails **
                                             without it, else fail
    run over         as it should be         as it should be                 as it should be

    *  but for a data server that had served before: the run goes on while another one remains.
    ** but for a parameter server whose part of the model is on disk or held by others, too: it is started again, else
       the run fails.

A configuration or start-up failure is never retried, nor is one of which the role said that to try again does not help.
The first cause is kept: what ends because of it says nothing new. What is found first may be such a consequence itself,
for others notice within milliseconds that a role is gone: `earlier_cause` looks for what it followed from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from adamctl.errors import DamagedDataError, UnreachableError

RESTARTS_MAX = 3
"""How often one role is started again in a run."""

_DISPENSABLE = {"worker": "worker", "data": "data server"}
"""Roles that hold nothing which the others do not have, too, in words."""
_NOT_RETRIED = frozenset({0, 2})
"""Exit statuses of a role that was told to leave, and of one whose configuration is wrong."""


@dataclass(frozen=True)
class Restart:
    """Start this role again; `reason` says what happened to it."""

    node: str
    reason: str


@dataclass(frozen=True)
class Note:
    """Tell the user; nothing else is to be done."""

    text: str


@dataclass(frozen=True)
class Fail:
    """End the run: `node` is the first cause. `exit_code` is the command's, `reason` says what happened to it."""

    node: str
    reason: str
    exit_code: int


Decision: TypeAlias = Restart | Note | Fail


@dataclass(frozen=True)
class RoleEnd:
    """A process that has been reaped; `status` as `subprocess` gives it: negative for a signal's number.

    `incarnation`: as which the process was a member of its cluster, 0: it never was.
    `error`, `exit_code` and `retry_helps` are what the role itself reported when it failed; `failed_s` is when it did
    so, or when its end was found, by the monotonic clock of this machine.
    """

    node: str
    status: int
    error: str = ""
    exit_code: int = 0
    retry_helps: bool = True
    failed_s: float = 0.0
    incarnation: int = 0


class Supervision:
    """The roles of one run. Not thread-safe; used by the front's event loop only."""

    def __init__(self, roles: dict[str, str], restarts_max: int = RESTARTS_MAX, stored: Collection[str] = ()) -> None:
        """`roles` maps node -> role; those in `stored` can be started again without what they held being lost."""
        self._roles = dict(roles)
        self._stored = frozenset(stored)
        self._serving: set[str] = set()
        self._gone: set[str] = set()
        self._restarts = dict.fromkeys(roles, 0)
        self._restarts_max = restarts_max
        self.over = False
        self.failure: Fail | None = None

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Nodes that have been started and do not serve yet."""
        return tuple(node for node in self._roles if node not in self._serving and node not in self._gone)

    def serves(self, node: str) -> None:
        """A role has reported that it serves."""
        self._serving.add(node)

    def end(self) -> None:
        """The run is over or being ended: from now on every role is expected to go."""
        self.over = True

    def earlier_cause(self, node: str, ends: Iterable[RoleEnd]) -> Fail | None:
        """Returns the failure that `node` failed because of, if it is among `ends`, all of which nobody had asked for.

        Only a role that the run cannot do without is a cause, and one that lost its peers is less of a cause than one
        that failed by itself; among equals, the earliest is.
        """
        found = [end for end in ends if end.node == node or self._roles[end.node] not in _DISPENSABLE]
        if node not in (end.node for end in found):
            found.append(RoleEnd(node, 1, failed_s=inf))
        earliest = min(found, key=self._order)
        if earliest.node == node:
            return None
        return Fail(earliest.node, earliest.error or describe_status(earliest.status), self._exit_code(earliest))

    def may_be_a_consequence(self, node: str) -> bool:
        """Says whether a role hears of others' failures, and may fail because of them."""
        return self._roles[node] in ("coordinator", *_DISPENSABLE)

    def _order(self, end: RoleEnd) -> tuple[int, float]:
        if self.may_be_a_consequence(end.node):
            return (2 if self._roles[end.node] == "coordinator" else 3, end.failed_s)
        return (int(UnreachableError.exit_code in (end.status, end.exit_code)), end.failed_s)

    def ended(self, ends: Iterable[RoleEnd]) -> list[Decision]:
        """Returns what to do about processes that were reaped together.

        Workers are judged last: when a server and a worker are found dead at once, the server is the cause.
        """
        decisions: list[Decision] = []
        for end in sorted(ends, key=lambda end: self._roles[end.node] == "worker"):
            if not self.over:
                decisions.append(self._judge(end))
        return decisions

    def _judge(self, end: RoleEnd) -> Decision:
        reason = end.error or describe_status(end.status)
        role = self._roles[end.node]
        if end.node not in self._serving:
            if role == "data" and self._restarts[end.node]:
                return self._leave_out(end, f"it could not be started again: {reason}", end.exit_code)
            return self._fail(end, reason, self._exit_code(end))
        if role == "worker" and end.exit_code == DamagedDataError.exit_code:  # others would read the same
            return self._fail(end, reason, end.exit_code)
        retried = end.status not in _NOT_RETRIED and end.retry_helps and self._restarts[end.node] < self._restarts_max
        if role not in _DISPENSABLE and not (role in self._stored and retried):
            return self._fail(end, reason, self._exit_code(end))
        self._serving.discard(end.node)
        if retried:
            self._restarts[end.node] += 1
            return Restart(end.node, reason)
        return self._leave_out(end, reason)

    def _leave_out(self, end: RoleEnd, reason: str, exit_code: int = 0) -> Decision:
        """Goes on without a role while another of its kind remains."""
        self._gone.add(end.node)
        own = self._roles[end.node]
        others = [node for node, role in self._roles.items() if role == own and node not in self._gone]
        if others:
            return Note(f"{end.node} ended: {reason}; going on with {', '.join(others)}")
        if end.retry_helps:
            reason = f"{reason}; no {_DISPENSABLE[own]} is left"
        return self._fail(end, reason, exit_code or 1)

    def _exit_code(self, end: RoleEnd) -> int:
        """Returns the command's exit code if this end is the run's."""
        if end.node not in self._serving:
            return end.exit_code or max(end.status, 1)
        told = self._roles[end.node] == "coordinator" and end.status > 0  # its code says what kind of failure
        return end.status if told else 1

    def _fail(self, end: RoleEnd, reason: str, exit_code: int) -> Fail:
        self.over = True
        self.failure = Fail(end.node, reason, exit_code)
        return self.failure


def describe_status(status: int) -> str:
    """Returns `exit status 3` or `killed by SIGKILL`."""
    if status >= 0:
        return f"exit status {status}"
    import signal

    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
