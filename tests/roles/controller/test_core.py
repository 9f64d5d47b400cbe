"""The configuration service's core, event by event; times are passed in."""

from __future__ import annotations

from typing import TypeVar

import pytest

from adamctl.config.records import NodeRecord, decode, node_key
from adamctl.errors import ConfigurationError
from adamctl.roles.controller.core import ControllerConfig, ControllerCore
from adamctl.roles.controller.core_config import lease_config
from adamctl.roles.controller.core_events import (
    Answer,
    Beacon,
    CompareAndSet,
    Disconnected,
    Event,
    Gone,
    Instruction,
    Leave,
    Notice,
    Probe,
    Read,
    Refuse,
    Register,
    Tick,
    Watch,
)
from adamctl.roles.controller.core_paxos_messages import Append
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigWatchReply,
    Empty,
    NodeRegisterReply,
    NodeRegisterRequest,
)

Kind = TypeVar("Kind")
CONFIG = ControllerConfig(beacon_interval_s=1.0, lost_after_s=5.0, watchers_max=3, sessions_max=4, history_keys_max=8)


def only(instructions: list[Instruction], kind: type[Kind]) -> Kind:
    found = [instruction for instruction in instructions if isinstance(instruction, kind)]
    assert len(found) == 1, instructions
    return found[0]


class Driven:
    """A core that is given events, and what it persisted."""

    def __init__(self, config: ControllerConfig = CONFIG) -> None:
        self.core = ControllerCore(config)
        self.core.recover(None, None, (), 0.0)
        self.persisted: list[Append] = []
        self.sequence = 0

    def step(self, event: Event, now: float = 0.0) -> list[Instruction]:
        out = self.core.step(event, now)
        self.persisted += [instruction for instruction in out if isinstance(instruction, Append)]
        return out

    def put(self, now: float = 0.0, /, **values: bytes) -> list[Instruction]:
        self.sequence += 1
        puts = {f"/{name}": value for name, value in values.items()}
        changes = ConfigChanges({}, puts)
        return self.step(CompareAndSet(0, f"put-{self.sequence}", 1, changes, self.core.state.serial), now)

    def change(self, session: str, sequence: int, changes: ConfigChanges) -> list[Instruction]:
        return self.step(CompareAndSet(7, session, sequence, changes, self.core.state.serial))

    def register(self, node: str, *, pid: int = 1, connection: int = 1, now: float = 0.0) -> list[Instruction]:
        request = NodeRegisterRequest(node, "ps", ("tcp://h:1",), "host/boot", pid)
        return self.step(Register(9, connection, request), now)

    def keys(self) -> list[str]:
        answer = only(self.step(Read(1, "/")), Answer)
        assert answer.entries is not None
        return [entry.key for entry in answer.entries]


# --- compare-and-set ------------------------------------------------------------------------------------------------


def test_several_keys_change_at_one_revision() -> None:
    driven = Driven()
    out = driven.put(a=b"1", b=b"2")
    assert only(out, Answer).message == ConfigCompareAndSetReply(1, ())
    entries = only(driven.step(Read(1, "/")), Answer).entries
    assert entries is not None and [(e.key, e.value, e.revision) for e in entries] == [("/a", b"1", 1), ("/b", b"2", 1)]


def test_one_failed_condition_changes_nothing() -> None:
    driven = Driven()
    driven.put(a=b"1")
    out = driven.change("s", 1, ConfigChanges({"/a": 1, "/b": 5}, {"/c": b""}, ("/a",)))
    assert only(out, Answer).message == ConfigCompareAndSetReply(1, ("/b",))
    assert driven.keys() == ["/a"]


def test_every_answer_to_a_change_comes_after_its_record() -> None:
    driven = Driven()
    driven.step(Watch(3, 1, "/", 0, 10.0))
    out = driven.put(a=b"1")
    assert [type(instruction) for instruction in out] == [Append, Answer, Answer]


def test_a_repeated_request_is_applied_once_and_answered_the_same() -> None:
    driven = Driven()
    changes = ConfigChanges({"/a": 0}, {"/a": b"1"})
    first = only(driven.change("s", 1, changes), Answer)
    assert only(driven.change("s", 1, changes), Answer) == first
    assert driven.core.state.revision == 1


