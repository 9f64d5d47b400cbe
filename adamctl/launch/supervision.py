"""Decides what the end of a role means for a run: a pure state machine, events in, decisions out.

    role ended       before it served        a worker or data server, later  anything else, later
    ---------------  ----------------------  ------------------------------  --------------------
    run not over     the run fails *         restart it, else continue       the run fails **
                                             without it, else fail
    run over         as expected             as expected                     as expected

    *  except for a worker or data server while another one serves, unless others would fail as well or it is wrongly
       configured, and for a data server that had served before: the run continues while another one remains; and for a
       role that starts on another host and finds its name in use, as where it was nobody could end it: it is started
       once more.
    ** except for a parameter server whose part of the model is also on disk or on others: it is restarted, else the run
       fails.

A configuration or start-up failure is never retried, nor is one whose role reported that a retry does not help. The
first cause is kept: what ends because of it adds nothing. What is found first may itself be a consequence, since others
notice within milliseconds that a role is gone: `earlier_cause` looks for its cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError

RESTARTS_MAX = 3
"""How often one role is restarted in a run."""

_DISPENSABLE = {"worker": "worker", "data": "data server"}
"""Roles that hold nothing which others do not also have, with their names for people."""
_NOT_RETRIED = frozenset({0, 2})
"""Exit statuses of a role that was told to leave, and of a role with a wrong configuration."""


@dataclass(frozen=True)
class Restart:
    """Restart this role; `reason` says what happened to it."""

    node: str
    reason: str


@dataclass(frozen=True)
class Note:
    """Tell the user; do nothing else."""

    text: str


@dataclass(frozen=True)
class Fail:
    """End the run: `node` is the first cause, empty if no role is. `exit_code` is the command's, `reason` says why."""

    node: str
    reason: str
    exit_code: int


@dataclass(frozen=True)
class Stop:
    """Stop the run with a checkpoint: it cannot go on for long."""

    why: str


Decision: TypeAlias = Restart | Note | Fail


@dataclass(frozen=True)
class RoleEnd:
    """A reaped process; `status` as `subprocess` gives it: negative for a signal's number.

    `incarnation`: the process's incarnation as a member of its cluster; 0: it never was one.
    `host`: the host that it ran on, empty for this one.
    `error`, `exit_code`, `retry_helps` and `ends_run` are what the role itself reported when it failed; `failed_s` is
    the time of that report, or of finding its end, by this machine's monotonic clock.
    """

    node: str
    status: int
    error: str = ""
    exit_code: int = 0
    retry_helps: bool = True
    failed_s: float = 0.0
    incarnation: int = 0
    host: str = ""
    ends_run: bool = False

    @property
    def who(self) -> str:
        """Its name for people, with its host if that is another one."""
        return f"{self.node} on {self.host}" if self.host else self.node


