"""The configuration service's core, event by event: keys, watches, and what a restart finds."""

from __future__ import annotations

from adamctl.roles.controller.core.instructions import Answer, Append, Refuse
from adamctl.roles.controller.core.paxos.forming import cluster_identity
from adamctl.roles.controller.core.service.controller_core import ControllerConfig, ControllerCore
from adamctl.roles.controller.core.service.events import Beacon, CompareAndSet, Disconnected, Leave, Read, Tick, Watch
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply, ConfigWatchReply, NodeRegisterReply
from tests.roles.controller.driven_core import CONFIG, Driven, only

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
    refuse = only(driven.step(Watch(4, 6, "/", 0, 10.0)), Refuse)
    assert refuse.code == ErrorCode.NOT_READY, "clients try again"
    out = driven.step(Disconnected(5))
    assert sorted(refuse.token for refuse in out if isinstance(refuse, Refuse)) == [0, 1, 2]
    assert driven.core.watchers == 0


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
    cluster = cluster_identity(driven.core.paxos.acceptor.vote.cluster)
    assert only(again.register("ps-0"), Answer).message == NodeRegisterReply(2, 1.0, 5.0, 4.0, cluster)


def test_after_a_restart_nodes_have_the_full_time_to_be_heard() -> None:
    driven = Driven()
    driven.register("ps-0")
    again = Driven()
    again.core.recover(driven.core.paxos.acceptor.vote, driven.core.snapshot()[0], (), 1000.0)
    assert again.core.unconnected() and again.step(Tick(), 1002.0) == []
    assert isinstance(again.step(Beacon(5, 8, "ps-0", 1), 1004.0)[0], Answer)
    assert again.core.unconnected() == []