def test_a_conflict_is_remembered_too() -> None:
    driven = Driven()
    driven.put(a=b"1")
    changes = ConfigChanges({"/a": 0}, {"/a": b"2"})
    driven.change("s", 1, changes)
    driven.step(CompareAndSet(0, "t", 1, ConfigChanges({}, {}, ("/a",))))
    assert only(driven.change("s", 1, changes), Answer).message == ConfigCompareAndSetReply(1, ("/a",))


def test_an_older_request_that_arrives_late_is_not_applied() -> None:
    driven = Driven()
    driven.change("s", 1, ConfigChanges({}, {"/a": b"1"}))
    driven.change("s", 3, ConfigChanges({}, {"/a": b"3"}))
    assert only(driven.change("s", 2, ConfigChanges({}, {"/a": b"2"})), Refuse).code == ErrorCode.SEQUENCE_GAP


def test_a_forgotten_session_is_refused_never_applied_again() -> None:
    driven = Driven()
    driven.change("old", 1, ConfigChanges({}, {"/a": b"1"}))
    driven.change("old", 2, ConfigChanges({}, {"/a": b"2"}))
    for number in range(CONFIG.sessions_max):
        driven.change(f"s{number}", 1, ConfigChanges({}, {"/b": b""}))
    assert only(driven.change("old", 2, ConfigChanges({}, {"/a": b"2"})), Refuse).code == ErrorCode.CLIENT_EVICTED


def test_a_first_request_that_comes_when_its_session_may_have_been_forgotten_is_not_applied() -> None:
    driven = Driven()
    late = CompareAndSet(0, "late", 1, ConfigChanges({}, {"/a": b"1"}))
    driven.step(late)
    for number in range(CONFIG.sessions_max):
        driven.change(f"s{number}", 1, ConfigChanges({}, {"/b": b""}))
    refuse = only(driven.step(late), Refuse)  # a copy of it that was long under way
    assert refuse.code == ErrorCode.CLIENT_EVICTED and refuse.details == {"serial": CONFIG.sessions_max + 1}
    changes = ConfigChanges({}, {"/c": b""})
    assert only(driven.step(CompareAndSet(0, "new", 1, changes, CONFIG.sessions_max + 1)), Answer)


def test_malformed_requests_are_refused() -> None:
    driven = Driven()
    for changes in (
        ConfigChanges({}, {"no-slash": b""}),
        ConfigChanges({}, {"/" + "k" * 600: b""}),
        ConfigChanges({}, {"/a": b"x" * ((1 << 20) + 1)}),
        ConfigChanges({}, {"/a": b""}, ("/a",)),
    ):
        assert only(driven.change("s", 1, changes), Refuse).code == ErrorCode.BAD_MESSAGE
    assert only(driven.change("", 1, ConfigChanges({}, {})), Refuse).code == ErrorCode.BAD_MESSAGE
    assert only(driven.change("s", 0, ConfigChanges({}, {})), Refuse).code == ErrorCode.BAD_MESSAGE
    assert not driven.persisted


def test_the_store_has_a_bound() -> None:
    driven = Driven()
    block = b"x" * (1 << 20)
    codes = []
    for number in range(30):
        out = driven.change(f"s{number}", 1, ConfigChanges({}, {f"/{number}": block}))
        codes += [instruction.code for instruction in out if isinstance(instruction, Refuse)]
    assert codes and set(codes) == {ErrorCode.OVER_QUOTA}
    assert driven.core.state.size_bytes <= 24 << 20
    out = driven.change("t", 1, ConfigChanges({}, {}, ("/0",)))
    assert isinstance(out[0], Append)  # room can always be made


# --- watch ----------------------------------------------------------------------------------------------------------


