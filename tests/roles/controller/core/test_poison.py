"""Messages of controllers that would end a member at its next start are not kept, and nothing of them is promised."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.roles.controller.core.instructions import Append, Notice, SaveSnapshot, SaveVote, Send
from adamctl.roles.controller.core.paxos.messages import (
    Accept,
    Ballot,
    Confirm,
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
    Received,
    Refused,
    SnapshotPart,
)
from adamctl.roles.controller.core.paxos.validate import ROUND_LEAP_MAX
from adamctl.roles.controller.core.service.state import SessionMemory, Snapshot
from tests.roles.controller.core.paxos.test_paxos_core import Three

LAST = (1 << 64) - 1
HIGH = Ballot(LAST, 2)
MEMBERS = (Member("a", 1, "a"), Member("b", 2, "b"), Member("c", 3, "c"))
ENTRY = Entry(5, Ballot(1, 1), b"\xc1")


def kept(out: list[object]) -> list[object]:
    return [one for one in out if isinstance(one, (SaveVote, Append, SaveSnapshot))]


def parts(snapshot: PaxosSnapshot) -> SnapshotPart:
    data = msgspec.msgpack.encode(snapshot)
    return SnapshotPart(snapshot.slot, 0, len(data), data)


def state(revision: int = 1, code: int = 0) -> bytes:
    return msgspec.msgpack.encode(Snapshot(revision, 0, (), (SessionMemory("s", 1, 1, (), 0, code),)))


POISON: list[PeerMessage] = [
    Probe(LAST),
    ProbeReply(1, True, LAST),
    Prepare(HIGH),
    Promise(HIGH, 0),
    Promise(Ballot(2, 2), 1, ENTRY),
    Accept(Entry(3, HIGH, b""), Ballot()),
    Accept(Entry(LAST, Ballot(9, 2), b""), Ballot()),
    Accept(Entry(3, Ballot(9, 2), b"\xc1"), Ballot()),
    Accept(Entry(3, Ballot(9, 2), b"", (Member("a", 1), Member("a", 2))), Ballot()),
    Accept(Entry(3, Ballot(9, 2), b"", (Member("\x1b[2J", 1),)), Ballot()),
    Confirm(HIGH, 1, 0, Ballot()),
    Confirm(Ballot(9, 2), 1, LAST, Ballot()),
    Refused(HIGH),
    Learn((ENTRY,), 5),
    Learn((Entry(-1, Ballot(1, 1), b""),), 5),
    Introduce("x\n", "", ()),
    parts(PaxosSnapshot(9, Ballot(1, 1), MEMBERS, b"\xc1")),
    parts(PaxosSnapshot(9, Ballot(1, 1), (), state())),
    parts(PaxosSnapshot(9, HIGH, MEMBERS, state())),
    parts(PaxosSnapshot(9, Ballot(1, 1), MEMBERS, state(LAST))),
    parts(PaxosSnapshot(9, Ballot(1, 1), MEMBERS, state(code=12345))),
    SnapshotPart(9, 0, 3, b"\xc1\xc1\xc1"),
    SnapshotPart(9, 0, 1, b"more than that"),
]


@pytest.mark.parametrize("message", POISON, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("to", ["a", "b"])
def test_what_cannot_be_gone_on_from_is_not_kept(message: PeerMessage, to: str) -> None:
    three = Three()
    core = three.cores[to]
    vote, slot = core.paxos.acceptor.vote, core.paxos.acceptor.chosen_to
    identity = {"a": 1, "b": 2}[to]
    if isinstance(message, Learn):
        entries = [msgspec.structs.replace(one, slot=slot + 1) if one.slot == 5 else one for one in message.entries]
        message = Learn(tuple(entries), slot + 1)
    source = 3 - identity
    out = core.step(Received(vote.cluster, source, "x", identity, message), three.now)
    assert not kept(out)
    assert (core.paxos.acceptor.vote, core.paxos.acceptor.chosen_to) == (vote, slot)
    three.cut("a")
    three.wait(3.0)
    three.lost.clear()
    three.wait(3.0)
    assert three.leader
    assert three.put(three.leader, "/k")


def test_it_is_said_once() -> None:
    three = Three()
    vote = three.cores["b"].paxos.acceptor.vote
    heard = Received(vote.cluster, 1, "a", 2, Prepare(HIGH))
    (notice,) = three.step("b", heard)
    assert isinstance(notice, Notice) and "expected 0 to" in notice.message
    assert three.step("b", heard) == []


def test_a_round_may_be_ahead_but_not_by_more_than_elections_can_be() -> None:
    three = Three()
    core = three.cores["b"]
    vote = core.paxos.acceptor.vote
    far = Ballot(vote.promised.round + ROUND_LEAP_MAX, 1)
    too_far = Ballot(far.round + 1, 1)
    assert not kept(core.step(Received(vote.cluster, 1, "a", 2, Prepare(too_far)), three.now))
    assert kept(core.step(Received(vote.cluster, 1, "a", 2, Prepare(far)), three.now))


def test_who_is_no_member_is_neither_obeyed_nor_answered() -> None:
    three = Three()
    core = three.cores["b"]
    vote = core.paxos.acceptor.vote
    for message in (Prepare(Ballot(99, 9)), Probe(99), Fetch(0), Accept(Entry(3, Ballot(99, 9), b""), Ballot())):
        out = core.step(Received(vote.cluster, 9, "stranger", 2, message), three.now)
        assert not kept(out) and not any(isinstance(one, Send) and one.address == "stranger" for one in out)
    assert core.paxos.acceptor.vote == vote


def test_who_becomes_a_member_by_what_was_accepted_last_counts_as_one() -> None:
    three = Three()
    core = three.cores["b"]
    acceptor = core.paxos.acceptor
    change = Entry(acceptor.chosen_to + 1, acceptor.vote.promised, b"", (*MEMBERS[:2], Member("d", 4, "d")))
    leader = acceptor.vote.promised.identity
    core.step(Received(acceptor.vote.cluster, leader, "a", 2, Accept(change, acceptor.chosen_ballot)), three.now)
    assert acceptor.accepted == change
    out = core.step(Received(acceptor.vote.cluster, 4, "d", 2, Probe(acceptor.vote.promised.round + 1)), three.now)
    assert not any(isinstance(one, Notice) for one in out)
    out = core.step(Received(acceptor.vote.cluster, 5, "e", 2, Probe(acceptor.vote.promised.round + 1)), three.now)
    assert any(isinstance(one, Notice) for one in out)


def test_a_stranger_that_knows_more_makes_a_member_ask_those_it_knows() -> None:
    three = Three()
    core = three.cores["b"]
    vote = core.paxos.acceptor.vote
    ahead = Confirm(Ballot(99, 9), 1, core.paxos.acceptor.chosen_to + 3, Ballot(99, 9))
    out = core.step(Received(vote.cluster, 9, "stranger", 2, ahead), three.now)
    asked = {one.address for one in out if isinstance(one, Send) and isinstance(one.message, Fetch)}
    assert asked == {"a", "c"} and not kept(out)


@pytest.mark.parametrize(
    "message", [Prepare(Ballot(99, 1)), Confirm(Ballot(99, 1), 1, 0, Ballot()), Introduce("a", "x", ("a", "b", "c"))]
)
def test_a_controller_speaks_for_itself_alone(message: PeerMessage) -> None:
    three = Three()
    core = three.cores["b"]
    vote = core.paxos.acceptor.vote
    out = core.step(Received(vote.cluster, 1, "a", 2, message, node="c"), three.now)
    assert not kept(out) and not any(isinstance(one, Send) for one in out) and core.paxos.acceptor.vote == vote
    (notice,) = (one for one in out if isinstance(one, Notice))
    assert notice.message == "a message from the controller at a is refused: controller c speaks for a"
