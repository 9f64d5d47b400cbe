"""Acceptor and learner: what one member has promised, accepted and knows to be decided. Pure.

A slot's value is proposed only when the slot before is decided, so at most one slot is open: everything up to
`chosen_to` is decided, and `accepted` can only be for the slot after it. An entry in the log is therefore known to be
decided as soon as one follows it; no record says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import msgspec

from adamctl.roles.controller.core.instructions import Append, Instruction, SaveSnapshot, SaveVote
from adamctl.roles.controller.core.paxos.messages import Ballot, Entry, Member, PaxosSnapshot, Vote
from adamctl.roles.controller.core.paxos.validate import snapshot_problem

LOG_BYTES_MAX = 8 << 20
"""Bound on the decided values kept in memory for members that lag; one that lags further gets a snapshot."""
LOG_BYTES_KEPT = 1 << 20
"""Beyond this, no more is kept than the state is long: a snapshot would be shorter to send."""
LOG_ENTRIES_MAX = 4096
"""Bound on their number, for small values: an entry takes some hundred bytes beside its value."""


class Machine(Protocol):
    """The state machine that decided values are applied to, in the same order on every member."""

    @property
    def state_bytes(self) -> int:
        """About how long `encode_state` would be."""
        ...

    def apply(self, entry: Entry) -> None: ...

    def encode_state(self) -> bytes: ...

    def restore_state(self, state: bytes) -> None: ...

    def value_problem(self, value: bytes) -> str:
        """Returns why `apply` cannot take a value; empty: it can."""
        ...

    def state_problem(self, state: bytes) -> str:
        """Returns why `restore_state` cannot take a state; empty: it can."""
        ...


class Outbox(Protocol):
    """Where instructions go, in the order in which they are to be carried out."""

    def put(self, instruction: Instruction) -> None: ...


class Acceptor:
    """What one member has promised, accepted and learnt.

    Attributes:
        vote: the vote on disk once all instructions put so far are carried out. `vote.promised` never decreases.
        members: from slot `chosen_to` + 1 on; none if this member does not know them yet.
        chosen_to: every slot up to it is decided and applied; never decreases.
        chosen_ballot: under which the value of `chosen_to` was accepted here.
        accepted: for slot `chosen_to` + 1; its ballot is at most `vote.promised`, unless it was learnt.
    """

    def __init__(self, machine: Machine, out: Outbox, vote: Vote, *, log_bytes_max: int = LOG_BYTES_MAX) -> None:
        self.vote = vote
        self.members: tuple[Member, ...] = vote.members
        self.chosen_to = 0
        self.chosen_ballot = Ballot()
        self.accepted: Entry | None = None
        self._machine = machine
        self._out = out
        self._log: deque[Entry] = deque()  # decided, without gaps, up to chosen_to
        self._log_bytes = 0
        self._log_bytes_max = log_bytes_max

    def recover(self, snapshot: PaxosSnapshot | None, entries: Iterable[Entry]) -> None:
        """Restores what was on disk. The last entry may be undecided; all before it are decided."""
        if snapshot is not None:
            self._restore(snapshot)
        for entry in entries:
            if self.accepted is not None and entry.slot == self.accepted.slot + 1:
                self.choose()
            self.accepted = entry

    @property
    def untouched(self) -> bool:
        """Whether this member has never promised or accepted anything."""
        return self.vote.promised == Ballot() and self.chosen_to == 0 and self.accepted is None

    def may_be_member(self, identity: int) -> bool:
        """Whether this identity is a member as far as is known here, or becomes one by the entry accepted last."""
        accepted = () if self.accepted is None else self.accepted.members
        return not self.members or any(member.identity == identity for member in (*self.members, *accepted))

    # --- promises ---------------------------------------------------------------------------------------------------

    def promise(self, ballot: Ballot) -> bool:
        """Promises to accept nothing below a ballot; False if a higher one was promised already."""
        if ballot > self.vote.promised:
            self.save(msgspec.structs.replace(self.vote, promised=ballot))
        return ballot == self.vote.promised

    def save(self, vote: Vote) -> None:
        """Changes the vote, on disk first."""
        self.vote = vote
        self._out.put(SaveVote(vote))

    # --- values -----------------------------------------------------------------------------------------------------

    def accept(self, entry: Entry, previous: Ballot) -> bool:
        """Accepts an entry whose ballot has been promised; False if this member has to catch up first."""
        if not self.members:
            return False
        self.know_chosen(entry.slot - 1, previous)
        if entry.slot <= self.chosen_to:
            return True  # already decided, so a leader can only have proposed the decided value
        if entry.slot != self.chosen_to + 1:
            return False
        if self.accepted is None or self.accepted.ballot != entry.ballot:
            self.accepted = entry
            self._out.put(Append(entry))
        return True

    def know_chosen(self, slot: int, ballot: Ballot) -> None:
        """Notes that the value proposed for a slot under a ballot is decided."""
        if self.accepted is not None and self.accepted.slot == slot and self.accepted.ballot == ballot:
            self.choose()

    def learn(self, entries: Iterable[Entry]) -> None:
        """Takes over the decided values that directly follow those decided here."""
        for entry in entries:
            if entry.slot == self.chosen_to + 1 and self.members:
                if self.accepted is None or self.accepted.ballot != entry.ballot:
                    self.accepted = entry
                    self._out.put(Append(entry))
                self.choose()

    def choose(self) -> None:
        """The accepted value is decided: applies it."""
        entry = self.accepted
        assert entry is not None and entry.slot == self.chosen_to + 1
        self.accepted = None
        self.chosen_to = entry.slot
        self.chosen_ballot = entry.ballot
        self._log.append(entry)
        self._log_bytes += len(entry.value)
        if entry.members:
            self.members = entry.members
        self._machine.apply(entry)
        bytes_max = min(self._log_bytes_max, max(LOG_BYTES_KEPT, self._machine.state_bytes))
        while len(self._log) > 1 and (self._log_bytes > bytes_max or len(self._log) > LOG_ENTRIES_MAX):
            self._log_bytes -= len(self._log.popleft().value)

    # --- catching up ------------------------------------------------------------------------------------------------

    def decided_after(self, slot: int, bytes_max: int) -> tuple[Entry, ...] | None:
        """Returns decided entries after a slot, at least one if there are any; None if they were dropped."""
        if slot >= self.chosen_to:
            return ()
        if not self._log or self._log[0].slot > slot + 1:
            return None
        found: list[Entry] = []
        size = 0
        first = self._log[0].slot
        for index in range(slot + 1 - first, len(self._log)):
            entry = self._log[index]
            size += len(entry.value)
            if found and size > bytes_max:
                break
            found.append(entry)
        return tuple(found)

    def snapshot(self) -> PaxosSnapshot:
        """Returns everything that is decided. A value that is only accepted is not included."""
        return PaxosSnapshot(self.chosen_to, self.chosen_ballot, self.members, self._machine.encode_state())

    def install(self, snapshot: PaxosSnapshot) -> bool:
        """Takes over another member's snapshot, on disk first, if it is newer and can be read back."""
        if snapshot.slot <= self.chosen_to and self.members:
            return False
        if snapshot_problem(snapshot) or self._machine.state_problem(snapshot.state):
            return False
        self._out.put(SaveSnapshot(snapshot))
        self._restore(snapshot)  # also forgets a value accepted for a slot that the snapshot has decided
        return True

    def _restore(self, snapshot: PaxosSnapshot) -> None:
        self._machine.restore_state(snapshot.state)
        self.chosen_to = snapshot.slot
        self.chosen_ballot = snapshot.ballot
        self.members = snapshot.members
        self.accepted = None
        self._log.clear()
        self._log_bytes = 0