def test_a_watch_answers_at_once_what_has_changed_since() -> None:
    driven = Driven()
    driven.put(a=b"1")
    driven.put(b=b"1")
    driven.step(CompareAndSet(0, "d", 1, ConfigChanges({}, {}, ("/a",))))
    answer = only(driven.step(Watch(3, 1, "/", 1, 10.0)), Answer)
    assert answer.message == ConfigWatchReply(3, ("/a",), False)
    assert answer.entries is not None and [entry.key for entry in answer.entries] == ["/b"]


def test_a_watch_waits_for_its_prefix_only() -> None:
    driven = Driven()
    assert driven.step(Watch(3, 1, "/a", 0, 10.0)) == []
    assert [a.token for a in driven.put(b=b"1") if isinstance(a, Answer)] == [0]
    assert [a.token for a in driven.put(a=b"1") if isinstance(a, Answer)] == [0, 3]


def test_a_watch_whose_time_is_over_gets_nothing_and_a_newer_revision() -> None:
    driven = Driven()
    driven.step(Watch(3, 1, "/a", 0, 10.0))
    driven.put(b=b"1")
    assert driven.core.next_deadline_s == 10.0
    assert driven.step(Tick(), 9.9) == []
    assert only(driven.step(Tick(), 10.0), Answer) == Answer(3, ConfigWatchReply(1), ())


def test_a_watch_from_before_the_history_is_reset() -> None:
    driven = Driven()
    for number in range(CONFIG.history_keys_max + 1):
        driven.put(**{f"k{number}": b""})
    answer = only(driven.step(Watch(3, 1, "/", 0, 10.0)), Answer)
    assert answer.message == ConfigWatchReply(9, (), True)
    assert answer.entries is not None and len(answer.entries) == 9
    assert only(driven.step(Watch(3, 1, "/", 1, 10.0)), Answer).message == ConfigWatchReply(9, (), False)


def test_a_watch_from_another_stores_future_is_reset() -> None:
    answer = only(Driven().step(Watch(3, 1, "/", 99, 10.0)), Answer)
    assert answer.message == ConfigWatchReply(0, (), True)


def test_so_many_deletions_that_no_header_holds_them_are_a_reset() -> None:
    driven = Driven(ControllerConfig())
    names = tuple(f"/jobs/{'j' * 200}/{number:06d}" for number in range(400))
    driven.change("s", 1, ConfigChanges({}, dict.fromkeys(names, b"")))
    driven.step(Watch(3, 1, "/jobs/", 1, 10.0))
    out = driven.change("s", 2, ConfigChanges({}, {}, names))
    answers = [instruction for instruction in out if isinstance(instruction, Answer)]
    assert answers[1] == Answer(3, ConfigWatchReply(2, (), True), ())


def test_watches_are_bounded_and_end_with_their_connection() -> None:
    driven = Driven()
    for token in range(3):
        assert driven.step(Watch(token, 5, "/", 0, 10.0)) == []
    assert only(driven.step(Watch(4, 6, "/", 0, 10.0)), Refuse).code == ErrorCode.OVER_QUOTA
    out = driven.step(Disconnected(5))
    assert sorted(refuse.token for refuse in out if isinstance(refuse, Refuse)) == [0, 1, 2]
    assert driven.core.watchers == 0


# --- membership -----------------------------------------------------------------------------------------------------


def test_a_registration_that_comes_again_deposes_nobody() -> None:
    """Its key stays as it is: a new revision would tell others that the process which they know has ended."""
    driven = Driven()

    def register(process: int) -> NodeRegisterReply:
        request = NodeRegisterRequest("ps-1", "ps", (), "host/boot", 1, process=process)
        reply = only(driven.step(Register(9, 1, request)), Answer).message
        assert isinstance(reply, NodeRegisterReply)
        return reply

    first = register(77).incarnation
    revision = driven.core.state.revision_of(node_key("ps-1"))
    assert register(77).incarnation == first
    assert driven.core.state.revision_of(node_key("ps-1")) == revision
    assert register(78).incarnation > first  # a container that was started again has the same number, too


def test_registering_gives_growing_incarnations_and_a_key() -> None:
    driven = Driven()
    first = only(driven.register("ps-0"), Answer).message
    second = only(driven.register("ps-1", connection=2), Answer).message
    assert first == NodeRegisterReply(1, 1.0, 5.0, 4.0) and second == NodeRegisterReply(2, 1.0, 5.0, 4.0)
    entry = driven.core.state.get(node_key("ps-1"))
    assert entry is not None and decode(entry.value, NodeRecord).incarnation == 2


