"""What a leader keeps while it leads: the open proposal, each member's progress, and who still follows it.

A round asks every member whether it knows of a later leader. An answer to round n says that it knew of none when it got
the question, so it confirms every request that came before round n began; rounds may overlap. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adamctl.roles.controller.core.paxos.messages import Ballot, Entry, Member

ROUNDS_KEPT = 64


def is_majority(identities: Iterable[int], members: tuple[Member, ...]) -> bool:
    """Returns whether these are more than half of the members."""
    found = set(identities)
    return 2 * sum(member.identity in found for member in members) > len(members)


class Leadership:
    """One leadership, under one ballot.

    Attributes:
        ready: a value of this leader's own has been decided, so nothing that was accepted under a lower ballot and is
            still undecided can ever be decided. Nothing is answered before that.
        adopting: the open slot's value is another leader's. It may have been decided before, and then that leader may
            have proposed something for the next slot that none of the members that promised knows of.
        proposal, previous, acknowledged: the open slot's entry, the ballot of the slot before, and who has accepted.
        progress, heard_s: identity -> the last slot that this member knows to be decided, and when it said so.
        confirmed_s: when the latest round that a majority has answered began.
    """

    def __init__(self, ballot: Ballot, now: float) -> None:
        self.ballot = ballot
        self.ready = False
        self.adopting = False
        self.proposal: Entry | None = None
        self.previous = Ballot()
        self.acknowledged: set[int] = set()
        self.progress: dict[int, int] = {}
        self.heard_s: dict[int, float] = {}
        self.confirmed_s = now
        self.heartbeat_s = now
        self._round = 0
        self._confirmed_round = 0
        self._begun_s: deque[tuple[int, float]] = deque(maxlen=ROUNDS_KEPT)
        self._answered: dict[int, int] = {ballot.identity: 0}
        self._waiting: deque[tuple[int, int]] = deque()

    # --- rounds -----------------------------------------------------------------------------------------------------

    @property
    def asking(self) -> bool:
        """Whether a round is under way."""
        return self._round > self._confirmed_round

    @property
    def waiting(self) -> bool:
        """Whether a request waits for a round that has not been begun."""
        return bool(self._waiting) and self._waiting[-1][0] > self._round

    def wait(self, token: int) -> None:
        """Adds a request that the next round will confirm."""
        self._waiting.append((self._round + 1, token))

    def begin_round(self, now: float) -> int:
        """Returns the new round's number."""
        self._round += 1
        self._begun_s.append((self._round, now))
        self._answered[self.ballot.identity] = self._round
        return self._round

    def answered(self, identity: int, number: int, members: tuple[Member, ...]) -> None:
        """Takes a member's answer to a round."""
        if number <= self._round:
            self._answered[identity] = max(self._answered.get(identity, 0), number)
        self.count(members)

    def count(self, members: tuple[Member, ...]) -> None:
        """Finds the latest round that a majority has answered."""
        numbers = sorted((self._answered.get(member.identity, 0) for member in members), reverse=True)
        confirmed = numbers[len(members) // 2] if numbers else 0
        if confirmed > self._confirmed_round:
            self._confirmed_round = confirmed
            while self._begun_s and self._begun_s[0][0] <= confirmed:
                self.confirmed_s = self._begun_s.popleft()[1]

    def released(self) -> list[int]:
        """Removes and returns the requests that are confirmed by now."""
        found = []
        while self.ready and self._waiting and self._waiting[0][0] <= self._confirmed_round:
            found.append(self._waiting.popleft()[1])
        return found
