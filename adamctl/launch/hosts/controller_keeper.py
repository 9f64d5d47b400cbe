"""Decides how the controllers of a run are replaced: a part of the keeper, and pure as that is.

Only a controller whose host is given up is replaced, one at a time, and only by the cluster's own decision, which needs
a majority (`adamctl.launch.hosts.seats`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from adamctl.launch.hosts.decisions import Decision, End, Say, Seated, Substitute
from adamctl.launch.hosts.placement import FRONT, KnownHost, Placed
from adamctl.launch.hosts.seats import Seats

FAILED_MAX = 3
"""Controllers that may end before they get a seat, until another host comes or one gets it."""


@dataclass
class ControllerKeeper:
    """The controllers at hosts. Shares what the keeper knows: where roles are, the hosts, what is told to end."""

    placed: dict[str, Placed]
    hosts: dict[str, KnownHost]
    ending: dict[str, Placed | None]
    seats: Seats = field(default_factory=Seats)
    _failed: int = 0

    def begin(self, placed: Iterable[Placed]) -> list[Placed]:
        """Returns the roles of a run that begins, its controllers at hosts with names that none has had."""
        found = [replace(one, node=self.seats.new_name()) if _at_host(one) else one for one in placed]
        self.seats.begin({one.node: one.host for one in found if _at_host(one)})
        return found

    # --- hosts come and go --------------------------------------------------------------------------------------------

    def host_back(self, host: str, again: bool) -> None:
        """A host is there; `again`: with the agent that was lost, so that its controller may still run.

        An agent's new process starts no former controller again, so one that was there is lost for good.
        """
        self.seats.host_back(host, again)
        self._failed = 0
        if not again:
            for node in [node for node, one in self.placed.items() if _at_host(one) and one.host == host]:
                del self.placed[node]

    def host_lost(self, host: str) -> bool:
        """Gives up a controller that waits on a lost host; returns whether one did."""
        waited = self.seats.host_lost(host)
        self.placed.pop(waited, None)
        return bool(waited)

    def can_do_without(self, host: str, formed: bool) -> bool:
        """Whether a host can be let go: the cluster has formed, and goes on without what is there."""
        there = any(_at_host(one) and one.host == host for one in self.placed.values())
        return not there or (formed and self.seats.would_keep_majority(host))

    def let_go(self, node: str) -> bool:
        """Whether this is a controller that has ended with its host."""
        placed = self.placed.get(node)
        return placed is not None and _at_host(placed) and self.hosts[placed.host].lost

    # --- replacing ----------------------------------------------------------------------------------------------------

    def substitute(self, held: Collection[str]) -> list[Decision]:
        """Starts a controller for the place of a lost one, on a host without one, unless one waits for it already.

        Nothing is replaced yet that was on a `held` host, which is waited for.
        """
        seats, vacant = self.seats, self.seats.vacant(held)
        if not vacant or (seats.waiting and seats.place_of == vacant) or self._failed >= FAILED_MAX:
            return []
        found: list[Decision] = []
        if seats.waiting:  # it was started beside others than those that live now, and may not be heard by a leader
            found = [End(seats.waiting, f"another one is started for the place of {vacant}")]
            self.ending[seats.give_up()] = None
        home = self._home()
        if home is None:
            return found
        node = seats.start(home, vacant)
        self.placed[node] = Placed("controller", node, home)
        said = f"{node} starts on {home}, to take the place of {vacant} as a controller"
        return [*found, Say(said), Substitute(self.placed[node], seats.living)]

    def _home(self) -> str | None:
        """Returns the host with the fewest roles of those without a controller."""
        roles = Counter(one.host for one in self.placed.values())
        busy = self.seats.busy()
        free = [name for name, host in self.hosts.items() if host.usable and name not in busy]
        return min(free, key=lambda name: roles[name], default=None)

    def seated(self, members: Collection[str]) -> list[Decision]:
        """The cluster has said who its members are; empty if that is no news."""
        waiting = self.seats.waiting
        former = self.seats.seated(members)
        if not former:
            return []
        found: list[Decision] = [Seated(self.seats.members)]
        if waiting and not self.seats.waiting:
            self._failed = 0
            host, names = self.placed[waiting].host, ", ".join(former)
            found.append(Say(f"{waiting} on {host} has taken the place of {names} as a controller"))
        for node in former:
            if self.let_go(node):
                del self.placed[node]
            elif node in self.placed:
                self.ending[node] = None
                found.append(End(node, "another controller has its place"))
        return found

    def failed(self) -> None:
        """The controller that waits for a seat has ended, or cannot be started."""
        self.placed.pop(self.seats.give_up(), None)
        self._failed += 1


def _at_host(placed: Placed) -> bool:
    return placed.role == "controller" and placed.host != FRONT