def test_a_name_of_a_living_node_is_refused_to_another_process() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    refuse = only(driven.register("ps-0", pid=2, connection=2, now=1.0), Refuse)
    assert refuse.code == ErrorCode.BAD_CONFIGURATION and "process 1 on host)" in refuse.message


def test_i8_a_restarted_process_takes_its_name_over_as_a_new_incarnation() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    driven.step(Disconnected(1), 0.05)
    waits = driven.register("ps-0", pid=2, connection=2, now=0.1)
    assert only(waits, Refuse).code == ErrorCode.NOT_READY and only(waits, Probe).record.incarnation == 1
    driven.step(Gone("ps-0", 1), 0.15)
    taken = driven.register("ps-0", pid=2, connection=2, now=0.15)
    assert only(taken, Answer).message == NodeRegisterReply(2, 1.0, 5.0, 4.0)
    stale = only(driven.step(Beacon(5, 1, "ps-0", 1), 0.2), Refuse)
    assert stale.code == ErrorCode.STALE_INCARNATION and "taken over by incarnation 2" in stale.message
    assert driven.step(Beacon(5, 2, "ps-0", 2), 0.3) == [Answer(5, Empty())]
    assert driven.step(Leave(6, "ps-0", 1), 0.3)[-1] == Answer(6, Empty())
    assert driven.keys() == ["/nodes/ps-0"]  # the old incarnation's goodbye does not remove the new one


def test_a_name_whose_process_may_still_be_there_is_free_when_its_lease_is_surely_over() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    driven.step(Disconnected(1), 1.0)
    for now in (1.0, 2.0, 3.0, 4.0, 4.9):
        driven.step(Tick(), now)
        assert only(driven.register("ps-0", pid=2, connection=2, now=now), Refuse).code == ErrorCode.NOT_READY
    driven.step(Tick(), 5.1)
    assert driven.keys() == []
    driven.register("ps-0", pid=2, connection=2, now=5.2)
    assert driven.keys() == ["/nodes/ps-0"]


def test_whoever_has_reaped_a_process_says_so_and_nobody_waits() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    out = driven.step(Leave(6, "ps-0", 1, "has ended: killed by SIGKILL"), 0.1)
    assert driven.keys() == [] and only(out, Notice).message == "ps ps-0 on host has ended: killed by SIGKILL"
    driven.register("ps-0", pid=2, connection=2, now=0.2)
    assert driven.keys() == ["/nodes/ps-0"]