class Supervision:
    """The roles of one run. Not thread-safe; used by the front's event loop only."""

    def __init__(self, roles: dict[str, str], restarts_max: int = RESTARTS_MAX, stored: Collection[str] = ()) -> None:
        """`roles` maps node -> role; nodes in `stored` can be restarted without losing what they held."""
        self._roles = dict(roles)
        self._stored = frozenset(stored)
        self._serving: set[str] = set()
        self._gone: set[str] = set()
        self._moved: set[str] = set()
        self._restarts = dict.fromkeys(roles, 0)
        self._restarts_max = restarts_max
        self.over = False
        self.failure: Fail | None = None

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Nodes that have started but do not serve yet."""
        return tuple(node for node in self._roles if node not in self._serving and node not in self._gone)

    def add(self, node: str, role: str) -> None:
        """Adds a role that has been started, for the first time or again on another host."""
        self._roles[node] = role
        self._restarts.setdefault(node, 0)
        if node in self._serving:
            self._moved.add(node)
        self._serving.discard(node)
        self._gone.discard(node)

    def leave(self, node: str) -> None:
        """Notes that the run goes on without a role."""
        self._serving.discard(node)
        self._gone.add(node)

    def serves(self, node: str) -> None:
        """Notes that a role reported that it serves."""
        self._serving.add(node)
        self._moved.discard(node)

    def end(self) -> None:
        """Notes that the run is over or being ended: from now on every role is expected to exit."""
        self.over = True

    def earlier_cause(self, node: str, ends: Iterable[RoleEnd]) -> Fail | None:
        """Returns the failure that caused `node` to fail, if it is among `ends`, none of which were requested.

        Only an indispensable role can be the cause; a role that failed by itself comes before one that lost its peers,
        and among equals the earliest one is the cause.
        """
        found = [end for end in ends if end.node == node or self._roles[end.node] not in _DISPENSABLE]
        if node not in (end.node for end in found):
            found.append(RoleEnd(node, 1, failed_s=inf))
        earliest = min(found, key=self._order)
        if earliest.node == node:
            return None
        return Fail(earliest.node, earliest.error or describe_status(earliest.status), self._exit_code(earliest))

    def may_be_a_consequence(self, node: str) -> bool:
        """Returns whether a role learns of others' failures and may fail because of them."""
        return self._roles[node] in ("coordinator", *_DISPENSABLE)

    def _order(self, end: RoleEnd) -> tuple[int, float]:
        if self.may_be_a_consequence(end.node):
            return (2 if self._roles[end.node] == "coordinator" else 3, end.failed_s)
        return (int(UnreachableError.exit_code in (end.status, end.exit_code)), end.failed_s)

    def ended(self, ends: Iterable[RoleEnd]) -> list[Decision]:
        """Returns what to do about processes reaped together.

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
            if end.node in self._moved and UnreachableError.exit_code in (end.status, end.exit_code):
                return self._once_more(end, reason)
            if role == "data" and self._restarts[end.node]:
                return self._leave_out(end, f"it could not be restarted: {reason}", end.exit_code)
            if self._another_serves(role) and not _fails_at_once(end):
                return self._leave_out(end, reason)
            return self._fail(end, reason, self._exit_code(end))
        if role == "worker" and _fails_everywhere(end):
            return self._fail(end, reason, end.exit_code)
        retried = end.status not in _NOT_RETRIED and end.retry_helps and self._restarts[end.node] < self._restarts_max
        if role not in _DISPENSABLE and not (role in self._stored and retried):
            return self._fail(end, reason, self._exit_code(end))
        self._serving.discard(end.node)
        if retried:
            self._restarts[end.node] += 1
            return Restart(end.node, reason)
        return self._leave_out(end, reason)

    def _another_serves(self, role: str) -> bool:
        return role in _DISPENSABLE and any(self._roles[node] == role for node in self._serving)

    def _once_more(self, end: RoleEnd, reason: str) -> Decision:
        """Has a moved role wait for its name again; a worker or data server that never gets it is left out."""
        if self._restarts[end.node] < self._restarts_max:
            self._restarts[end.node] += 1
            return Restart(end.node, reason)
        if self._roles[end.node] in _DISPENSABLE:
            return self._leave_out(end, reason, end.exit_code)
        return self._fail(end, reason, self._exit_code(end))

    def _leave_out(self, end: RoleEnd, reason: str, exit_code: int = 0) -> Decision:
        """Continues without a role while another one of its kind remains."""
        self._gone.add(end.node)
        own = self._roles[end.node]
        others = [node for node, role in self._roles.items() if role == own and node not in self._gone]
        if others:
            return Note(f"{end.who} ended: {reason}; continuing with {', '.join(others)}")
        if end.retry_helps:
            reason = f"{reason}; no {_DISPENSABLE[own]} is left"
        return self._fail(end, reason, exit_code or 1)

    def _exit_code(self, end: RoleEnd) -> int:
        """Returns the command's exit code if this end ends the run."""
        if end.node not in self._serving:
            return end.exit_code or max(end.status, 1)
        told = self._roles[end.node] == "coordinator" and end.status > 0  # its code says what kind of failure
        return end.status if told else 1

    def _fail(self, end: RoleEnd, reason: str, exit_code: int) -> Fail:
        self.over = True
        self.failure = Fail(end.node, reason, exit_code)
        return self.failure


def _fails_everywhere(end: RoleEnd) -> bool:
    """Whether other workers would fail as well: they read the same data, and run the same layers of the user's own."""
    return end.ends_run or end.exit_code == DamagedDataError.exit_code


def _fails_at_once(end: RoleEnd) -> bool:
    """Whether it is the experiment or the command line that is wrong, which is told at once."""
    return ConfigurationError.exit_code in (end.status, end.exit_code) or _fails_everywhere(end)


def describe_status(status: int) -> str:
    """Returns `exit status 3` or `killed by SIGKILL`."""
    if status >= 0:
        return f"exit status {status}"
    import signal

    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
