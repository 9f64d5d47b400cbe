"""Planted faults. Each is a mistake that is easily made; a simulator that does not find it would not find that one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from adamctl.roles.controller.core.paxos.messages import Ballot
from adamctl.roles.controller.core.service.events import Beacon, Read
from tests.sim.controllers.controller import SimController, SimCore
from tests.sim.controllers.scenario import Planted


def _unconfirmed(kind: type[Beacon | Read]) -> Callable[[SimCore], None]:
    """Who believes to lead answers at once."""

    def mutate(core: SimCore) -> None:
        requests = core._requests
        confirm = requests.confirm

        def at_once(event: Any, now: float) -> None:
            if isinstance(event, kind) and core.paxos.leading:
                requests._confirming[event.token] = (event, now)
                requests.confirmed(event.token, now)
            else:
                confirm(event, now)

        requests.confirm = at_once  # type: ignore[method-assign]

    return mutate


def _accept_below_the_promise(core: SimCore) -> None:
    acceptor = core.paxos.acceptor
    promise = acceptor.promise

    def any_ballot(ballot: Ballot) -> bool:
        promise(ballot)
        return True

    acceptor.promise = any_ballot  # type: ignore[method-assign]


def _snapshot_without_its_slot(core: SimCore) -> None:
    acceptor = core.paxos.acceptor
    snapshot = acceptor.snapshot
    acceptor.snapshot = lambda: msgspec.structs.replace(snapshot(), slot=0)  # type: ignore[method-assign]


def _snapshot_without_what_is_accepted(core: SimCore) -> None:
    core.snapshot = lambda: (core.paxos.acceptor.snapshot(), ())  # type: ignore[method-assign]


def _new_value_for_an_open_slot(core: SimCore) -> None:
    core.paxos._adopted = lambda accepted: None  # type: ignore[method-assign]


def _adopts_the_lowest_ballot(core: SimCore) -> None:
    core.paxos._adopted = lambda accepted: min(  # type: ignore[method-assign]
        accepted, key=lambda entry: entry.ballot, default=None
    )


def _no_sessions_in_the_snapshot(core: SimCore) -> None:
    core.encode_state = lambda: msgspec.msgpack.encode(  # type: ignore[method-assign]
        msgspec.structs.replace(core.state.snapshot(), sessions=())
    )


def _forgotten_sessions_begin_again(core: SimCore) -> None:
    """Whoever has no session is taken for somebody new."""
    change = core._requests.change
    core._requests.change = lambda event: change(  # type: ignore[method-assign]
        dataclasses.replace(event, known_serial=1 << 60)
    )


def _no_value_of_its_own_first(core: SimCore) -> None:
    paxos = core.paxos
    propose = paxos.propose

    def at_once(value: bytes, members: Any = ()) -> None:
        leadership = paxos.leadership
        if value == b"" and not members and leadership is not None and not leadership.ready:
            leadership.ready = True
            core.began_to_lead(core.now)
        else:
            propose(value, members)

    paxos.propose = at_once  # type: ignore[method-assign]


def _no_own_value_after_an_adopted_one(core: SimCore) -> None:
    paxos = core.paxos
    propose = paxos.propose

    def ready_with_it(value: bytes, members: Any = ()) -> None:
        if paxos.leadership is not None:
            paxos.leadership.adopting = False
        propose(value, members)

    paxos.propose = ready_with_it  # type: ignore[method-assign]


def _old_promises_for_new_members(core: SimCore) -> None:
    core.paxos._members_changed = lambda now: None  # type: ignore[method-assign]


def _one_vote_less(core: SimCore) -> None:
    """A leader takes half of the members for a majority when it counts who has accepted."""
    paxos = core.paxos
    count = paxos._count_accepted

    def generous(now: float) -> None:
        leadership = paxos.leadership
        if leadership is not None and 2 * len(leadership.acknowledged) >= len(paxos.acceptor.members) - 1:
            leadership.acknowledged |= {member.identity for member in paxos.acceptor.members}
        count(now)

    paxos._count_accepted = generous  # type: ignore[method-assign]


def _send_first(host: SimController) -> None:
    host.send_first = True


def _same_identity(host: SimController) -> None:
    host.same_identity = True


MUTANTS = {
    one.name: one
    for one in (
        Planted("deposed-leader-renews", "beacons are answered without confirmation", _unconfirmed(Beacon)),
        Planted("promise-sent-before-durable", "messages go out before what they promise is synced", host=_send_first),
        Planted("accept-below-promise", "any ballot's proposal is accepted", _accept_below_the_promise),
        Planted("snapshot-without-slot", "a snapshot says slot 0", _snapshot_without_its_slot),
        Planted(
            "snapshot-without-accepted",
            "compaction drops what is accepted and not decided",
            _snapshot_without_what_is_accepted,
        ),
        Planted(
            "two-values-after-leader-change",
            "a new leader proposes what it likes for the open slot",
            _new_value_for_an_open_slot,
        ),
        Planted("adopts-lowest-ballot", "it takes the oldest of the accepted values", _adopts_the_lowest_ballot),
        Planted("sessions-left-out-of-snapshot", "a snapshot has the keys only", _no_sessions_in_the_snapshot),
        Planted("forgotten-session-begins-again", "a first request is always new", _forgotten_sessions_begin_again),
        Planted(
            "leads-without-own-value",
            "a new leader answers before a value of its own is decided",
            _no_value_of_its_own_first,
        ),
        Planted(
            "leads-with-an-adopted-value",
            "a new leader answers as soon as what another had proposed is decided",
            _no_own_value_after_an_adopted_one,
        ),
        Planted("unconfirmed-read", "reads are answered without confirmation", _unconfirmed(Read)),
        Planted(
            "old-promises-for-new-members",
            "a leader goes on after an exchange of members without asking the new ones",
            _old_promises_for_new_members,
        ),
        Planted("half-is-enough", "half of the others count as a majority", _one_vote_less),
        Planted("lost-folder-keeps-identity", "an empty folder passes for the one that was lost", host=_same_identity),
    )
}
