"""Where a process finds the controllers: at the addresses it was given, and at those that controllers have named since.

A lost controller is replaced by one elsewhere. A process that outlives all the controllers which it was given finds the
present ones only because each answered beacon has named them. Pure, but for the environment of a process that starts
over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from adamctl.errors import ConfigurationError
from adamctl.net.address import parse_address

MEMBERS_MAX = 5
SEEN_VARIABLE = "ADAMCTL_CONTROLLERS_SEEN"
"""What a process that starts over knows of the controllers beyond its own flags; for its own use."""


class KnownAddresses:
    """Shared by the clients of one process, also of different threads: the list is replaced, never changed.

    Attributes:
        given: what the process was started with.
        now: in the order in which they are tried.
        answered: a controller has answered this process, so one that does not let it in is the one at fault.
    """

    def __init__(self, given: Sequence[str]) -> None:
        self.given = tuple(given)
        self.now = self.given
        self.answered = False
        self._named = frozenset(self.given)
        self._members: tuple[str, ...] = ()

    def learn(self, members: Sequence[str]) -> None:
        """Takes the addresses at which the controllers reach each other now.

        They come first if any was known: then they are of the same network as those given. Else this process may reach
        controllers only by the addresses it was given, as through a forwarded port, and these stay first. Addresses
        that are malformed, and lists that are too long, are not believed.
        """
        members = tuple(members)
        if members == self._members or not 0 < len(members) <= MEMBERS_MAX or not all(map(_is_address, members)):
            return
        self._members = members
        if self._named.isdisjoint(members):
            self.now = (*self.given, *members)
        else:
            self._named = frozenset((*self.given, *members))
            self.now = (*members, *(address for address in self.given if address not in members))

    def hand_on(self) -> None:
        """Leaves what is known beyond the flags to a process that takes this one's place (`execv`)."""
        if self.now != self.given and self._named.issuperset(self._members):
            os.environ[SEEN_VARIABLE] = ",".join(self.now)

    def take_over(self) -> None:
        """Takes what this process knew before it started over."""
        seen = tuple(os.environ.pop(SEEN_VARIABLE, "").split(","))
        if all(map(_is_address, seen)):
            self.now = (*seen, *(address for address in self.given if address not in seen))
            self._named = frozenset(self.now)


def given(addresses: Sequence[str] | KnownAddresses) -> tuple[str, ...]:
    """Returns the addresses that a process was started with."""
    return addresses.given if isinstance(addresses, KnownAddresses) else tuple(addresses)


def _is_address(text: str) -> bool:
    try:
        return bool(text) and str(parse_address(text)) == text
    except ConfigurationError:
        return False
