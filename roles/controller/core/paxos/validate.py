"""Checks of another controller's message, made before any of it is kept, promised or answered. Pure.

What is on disk is read at every start: a number too high to be incremented, or a value that is not a list of commands,
would keep this member from starting ever again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from adamctl.config.names import is_name
from adamctl.config.records import NUMBER_MAX, TEXT_CHARACTERS_MAX
from adamctl.roles.controller.core.paxos.messages import (
    Accept,
    Accepted,
    Ballot,
    Confirm,
    Confirmed,
    Entry,
    Fetch,
    Introduce,
    Learn,
    Member,
    PaxosSnapshot,
    PeerMessage,
    Prepare,
    Probe,
    ProbeReply,
    Promise,
    Refused,
    SnapshotPart,
)

MEMBERS_MAX: Final = 16
ROUND_LEAP_MAX: Final = 1 << 32
"""How far a round may be ahead of those known here. An election uses up one, so no honest member is ahead by as many;
and a sender that makes numbers up cannot come near the last one."""


def message_problem(message: PeerMessage, round_known: int) -> str:
    """Returns why a message cannot be right; empty: it can.

    Args:
        round_known: the highest round that was promised or seen here.
    """
    problem = _numbers_problem(message) or members_problem(_members(message))
    if problem:
        return problem
    highest = max(_rounds(message), default=0)
    if highest > round_known + ROUND_LEAP_MAX:
        return f"expected a round of at most {round_known + ROUND_LEAP_MAX}; found {highest}"
    if isinstance(message, Introduce):
        return _introduction_problem(message)
    return ""


def members_problem(members: tuple[Member, ...]) -> str:
    """Returns why these cannot be the members of a cluster; empty: they can, or the tuple is empty."""
    if len(members) > MEMBERS_MAX:
        return f"expected at most {MEMBERS_MAX} controllers; found {len(members)}"
    for member in members:
        if not is_name(member.name) or len(member.address) > TEXT_CHARACTERS_MAX:
            return f"expected a controller's name and address; found {member.name[:80]!a}, {member.address[:80]!a}"
    identities = {member.identity for member in members}
    if len(identities) < len(members) or len({member.name for member in members}) < len(members):
        return "two controllers have one name or one identity"
    return _beyond("a controller's identity", identities)


def snapshot_problem(snapshot: PaxosSnapshot) -> str:
    """Returns why a snapshot cannot be taken over; empty: it can. Does not check the state in it."""
    if not snapshot.members:
        return "a snapshot names no controllers"
    numbers = (snapshot.slot, snapshot.ballot.round, snapshot.ballot.identity)
    return _beyond("a snapshot's slot and ballot", numbers) or members_problem(snapshot.members)


def _introduction_problem(message: Introduce) -> str:
    if len(message.peers) > MEMBERS_MAX or not all(map(is_name, (message.name, *message.peers))):
        found = f"{message.name[:80]!a} and {len(message.peers)} others"
        return f"expected names of at most {MEMBERS_MAX} controllers; found {found}"
    if len(message.address) > TEXT_CHARACTERS_MAX:
        return f"expected an address of at most {TEXT_CHARACTERS_MAX} characters; found {len(message.address)}"
    return ""


def _ballots(message: PeerMessage) -> list[Ballot]:
    match message:
        case Prepare(ballot=ballot) | Accepted(ballot=ballot) | Confirmed(ballot=ballot):
            return [ballot]
        case Confirm(ballot=ballot, chosen_ballot=chosen):
            return [ballot, chosen]
        case Refused(promised=promised):
            return [promised]
        case Accept(entry=entry, previous=previous):
            return [entry.ballot, previous]
        case Promise(ballot=ballot, accepted=accepted):
            return [ballot] if accepted is None else [ballot, accepted.ballot]
        case Learn(entries=entries):
            return [entry.ballot for entry in entries]
    return []


def _rounds(message: PeerMessage) -> list[int]:
    match message:
        case Probe(round=number):
            return [number]
        case ProbeReply(round=number, promised_round=promised):
            return [number, promised]
    return [ballot.round for ballot in _ballots(message)]


def entries_of(message: PeerMessage) -> tuple[Entry, ...]:
    """Returns the log entries that a message carries."""
    match message:
        case Accept(entry=entry):
            return (entry,)
        case Promise(accepted=accepted):
            return () if accepted is None else (accepted,)
        case Learn(entries=entries):
            return entries
    return ()


def _members(message: PeerMessage) -> tuple[Member, ...]:
    return message.members if isinstance(message, Introduce) else ()


def _numbers_problem(message: PeerMessage) -> str:
    """Says which number is below 0, or so high that later numbers could not be encoded."""
    problem = _beyond("a ballot", (*_rounds(message), *(ballot.identity for ballot in _ballots(message))))
    entries = entries_of(message)
    problem = problem or _beyond("a slot", (entry.slot for entry in entries))
    for entry in entries:
        problem = problem or members_problem(entry.members)
    match message:
        case Promise(chosen_to=slot) | Accepted(slot=slot) | Learn(chosen_to=slot):
            numbers: tuple[int, ...] = (slot,)
        case Confirm(number=number, chosen_to=slot) | Confirmed(number=number, chosen_to=slot):
            numbers = (number, slot)
        case Fetch(after_slot=after_slot, snapshot_slot=snapshot_slot, offset=offset):
            numbers = (after_slot + 1, snapshot_slot + 1, offset)
        case SnapshotPart(slot=slot, offset=offset, total=total):
            numbers = (slot, offset, total)
        case _:
            numbers = ()
    return problem or _beyond("a number", numbers)


def _beyond(what: str, numbers: Iterable[int]) -> str:
    for number in numbers:
        if not 0 <= number <= 2 * NUMBER_MAX:
            return f"{what}: expected 0 to {2 * NUMBER_MAX}; found {number}"
    return ""
