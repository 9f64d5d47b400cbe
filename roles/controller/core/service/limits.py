"""Messages of members with other limits are ignored: the same values would lead them to another state. Pure."""

from __future__ import annotations

from collections.abc import Collection

from adamctl.roles.controller.core.service.commands import NAMES_BYTES_MAX
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.state import STATE_BYTES_MAX

REMEMBERED_MAX = 16


def limits_of(config: ControllerConfig) -> str:
    """Returns what must be equal on all members: limits of the state, and the times promised to nodes."""
    named = {
        "lease_s": f"{config.granted_s:g}",
        "lost_after_s": f"{config.lost_after_s:g}",
        "sessions": config.sessions_max,
        "state_bytes": STATE_BYTES_MAX,
        "names_bytes": NAMES_BYTES_MAX,
    }
    return " ".join(f"{name}={value}" for name, value in named.items())


class Limits:
    """This member's limits, and the members whose limits differ.

    Attributes:
        own: every message to another member carries them.
        differing: address -> limits of the members that are ignored.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self.own = limits_of(config)
        self.differing: dict[str, str] = {}

    def accepts(self, address: str, limits: str) -> str | None:
        """Returns None if messages from there count, else what to log about it; "" if it was logged already."""
        if limits in ("", self.own):
            if self.differing:
                self.differing.pop(address, None)
            return None
        known = self.differing.pop(address, None)
        self.differing[address] = limits
        while len(self.differing) > REMEMBERED_MAX:
            del self.differing[next(iter(self.differing))]
        if known == limits:
            return ""
        return f"the controller at {address} is ignored: {self._difference(limits)}"

    def outvoted(self, others: Collection[str]) -> str:
        """Returns why this member cannot take part, if most of a cluster have other limits; "" if it can.

        Args:
            others: addresses of the other members.
        """
        found = [self.differing[address] for address in others if address in self.differing]
        if 2 * len(found) <= len(others) + 1:
            return ""
        return (
            f"{len(found)} of the other {len(others)} controllers have different limits: {self._difference(found[0])}; "
            "stop all of them before changing limits"
        )

    def _difference(self, limits: str) -> str:
        ours, theirs = self.own.split(), limits.split()
        expected = " ".join(one for one in ours if one not in theirs)
        found = " ".join(one for one in theirs if one not in ours)
        return (
            f"expected {expected or 'nothing more'}, found {found or 'less'}; start all controllers of a cluster with "
            "the same --lease and --lost-after, and the same version"
        )
