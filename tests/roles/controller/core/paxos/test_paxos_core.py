"""Scripted scenes of the Paxos core: three members, messages delivered or lost by hand. Seeds are in tests/sim."""

from __future__ import annotations

from adamctl.roles.controller.core.instructions import Answer, Append, Notice, Refuse, SaveSnapshot, SaveVote, Send
from adamctl.roles.controller.core.paxos.member import PaxosConfig
from adamctl.roles.controller.core.paxos.messages import (
    Accept,
    Ballot,
    Confirm,
    Confirmed,
    Entry,
    Fetch,
    Introduce,
    Learn,
    Prepare,
    Promise,
    Received,
    SnapshotPart,
    decode_peer,
    encode_peer,
)
from adamctl.roles.controller.core.service.controller_core import ControllerConfig, ControllerCore
from adamctl.roles.controller.core.service.events import Beacon, CompareAndSet, Event, Read, Register, Replace, Tick
from adamctl.roles.controller.core.service.limits import limits_of
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, NodeRegisterRequest

CONFIG = ControllerConfig(paxos=PaxosConfig(log_bytes_max=200, part_bytes=100))
IDENTITY = {"a": 1, "b": 2, "c": 3}
PEERS = {name: name for name in IDENTITY}


class Three:
    """Three members that share a clock. `lost` names (from, to) links that deliver nothing."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lost: set[tuple[str, str]] = set()
        self.out: list[tuple[str, object]] = []
        self.under_way: list[tuple[str, Send, Received]] = []
        self.cores: dict[str, ControllerCore] = {}
        for name, identity in IDENTITY.items():
            core = ControllerCore(CONFIG, name=name, peers=PEERS, identity=identity, chance=lambda: 0.5)
            self.cores[name] = core
            self.carry_out(name, core.recover(None, None, (), 0.0))
        self.wait(1.0)
        assert self.leader == "a"  # the lowest identity stands first

    @property
    def leader(self) -> str:
        return next((name for name, core in self.cores.items() if core.paxos.leading), "")

    def carry_out(self, name: str, instructions: list) -> None:  # type: ignore[type-arg]
        for instruction in instructions:
            self.out.append((name, instruction))
            if isinstance(instruction, Send) and (name, instruction.address) not in self.lost:
                vote = self.cores[name].paxos.acceptor.vote
                message = decode_peer(encode_peer(instruction.message))
                event = Received(vote.cluster, vote.identity, name, instruction.destination, message, node=name)
                self.under_way.append((instruction.address, instruction, event))

    def step(self, name: str, event: Event) -> list[object]:
        """Steps one member; returns what it and, by its messages, the others came to do."""
        before = len(self.out)
        self.carry_out(name, self.cores[name].step(event, self.now))
        self.deliver()
        return [instruction for _, instruction in self.out[before:]]

    def deliver(self) -> None:
        while self.under_way:
            address, _, event = self.under_way.pop(0)
            if address in self.cores:
                self.carry_out(address, self.cores[address].step(event, self.now))

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            for name in list(self.cores):
                if self.cores[name].next_deadline_s <= self.now:
                    self.step(name, Tick())

    def cut(self, name: str) -> None:
        for other in IDENTITY:
            self.lost |= {(name, other), (other, name)}

    def put(self, name: str, key: str, token: int = 1) -> list[object]:
        changes = ConfigChanges({}, {key: b"x" * 50})
        return self.step(name, CompareAndSet(token, f"s{key}", 1, changes))


def answers(out: list[object], kind: type = Answer) -> list[object]:
    return [instruction for instruction in out if isinstance(instruction, kind)]


def test_what_is_promised_stands_before_the_message_that_promises_it() -> None:
    three = Three()
    three.put("a", "/k")
    for name in IDENTITY:
        voted, accepted = Ballot(), set()
        for other, instruction in three.out:
            if other != name:
                continue
            match instruction:
                case SaveVote(vote):
                    voted = vote.promised
                case Append(entry):
                    accepted.add((entry.slot, entry.ballot))
                case Send(message=Prepare(ballot=ballot) | Promise(ballot=ballot) | Confirmed(ballot=ballot)):
                    assert voted >= ballot
                case Send(message=Accept(entry=entry)):
                    assert (entry.slot, entry.ballot) in accepted


def test_a_change_is_answered_when_a_majority_has_it() -> None:
    three = Three()
    three.cut("c")
    assert answers(three.put("a", "/k"))
    three.cut("b")
    assert not answers(three.put("a", "/l"))


def test_followers_say_who_leads() -> None:
    three = Three()
    (refuse,) = answers(three.put("b", "/k"), Refuse)
    assert isinstance(refuse, Refuse)
    assert refuse.code == ErrorCode.NOT_LEADER and refuse.details == {"leader": "a"}


def test_a_deposed_leader_answers_neither_reads_nor_beacons() -> None:
    three = Three()
    three.step("a", Register(5, 1, NodeRegisterRequest("ps-0", "ps", (), "h", 1)))
    assert answers(three.step("a", Read(6, "/"))) and answers(three.step("a", Beacon(7, 1, "ps-0", 1)))
    three.cut("a")
    assert three.cores["a"].paxos.leading
    assert not answers(three.step("a", Read(8, "/"))) and not answers(three.step("a", Beacon(9, 1, "ps-0", 1)))
    three.wait(3.0)
    refused = {one.token for _, one in three.out if isinstance(one, Refuse) and one.code == ErrorCode.NOT_LEADER}
    assert {8, 9} <= refused and not three.cores["a"].paxos.leading and three.leader in ("b", "c")


def test_a_retry_at_the_next_leader_is_the_same_request() -> None:
    three = Three()
    three.lost = {("b", "a"), ("c", "a")}  # the change reaches the others, their answers do not come back
    assert not answers(three.put("a", "/k"))
    three.cut("a")
    three.wait(3.0)
    new = three.leader
    out = answers(three.put(new, "/k"))
    assert len(out) == 1 and three.cores[new].state.revision == 1


def test_a_new_leader_proposes_again_what_may_have_been_decided() -> None:
    three = Three()
    three.lost = {("b", "a"), ("c", "a"), ("a", "c")}
    three.put("a", "/k")  # accepted by a and b; a does not know
    three.cut("a")
    three.wait(3.0)
    assert three.leader and three.cores[three.leader].state.get("/k") is not None


def test_what_reached_no_majority_is_dead_as_soon_as_another_leads() -> None:
    three = Three()
    three.cut("a")
    three.put("a", "/lost")  # accepted by a alone
    three.wait(3.0)
    slot = three.cores[three.leader].paxos.acceptor.chosen_to
    accepted = three.cores["a"].paxos.acceptor.accepted
    assert accepted is not None and slot >= accepted.slot  # the new leader has put a value of its own there
    three.lost.clear()
    three.wait(3.0)
    assert all(core.state.get("/lost") is None for core in three.cores.values())


def test_so_is_what_came_after_a_value_that_the_next_leader_has_to_adopt() -> None:
    three = Three()
    before = three.cores["a"].paxos.acceptor.chosen_to
    three.put("a", "/k", 1)  # accepted by all, decided by a, which has not told the others yet
    assert [core.paxos.acceptor.chosen_to for core in three.cores.values()] == [before + 1, before, before]
    three.cut("a")
    three.put("a", "/lost", 2)  # accepted by a alone, for the slot after it
    three.wait(3.0)
    accepted = three.cores["a"].paxos.acceptor.accepted
    assert accepted is not None and accepted.slot == before + 2
    new = three.cores[three.leader]
    assert new.state.get("/k") is not None and new.paxos.acceptor.chosen_to >= accepted.slot
    three.lost.clear()
    three.wait(3.0)
    assert all(core.state.get("/lost") is None for core in three.cores.values())


def test_a_member_that_hears_nobody_deposes_nobody() -> None:
    three = Three()
    three.lost = {("a", "c"), ("b", "c")}  # c hears nothing and is heard
    ballot = three.cores["a"].paxos.acceptor.vote.promised
    three.wait(10.0)
    assert three.leader == "a" and three.cores["a"].paxos.acceptor.vote.promised == ballot
    three.lost.clear()
    three.wait(1.0)
    assert three.cores["c"].leader is not None


def test_a_member_that_lags_catches_up_by_the_log_or_by_a_snapshot() -> None:
    for changes, kind in ((2, Learn), (12, SnapshotPart)):
        three = Three()
        three.cut("c")
        for number in range(changes):
            three.put("a", f"/{number}")
        three.lost.clear()
        before = len(three.out)
        three.wait(2.0)
        messages = [one.message for _, one in three.out[before:] if isinstance(one, Send)]
        assert any(isinstance(message, kind) for message in messages)
        assert any(isinstance(one, SaveSnapshot) for _, one in three.out[before:]) == (kind is SnapshotPart)
        assert three.cores["c"].encode_state() == three.cores["a"].encode_state()


def test_i9_nothing_below_the_promise_is_accepted() -> None:
    three = Three()
    core = three.cores["c"]
    high, low = Ballot(99, 2), Ballot(98, 1)
    vote = core.paxos.acceptor.vote
    core.step(Received(vote.cluster, 2, "b", 3, Prepare(high)), three.now)
    slot = core.paxos.acceptor.chosen_to + 1
    for message in (Accept(Entry(slot, low, b""), Ballot()), Prepare(low), Confirm(low, 1, 0, Ballot())):
        out = core.step(Received(vote.cluster, 1, "a", 3, message), three.now)
        assert [type(one).__name__ for one in out] == ["Send"] and core.paxos.acceptor.vote.promised == high
        assert type(out[0].message).__name__ == "Refused"  # type: ignore[union-attr]


def test_messages_for_another_cluster_or_identity_mean_nothing() -> None:
    three = Three()
    vote = three.cores["c"].paxos.acceptor.vote
    prepare = Prepare(Ballot(99, 2))
    assert three.cores["c"].step(Received(vote.cluster + 2, 2, "b", 3, prepare), three.now) == []
    assert three.cores["c"].step(Received(vote.cluster, 2, "b", 33, prepare), three.now) == []


def test_a_repeated_replacement_exchanges_nobody_for_a_member_of_long_ago() -> None:
    three = Three()
    introduced = Introduce("c", "c", ("a", "b", "c"))
    three.cut("c")
    three.wait(3.0)
    three.step("a", Received(0, 4, "c", 0, introduced))  # c has lost its folder and is another
    again = Replace(9, "c", "c", "c", identity=3)
    assert answers(three.step("a", again))
    three.wait(1.0)
    members = three.cores["a"].members
    assert [member.identity for member in members] == [1, 2, 4]
    three.step("a", Received(0, 3, "c", 0, introduced))  # from before, long under way; and the new one is down just now
    three.wait(0.1)
    assert answers(three.step("a", again)) and three.cores["a"].members == members
    (refuse,) = answers(three.step("a", Replace(10, "c", "d", "d", identity=3)), Refuse)
    assert isinstance(refuse, Refuse) and "has been replaced already" in refuse.message


def test_a_member_with_other_limits_is_not_listened_to() -> None:
    three = Three()
    core = three.cores["a"]
    vote, other = core.paxos.acceptor.vote, limits_of(ControllerConfig(sessions_max=7))
    heard = Received(vote.cluster, 2, "b", 1, Prepare(Ballot(99, 2)), other)
    (notice,) = three.step("a", heard)
    assert isinstance(notice, Notice) and "expected sessions=4096, found sessions=7" in notice.message
    assert three.step("a", heard) == [] and core.paxos.acceptor.vote == vote
    assert core.outvoted == ""
    three.step("a", Received(vote.cluster, 3, "c", 1, Prepare(Ballot(99, 3)), other))
    assert "2 of the other 2 controllers have different limits" in core.outvoted
    three.step("a", Received(vote.cluster, 2, "b", 1, Fetch(0), core.limits.own))
    assert core.outvoted == "" and list(core.limits.differing) == ["c"]
