"""Which incarnations have ended, and when the parameter servers are told (pure).

A part of `ControllerCore`. Parameter servers remember each client's last push; a record under `/retired` says which
clients they may forget. An incarnation is added to it when its node has been gone for `retire_after_s` under one
leader, since a leader knows only of the time in which it led. No message of an ended process is under way for that
long. Safety does not depend on that time, since servers refuse every retired client; it only keeps live clients from
being retired.
"""

from __future__ import annotations

from adamctl.config.records import RETIRED_KEY, RetiredRecord, decode, encode
from adamctl.roles.controller.core.service.commands import Change
from adamctl.roles.controller.core.service.requests import Requests
from adamctl.roles.controller.core.service.shared import Shared
from adamctl.wire.messages import ConfigChanges
from adamctl.wire.unreadable import UNREADABLE

PAUSES_PER_HORIZON = 10
"""The record changes at most this many times per `retire_after_s`: each change costs the servers work."""


class Retiring:
    """See the module. Does nothing on a member that does not lead."""

    def __init__(self, shared: Shared, requests: Requests) -> None:
        """`requests` takes what it proposes."""
        self._shared, self._requests = shared, requests
        self._alive: frozenset[int] = frozenset()
        self._gone: dict[int, float] = {}  # incarnation -> when this leader first saw that it was gone
        self._before, self._since_s = 0, 0.0  # highest incarnation when leading began, and when
        self._seen = 0
        self._told_s = float("-inf")
        self._session, self._sequence = "", 0

    def began_to_lead(self, now: float) -> None:
        """Counts all absent incarnations as gone from now: how long they have been gone is not known."""
        self._gone.clear()
        self._before = self._seen = self._shared.state.incarnation
        self._since_s, self._told_s = now, float("-inf")
        self._alive = self._living()
        self._begin_session()

    def tick(self, now: float) -> None:
        """Notes which incarnations have gone, and proposes the record that follows, if it is time."""
        self._note(now)
        horizon_s = self._shared.config.retire_after_s
        if now - self._since_s < horizon_s or now - self._told_s < horizon_s / PAUSES_PER_HORIZON:
            return
        known, revision = self._known()
        over = [one for one, since_s in self._gone.items() if now - since_s >= horizon_s and not known.has(one)]
        if not over and max(known.floor, 0) >= self._before:
            return
        floor = max((known.floor, self._before, *over))
        waiting = (one for one, since_s in self._gone.items() if now - since_s < horizon_s)
        kept = sorted(one for one in {*self._alive, *waiting} if one <= floor)
        self._told_s = now
        self._propose(RetiredRecord(floor, tuple(kept)), revision)

    def _note(self, now: float) -> None:
        alive, newest = self._living(), self._shared.state.incarnation
        for one in {*self._alive, *range(self._seen + 1, newest + 1)} - alive:
            self._gone[one] = now
        self._alive, self._seen = alive, newest

    def _living(self) -> frozenset[int]:
        return frozenset(node.record.incarnation for node in self._shared.nodes)

    def _known(self) -> tuple[RetiredRecord, int]:
        """Returns the record and its revision; an unreadable record counts as empty and is rewritten."""
        entry = self._shared.state.get(RETIRED_KEY)
        if entry is None:
            return RetiredRecord(), 0
        try:
            known = decode(entry.value, RetiredRecord)
        except UNREADABLE:
            known = RetiredRecord()
        for one in [one for one in self._gone if known.has(one)]:
            del self._gone[one]
        return known, entry.revision

    def _propose(self, record: RetiredRecord, revision: int) -> None:
        if self._shared.state.remembered(self._session) is None and self._sequence:
            self._begin_session()
        self._sequence += 1
        changes = ConfigChanges({RETIRED_KEY: revision}, {RETIRED_KEY: encode(record)})
        self._requests.submit(Change(self._session, self._sequence, changes, self._shared.state.serial))

    def _begin_session(self) -> None:
        """Begins a session under an unused name: a member leads under a ballot only once, and numbers its requests."""
        leadership = self._shared.paxos.leadership
        if leadership is not None:
            ballot = leadership.ballot
            self._session = f"retired-{ballot.round}-{ballot.identity}-{self._shared.state.serial}"
            self._sequence = 0
