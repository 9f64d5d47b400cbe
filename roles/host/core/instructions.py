"""What an agent's core tells its shell to do. The shell carries out each kind in one place."""

from __future__ import annotations

from dataclasses import dataclass

from adamctl.wire.messages import HostCredentials


class Instruction:
    """Base of all instructions of an agent."""


@dataclass(frozen=True)
class StartProcess(Instruction):
    """Start a role process; then tell the core what becomes of it, under this `attempt`.

    `needs`: of each group of paths at least one must be there. `folder`: it keeps its data in a folder of its own.
    `credentials`: with these it speaks TLS.
    """

    role: str
    node: str
    attempt: int
    arguments: tuple[str, ...]
    folder: bool
    needs: tuple[tuple[str, ...], ...]
    credentials: HostCredentials | None = None


@dataclass(frozen=True)
class SignalProcess(Instruction):
    """Ask a role process to end: END_SIGNAL."""

    node: str


@dataclass(frozen=True)
class KillProcess(Instruction):
    """Kill a role process and all that it has started."""

    node: str


@dataclass(frozen=True)
class ReadTail(Instruction):
    """Read the last lines of a role's log and tell the core, for the order of this number."""

    order: int
    node: str
    lines: int


@dataclass(frozen=True)
class FindPorts(Instruction):
    """Find free TCP ports and tell the core, for the order of this number."""

    order: int
    count: int


@dataclass(frozen=True)
class Forget(Instruction):
    """Remove what the roles of this agent have kept on disk, but their logs."""


@dataclass(frozen=True)
class ForgetOthers(Instruction):
    """Remove what roles of other runs than this one have kept on disk."""

    run: str


@dataclass(frozen=True)
class Leave(Instruction):
    """End the agent. `failed`: it is an error, which `why` describes."""

    why: str
    failed: bool
