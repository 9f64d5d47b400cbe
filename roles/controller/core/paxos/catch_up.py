"""How a lagging member catches up: it asks, and any member answers with log entries or parts of a snapshot. Pure.

The member that asks repeats its question after silence; an answer depends only on the question.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from adamctl.roles.controller.core.paxos.acceptor import Acceptor
from adamctl.roles.controller.core.paxos.messages import Fetch, Learn, SnapshotPart, decode_snapshot
from adamctl.wire.unreadable import UNREADABLE

PART_BYTES = 1 << 20
SNAPSHOT_BYTES_MAX = 192 << 20


class Giver:
    """Answers questions. Keeps one encoded snapshot while members ask for parts of it."""

    def __init__(self, acceptor: Acceptor, *, part_bytes: int = PART_BYTES) -> None:
        self._acceptor = acceptor
        self._part_bytes = part_bytes
        self._slot = -1
        self._encoded = b""

    def answer(self, request: Fetch) -> Learn | SnapshotPart | None:
        """Returns what to send; None if the member that asks already knows as much."""
        acceptor = self._acceptor
        if not acceptor.members:
            return None
        if request.snapshot_slot >= 0 and request.snapshot_slot == self._slot:
            return self._part(request.offset)
        if request.after_slot >= 0:
            entries = acceptor.decided_after(request.after_slot, self._part_bytes)
            if entries is not None:
                return Learn(entries, acceptor.chosen_to) if entries else None
        self._slot = acceptor.chosen_to
        self._encoded = msgspec.msgpack.encode(acceptor.snapshot())
        return self._part(0)

    def _part(self, offset: int) -> SnapshotPart:
        data = self._encoded[offset : offset + self._part_bytes]
        return SnapshotPart(self._slot, offset, len(self._encoded), data)


class Taker:
    """Asks until this member knows everything that another member said is decided.

    At most one question is outstanding within `patience_s`; a useful answer leads to the next one at once.
    """

    def __init__(self, acceptor: Acceptor, patience_s: float) -> None:
        self._acceptor = acceptor
        self._patience_s = patience_s
        self._asked_s = float("-inf")
        self._slot = -1
        self._received = bytearray()

    def question(self, now: float) -> Fetch | None:
        """Returns what to ask now, None while an answer may still come."""
        if now - self._asked_s < self._patience_s:
            return None
        self._asked_s = now
        after_slot = self._acceptor.chosen_to if self._acceptor.members else -1
        return Fetch(after_slot, self._slot, len(self._received))

    def take(self, message: Learn | SnapshotPart) -> bool:
        """Takes an answer; returns whether it was useful, so that the next question may follow at once."""
        before = (self._acceptor.chosen_to, len(self._received), self._slot)
        if isinstance(message, Learn):
            self._acceptor.learn(message.entries)
        else:
            self._take_part(message)
        useful = before != (self._acceptor.chosen_to, len(self._received), self._slot)
        if useful:
            self._asked_s = float("-inf")
        return useful

    def _take_part(self, part: SnapshotPart) -> None:
        acceptor = self._acceptor
        stop = part.offset + len(part.data)
        wrong = not part.data or stop > part.total or part.total > SNAPSHOT_BYTES_MAX
        if wrong or (part.slot <= acceptor.chosen_to and acceptor.members):
            self._forget()
            return
        if part.offset == 0 and part.slot != self._slot:
            self._forget()
            self._slot = part.slot
        if part.slot != self._slot or part.offset != len(self._received):
            return  # a part of another snapshot, or one that is here already
        self._received += part.data
        if len(self._received) < part.total:
            return
        encoded = bytes(self._received)
        self._forget()
        with suppress(*UNREADABLE):
            snapshot = decode_snapshot(encoded)
            if snapshot.slot == part.slot:
                acceptor.install(snapshot)

    def _forget(self) -> None:
        self._slot = -1
        self._received = bytearray()
