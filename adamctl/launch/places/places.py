"""What an engine is asked for: hosts, each with one agent on it, and to say when one of them is lost or must be left.

An engine (Ray, Slurm, a shell) starts `adamctl host start` and nothing else. Each agent dials the front over our own
wire, so that roles are started, watched and ended in the same way wherever they run. What an engine says of a host only
leads to a replacement; that a parameter server is dead is decided by leases, never by an engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True)
class HostNeeds:
    """What each host must offer. `time_s` is for how long, 0 if the engine has no limit; so is `memory_bytes`.

    `cores` 0 is all cores of a host, however many these are.
    """

    cores: int
    memory_bytes: int = 0
    time_s: float = 0.0


@dataclass(frozen=True)
class AgentCommand:
    """How an agent is started: the engine appends `--name HOST`, a name that no other host of this run has or had.

    `environment` holds what nobody but the agent may see, such as the token. Arguments can be seen by all users.
    """

    line: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Lost:
    """The engine believes that a host is gone."""

    host: str
    why: str


@dataclass(frozen=True)
class Draining:
    """The engine will take a host away in `deadline_s` seconds."""

    host: str
    deadline_s: float
    why: str


Notice: TypeAlias = Lost | Draining


class Places(Protocol):
    """An engine. Used by one event loop; every call is bounded in time."""

    async def begin(self, hosts: int, each: HostNeeds, agent: AgentCommand) -> None:
        """Asks for hosts and returns when the engine has accepted that. Agents dial the front as they start.

        Raises:
            UnreachableError: there is no such engine, or it does not have so many hosts; the message says how many.
            ConfigurationError: the engine refuses what is asked for, or cannot be used from here.
        """
        ...

    async def one_more(self, why: str) -> bool:
        """Asks for one more host; returns whether the engine may still give one."""
        ...

    def notices(self) -> AsyncIterator[Notice]:
        """Yields what the engine says of hosts, until `end`."""
        ...

    async def end(self) -> None:
        """Gives every host back. Agents that still run end, and their roles with them. May be called again."""
        ...
