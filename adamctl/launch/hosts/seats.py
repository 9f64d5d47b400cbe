"""Which controllers of a run have a seat in their cluster, which of those are lost, and who waits for a seat. Pure.

Who has a seat is for the cluster to say: `seated` takes it from there, and nothing here gives a seat away. So it does
not matter whether a lost controller still runs, or whether a request to replace it was carried out: a former one has an
identity that is no member's any more, and never gets its seat back.

    the host of a controller is lost    one more controller is started beside the living, and waits; one at a time
    it serves                           the cluster is asked to give it the lost one's seat; it refuses while a leader
                                        hears the lost one, and cannot do so without a majority
    the lost one is there again         it keeps its seat; the other one waits on, for the next loss
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


class Seats:
    """The controllers at hosts; empty while there are none.

    Attributes:
        members: who has a seat, as the cluster has said last.
        waiting: the controller that waits for a seat; empty: none.
        place_of: the one whose place it was started to take.
    """

    def __init__(self) -> None:
        self.members: tuple[str, ...] = ()
        self.waiting = self.place_of = ""
        self._homes: dict[str, str] = {}
        self._away: set[str] = set()  # with their host, which may come back with them
        self._dead: set[str] = set()  # their agent has ended, or they were told to end
        self._former: set[str] = set()
        self._made = 0

    def new_name(self) -> str:
        """Returns a name that no controller of this run has had: its folder is empty on every host."""
        self._made += 1
        return f"controller-{self._made}"

    def begin(self, homes: Mapping[str, str]) -> None:
        """These form the cluster, node -> host; whatever there was before is over."""
        self._dead |= {*self.members, self.waiting}
        self.members, self.waiting, self.place_of = tuple(homes), "", ""
        self._homes |= homes

    # --- what happens -----------------------------------------------------------------------------------------------

    def host_lost(self, host: str) -> str:
        """Returns the controller that waited there and is given up; empty if none did."""
        self._away |= {node for node, home in self._homes.items() if home == host}
        return self.give_up() if self.waiting in self._away else ""

    def host_back(self, host: str, again: bool) -> None:
        """A host is there; `again`: with the agent that was lost. An agent's new process runs none."""
        there = {node for node, home in self._homes.items() if home == host}
        self._away -= there
        if not again:
            self._dead |= there

    def start(self, host: str, place_of: str) -> str:
        """Returns the name of the controller that is started there, to wait for this one's place."""
        assert not self.waiting
        self.waiting, self.place_of = self.new_name(), place_of
        self._homes[self.waiting] = host
        return self.waiting

    def give_up(self) -> str:
        """Returns the controller that waits no longer: it has ended, or will be ended."""
        given_up, self.waiting, self.place_of = self.waiting, "", ""
        self._dead.add(given_up)
        return given_up

    def seated(self, members: Iterable[str]) -> tuple[str, ...]:
        """Takes the members of the cluster as one of them has told; returns those that have lost their seats.

        An answer that names a former one comes from a member that does not know the latest, and changes nothing.
        """
        told = tuple(sorted(members))
        if not told or not self._former.isdisjoint(told):
            return ()
        lost = tuple(node for node in self.members if node not in told)
        self._former.update(lost)
        self.members = told
        if self.waiting in told:
            self.waiting = self.place_of = ""
        return lost

    # --- what follows -----------------------------------------------------------------------------------------------

    @property
    def living(self) -> tuple[str, ...]:
        """The members that are not known to be lost."""
        return tuple(node for node in self.members if node not in self._away and node not in self._dead)

    @property
    def have_majority(self) -> bool:
        """Whether enough of them live to decide anything; also if there are none at hosts."""
        return not self.members or 2 * len(self.living) > len(self.members)

    def would_keep_majority(self, host: str) -> bool:
        """Whether enough of them live without this host."""
        left = [node for node in self.living if self._homes.get(node) != host]
        return len(left) == len(self.living) or 2 * len(left) > len(self.members)

    def vacant(self, waited_for: Collection[str] = ()) -> str:
        """Returns the lost member that is to be replaced next; empty: none, or no majority could decide it.

        Members on a host that is `waited_for` are not replaced yet.
        """
        lost = [node for node in self.members if node not in self.living and self._homes.get(node) not in waited_for]
        return lost[0] if lost and self.have_majority else ""

    def busy(self) -> set[str]:
        """Returns the hosts that have a living controller, or one that waits."""
        return {self._homes[node] for node in (*self.living, self.waiting) if node in self._homes}