def test_times_follow_from_a_lease_or_from_the_silence_after_which_a_node_is_lost() -> None:
    def times(lease_s: float | None = None, lost_after_s: float | None = None) -> tuple[float, float, float]:
        config = lease_config(lease_s, lost_after_s)
        return config.granted_s, config.lost_after_s, config.beacon_interval_s

    assert times() == (4.0, 5.0, 1.0)
    assert times(1.0) == (1.0, 1.25, 0.25)
    assert times(None, 2.5) == (2.0, 2.5, 0.5)
    assert times(4.0, 30.0) == (4.0, 30.0, 1.0)
    for lease_s, lost_after_s, complaint in (
        (4.0, 4.0, "--lost-after: found 4 seconds with a lease of 4; expected at least 4.13"),
        (0.1, None, "--lease: expected at least 0.4 seconds, found 0.1"),
        (None, 0.1, "--lost-after: expected at least 0.5 seconds, found 0.1"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            lease_config(lease_s, lost_after_s)


def test_a_node_that_misses_its_beacons_loses_its_key() -> None:
    driven = Driven()
    driven.register("ps-0")
    for second in range(1, 8):
        driven.step(Beacon(5, 1, "ps-0", 1), float(second))
        assert driven.step(Tick(), float(second)) == []
    for second in range(8, 13):
        assert driven.step(Tick(), float(second)) == []
    out = driven.step(Tick(), 12.5)
    assert driven.keys() == [] and "no beacon for 5.5 s" in only(out, Notice).message
    assert only(driven.step(Beacon(5, 1, "ps-0", 1), 13.0), Refuse).code == ErrorCode.STALE_INCARNATION


def test_nobody_is_lost_because_the_controller_itself_stood_still() -> None:
    driven = Driven()
    driven.register("ps-0")
    assert driven.step(Tick(), 60.0) == []
    assert driven.keys() == ["/nodes/ps-0"]


def test_an_ended_process_is_lost_without_waiting_unless_it_came_back() -> None:
    driven = Driven()
    driven.register("ps-0", connection=1)
    assert driven.step(Gone("ps-0", 1)) == []  # it is connected
    driven.step(Disconnected(1))
    driven.step(Beacon(5, 2, "ps-0", 1), 0.5)
    assert driven.step(Gone("ps-0", 1)) == []  # it is connected again
    driven.step(Disconnected(2))
    assert driven.step(Gone("ps-0", 0)) == []  # another incarnation
    assert only(driven.step(Gone("ps-0", 1)), Append)
    assert driven.keys() == []


def test_leaving_removes_the_key_and_tells_watchers() -> None:
    driven = Driven()
    driven.register("ps-0")
    driven.step(Watch(3, 2, "/nodes/", 1, 10.0))
    out = driven.step(Leave(6, "ps-0", 1))
    answers = {answer.token: answer for answer in out if isinstance(answer, Answer)}
    assert answers[3].message == ConfigWatchReply(2, ("/nodes/ps-0",), False) and 6 in answers
    assert only(driven.step(Leave(6, "ps-0", 1)), Answer)  # saying goodbye twice is no error


def test_a_bad_name_is_refused() -> None:
    for name in ("", "a/b", "x" * 300):
        assert only(Driven().register(name), Refuse).code == ErrorCode.BAD_CONFIGURATION


# --- restart --------------------------------------------------------------------------------------------------------


def test_i9_replay_and_snapshot_lead_to_the_same_state() -> None:
    driven = Driven()
    driven.register("ps-0")
    driven.put(a=b"1")
    half = len(driven.persisted)
    snapshot, accepted = driven.core.snapshot()
    assert accepted == ()
    driven.change("s", 1, ConfigChanges({}, {"/b": b"2"}, ("/a",)))
    driven.register("ps-1", connection=2)
    driven.step(Leave(0, "ps-0", 1))
    entries = tuple(instruction.entry for instruction in driven.persisted)
    vote = driven.core.paxos.acceptor.vote
    replayed, restored = ControllerCore(CONFIG), ControllerCore(CONFIG)
    replayed.recover(vote, None, entries, 0.0)
    restored.recover(vote, snapshot, entries[half:], 0.0)
    assert replayed.state.snapshot() == restored.state.snapshot() == driven.core.state.snapshot()
    assert list(restored.living()) == ["ps-1"]


def test_after_a_restart_incarnations_go_on_and_requests_stay_applied_once() -> None:
    driven = Driven()
    driven.register("ps-0")
    driven.step(Leave(0, "ps-0", 1))
    changes = ConfigChanges({"/a": 0}, {"/a": b"1"})
    answer = only(driven.change("s", 1, changes), Answer)
    again = Driven()
    again.core.recover(driven.core.paxos.acceptor.vote, driven.core.snapshot()[0], (), 100.0)
    assert only(again.change("s", 1, changes), Answer) == answer
    assert only(again.register("ps-0"), Answer).message == NodeRegisterReply(2, 1.0, 5.0, 4.0)


def test_after_a_restart_nodes_have_the_full_time_to_be_heard() -> None:
    driven = Driven()
    driven.register("ps-0")
    again = Driven()
    again.core.recover(driven.core.paxos.acceptor.vote, driven.core.snapshot()[0], (), 1000.0)
    assert again.core.unconnected() and again.step(Tick(), 1002.0) == []
    assert isinstance(again.step(Beacon(5, 8, "ps-0", 1), 1004.0)[0], Answer)
    assert again.core.unconnected() == []
