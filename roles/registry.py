"""Roles are plug-ins: each is described by a `Role`, named by an entry point of the group `adamctl.roles`.

A description is light: it imports nothing of the role until the role is started, so that `adamctl --help` stays fast.
Another package adds `adamctl myrole start` by declaring

    [project.entry-points."adamctl.roles"]
    myrole = "mypackage.adamctl_role:ROLE"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from adamctl.plugins import PluginGroup

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ROLES: Final = PluginGroup("adamctl.roles", "role", "a role")


@dataclass(frozen=True)
class Option:
    """One flag of `adamctl ROLE start`; `name` without dashes, `kind` str, int, float or bool (a switch).

    `environment` names a variable that gives its value where the flag is not given.
    """

    name: str
    help: str
    kind: type = str
    default: Any = None
    multiple: bool = False
    environment: str = ""


@dataclass(frozen=True)
class Role:
    """One role.

    Attributes:
        name: the subcommand.
        summary: one line for `adamctl --help`.
        run: `module:function` of a coroutine function that takes an `adamctl.roles.driver.RoleContext`, serves until
            `context.stopping` is set, and returns.
        options: flags of its own, besides those every role has.
        needs_controller: False only for the controller itself.
        default_port: TCP port if `--port` is not given; 0 is any free one.
        restarts: a process that is no longer a member of its cluster, because it was silent for too long, starts
            over as a new incarnation instead of ending.
        arenas: how many arenas of the C library its threads share, so that its memory stays level over weeks; None: as
            many as the library likes, for roles whose threads allocate all the time.
    """

    name: str
    summary: str
    run: str
    options: tuple[Option, ...] = ()
    needs_controller: bool = True
    default_port: int = 0
    restarts: bool = False
    arenas: int | None = None


def summaries(exclude: frozenset[str]) -> dict[str, str]:
    """Returns name -> summary of the roles that are not built in.

    Their descriptions are imported, which is cheap by contract; one that fails to import is listed with the reason, so
    that a broken package is visible and harms nothing else.
    """
    return {point.name: _summary(point) for point in ROLES.installed() if point.name not in exclude}


def _summary(point: EntryPoint) -> str:
    try:
        return str(point.load().summary)
    except Exception as error:
        return f"(cannot be loaded from {point.value}: {error})"
