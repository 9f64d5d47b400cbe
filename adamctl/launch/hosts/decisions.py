"""What the keeper decides about hosts and roles, for the front to carry out in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from adamctl.launch.hosts.placement import Placed


@dataclass(frozen=True)
class Put:
    """Start this role on this host."""

    placed: Placed


@dataclass(frozen=True)
class End:
    """End this role: it is not needed there any more."""

    node: str
    why: str


@dataclass(frozen=True)
class Drain:
    """Have everything moved off this parameter server; `drained` then says that it holds nothing."""

    node: str


@dataclass(frozen=True)
class Release:
    """End the agent of this host."""

    host: str
    why: str


@dataclass(frozen=True)
class OneMore:
    """Ask the engine for one more host."""

    why: str


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class StopRun:
    """Have the run write its last checkpoint and stop, while the hosts that it has are still there."""

    why: str


class OfControllers:
    """Base of what is decided about the controllers at hosts."""


@dataclass(frozen=True)
class Substitute(OfControllers):
    """Start this controller, which waits beside the `living` ones until it gets the place of a lost one."""

    placed: Placed
    living: tuple[str, ...]


@dataclass(frozen=True)
class Seat(OfControllers):
    """Have the cluster put this waiting controller in the place of a lost one, as soon as it may."""

    node: str


@dataclass(frozen=True)
class Seated(OfControllers):
    """These are the controllers of the run from now on."""

    members: tuple[str, ...]


@dataclass(frozen=True)
class BeginAnew:
    """End all roles, here and at agents, and forget them: nothing has been trained, and all starts once more."""

    why: str


@dataclass(frozen=True)
class GiveUp:
    """The run fails; `host` is the first cause."""

    host: str
    reason: str


Decision: TypeAlias = Put | End | Drain | Release | OneMore | Say | StopRun | OfControllers | BeginAnew | GiveUp
