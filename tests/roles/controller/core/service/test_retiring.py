"""The end of incarnations: who has been gone for long enough, and who has not."""

from __future__ import annotations

from adamctl.config.records import RETIRED_KEY, RetiredRecord, decode
from adamctl.roles.controller.core.instructions import Answer
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.controller_core import ControllerCore
from adamctl.roles.controller.core.service.events import Beacon, Leave, Read, Tick
from adamctl.wire.messages import ConfigChanges, NodeRegisterReply
from tests.roles.controller.driven_core import Driven, only

HORIZON_S = 60.0
CONFIG = ControllerConfig(beacon_interval_s=1.0, lost_after_s=5.0, sessions_max=4, retire_after_s=HORIZON_S)


class Cluster(Driven):
    """A controller whose clock goes on, with nodes that live until they are told to leave."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.now = 0.0
        self.living: dict[str, int] = {}

    def join(self, name: str) -> int:
        reply = only(self.register(name, connection=len(self.living) + 1, now=self.now), Answer).message
        assert isinstance(reply, NodeRegisterReply)
        self.living[name] = reply.incarnation
        return reply.incarnation

    def leave(self, name: str) -> None:
        self.step(Leave(6, name, self.living.pop(name)), self.now)

    def wait(self, seconds: float) -> None:
        until_s = self.now + seconds
        while self.now < until_s:
            self.now += 1.0
            for number, (name, incarnation) in enumerate(self.living.items()):
                self.step(Beacon(5, number + 1, name, incarnation), self.now)
            self.step(Tick(), self.now)

    def retired(self) -> RetiredRecord:
        entries = only(self.step(Read(1, RETIRED_KEY), self.now), Answer).entries
        return decode(entries[0].value, RetiredRecord) if entries else RetiredRecord()


def test_an_incarnation_is_retired_when_its_node_has_been_gone_for_the_horizon_and_no_sooner() -> None:
    cluster = Cluster()
    old, gone, young = (cluster.join(name) for name in ("old", "gone", "young"))
    cluster.wait(2 * HORIZON_S)
    assert cluster.retired() == RetiredRecord()
    cluster.leave("gone")
    cluster.wait(HORIZON_S - 1)
    known = cluster.retired()
    assert not known.has(gone)
    cluster.wait(3)
    known = cluster.retired()
    assert [known.has(one) for one in (old, gone, young)] == [False, True, False]


def test_one_that_comes_and_goes_between_two_looks_has_its_horizon_too() -> None:
    cluster = Cluster()
    first = cluster.join("first")
    cluster.wait(2 * HORIZON_S)
    cluster.leave("first")
    cluster.wait(HORIZON_S / 2)
    short = cluster.join("short")
    cluster.leave("short")
    last = cluster.join("last")
    cluster.leave("last")
    cluster.wait(HORIZON_S / 2 + 2)
    known = cluster.retired()
    assert [known.has(one) for one in (first, short, last)] == [True, False, False]
    cluster.wait(HORIZON_S)
    known = cluster.retired()
    assert known == RetiredRecord(last)


def test_a_new_leader_begins_to_count_anew_and_brings_nobody_back() -> None:
    cluster = Cluster()
    a, b = cluster.join("a"), cluster.join("b")
    cluster.wait(HORIZON_S + 1)
    cluster.leave("a")
    cluster.wait(HORIZON_S + 10)
    cluster.leave("b")
    before = cluster.retired()
    assert before.has(a) and not before.has(b)
    core, cluster.core = cluster.core, ControllerCore(CONFIG)
    cluster.core.recover(core.paxos.acceptor.vote, core.snapshot()[0], (), cluster.now)
    cluster.wait(HORIZON_S - 2)
    assert cluster.retired() == before
    cluster.wait(HORIZON_S / 10 + 3)
    after = cluster.retired()
    assert after.has(a) and after.has(b)


def test_the_record_changes_no_more_often_than_servers_can_bear_and_not_without_need() -> None:
    cluster, revisions = Cluster(), set[int]()
    cluster.wait(HORIZON_S + 1)
    for number in range(120):
        cluster.join(f"c-{number}")
        cluster.leave(f"c-{number}")
        cluster.wait(1)
        revisions.add(cluster.core.state.revision_of(RETIRED_KEY))
    assert 8 <= len(revisions) <= 11
    cluster.wait(2 * HORIZON_S)
    changed = cluster.core.state.revision_of(RETIRED_KEY)
    cluster.wait(2 * HORIZON_S)
    assert cluster.core.state.revision_of(RETIRED_KEY) == changed
    assert cluster.retired() == RetiredRecord(120)


def test_it_goes_on_when_its_session_was_forgotten_or_its_record_spoilt() -> None:
    cluster = Cluster()
    a, b = cluster.join("a"), cluster.join("b")
    cluster.wait(HORIZON_S + 1)
    for number in range(8):  # more than sessions are remembered
        cluster.put(cluster.now, **{f"key-{number}": b""})
    cluster.leave("a")
    cluster.wait(HORIZON_S + 10)
    known = cluster.retired()
    assert known.has(a) and not known.has(b)
    cluster.change("spoil", 1, ConfigChanges({}, {}, (RETIRED_KEY,)))
    cluster.leave("b")
    cluster.wait(HORIZON_S + 10)
    known = cluster.retired()
    assert known.has(a) and known.has(b)
