"""A backup restored onto new controllers: nothing that was ever issued or seen comes again."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.config.records import (
    LEAP,
    NUMBER_MAX,
    BucketRecord,
    JobRecord,
    LayoutRecord,
    bucket_key,
    decode,
    encode,
    job_key,
    layout_key,
    node_key,
)
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.instructions import Answer, Instruction, Refuse
from adamctl.roles.controller.core.service.backup import (
    Backup,
    decode_backup,
    raised_to_clock,
    restored,
)
from adamctl.roles.controller.core.service.commands import Restore, carry_out
from adamctl.roles.controller.core.service.events import (
    Beacon,
    CompareAndSet,
    Read,
    RestoreBackup,
    TakeBackup,
    Tick,
    Watch,
)
from adamctl.roles.controller.core.service.state import KeyState, snapshot_problem
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigEntry,
    ConfigReadReply,
    ConfigWatchReply,
    ControllerRestoreReply,
    NodeRegisterReply,
)
from adamctl.wire.unreadable import UNREADABLE
from tests.roles.controller.core.paxos.test_paxos_core import Three
from tests.roles.controller.driven_core import Driven, only
from tests.roles.ps.ps_cluster import make_tensors

BUCKET = bucket_key("j", 0)


def used() -> Driven:
    """Controllers that have a job, and two nodes."""
    driven = Driven()
    for node in ("ps-0", "ps-1"):
        driven.register(node)
    layout = LayoutRecord(make_tensors(((4, 4),)), 1)
    job = JobRecord("running", layout.layout().hash, RuleConfig("sgd"), 1, "c-0")
    puts = {job_key("j"): encode(job), layout_key("j"): encode(layout), BUCKET: encode(BucketRecord(7, "ps-0"))}
    driven.change("s", 1, ConfigChanges({}, puts))
    return driven


def backup_of(driven: Driven) -> bytes:
    (entry,) = only(driven.step(TakeBackup(1)), Answer).entries or ()
    return entry.value


def told(out: list[Instruction]) -> ControllerRestoreReply:
    message = only(out, Answer).message
    assert isinstance(message, ControllerRestoreReply)
    return message


def test_all_numbers_are_above_those_of_both_clusters() -> None:
    old, new = used(), Driven()
    backup = backup_of(old)
    for count in range(5):
        new.register(f"early-{count}")
    for state in (old.core.state, new.core.state):
        assert state.revision < LEAP and state.incarnation < LEAP
    reply = told(new.step(RestoreBackup(2, backup)))
    state = new.core.state
    assert reply.left_out == () and (reply.revision, reply.incarnation) == (state.revision, state.incarnation)
    most = max(old.core.state.revision, 5), max(old.core.state.incarnation, 5)
    assert (state.revision, state.incarnation) == (most[0] + LEAP, most[1] + LEAP)
    assert state.serial == state.forgotten_serial > LEAP
    assert new.keys() == [job_key("j"), BUCKET, layout_key("j")], "no node is one any more"
    assert state.revision_of(BUCKET) == state.revision
    for key in (job_key("j"), layout_key("j")):
        assert state.revision_of(key) == old.core.state.revision_of(key), "servers know a job by its layout's"
    entry = state.get(BUCKET)
    assert entry is not None and decode(entry.value, BucketRecord) == BucketRecord(7 + LEAP, "ps-0")
    (joined,) = (one.message for one in new.register("ps-0") if isinstance(one, Answer))
    assert isinstance(joined, NodeRegisterReply) and joined.incarnation == most[1] + LEAP + 1
    assert joined.cluster == old.core.cluster == new.core.cluster


def test_a_backup_that_is_restored_again_is_above_all_that_the_first_restore_gave_rise_to() -> None:
    """Also an older one; and one of what the first was restored to."""
    old = used()
    first_backup = backup_of(old)
    clock_s, before = 1.7e9, (0, 0, 0, 0)
    later_backup = first_backup
    for backup in (first_backup, first_backup, later_backup, first_backup):
        clock_s += 150.0
        new = Driven()
        told(new.step(RestoreBackup(2, raised_to_clock(decode_backup(backup), clock_s))))
        entry, state = new.core.state.get(BUCKET), new.core.state
        assert entry is not None
        numbers = (state.revision, state.incarnation, state.serial, decode(entry.value, BucketRecord).epoch)
        assert all(now > earlier + LEAP // 2 for now, earlier in zip(numbers, before, strict=True))
        before, later_backup = numbers, backup_of(new)


def test_what_a_clock_cannot_be_and_what_is_no_record_is_left_alone() -> None:
    found = decode_backup(backup_of(used()))
    assert decode_backup(raised_to_clock(found, -5.0)) == found
    poison = ConfigEntry(job_key("k"), b"\xc1", 1)
    raised = decode_backup(raised_to_clock(msgspec.structs.replace(found, entries=(poison,)), 1.7e9))
    assert raised.entries == (poison,)
    with pytest.raises(ValueError, match="expected a clock before"):
        raised_to_clock(found, 1e12)


def test_nobody_goes_on_from_before() -> None:
    """Nodes start over, conditions fail, sessions are not known, and whoever watches is told everything."""
    old, new = used(), Driven()
    backup = backup_of(old)
    new.register("ps-0", connection=3)
    watched = new.core.state.revision
    assert not new.step(Watch(5, 9, "/jobs/", watched, 60.0))
    out = new.step(RestoreBackup(2, backup))
    (seen,) = (one for one in out if isinstance(one, Answer) and one.token == 5)
    assert isinstance(seen.message, ConfigWatchReply) and seen.message.reset and len(seen.entries or ()) == 3
    refused = only(new.step(Beacon(6, 3, "ps-0", 1)), Refuse)
    assert refused.code == ErrorCode.STALE_INCARNATION
    refused = only(new.step(CompareAndSet(7, "s", 2, ConfigChanges({}, {}, (BUCKET,)), 0)), Refuse)
    assert refused.code == ErrorCode.CLIENT_EVICTED
    before = old.core.state.revision_of(BUCKET)
    message = only(new.change("t", 1, ConfigChanges({BUCKET: before}, {}, (BUCKET,))), Answer).message
    assert isinstance(message, ConfigCompareAndSetReply) and message.conflicts == (BUCKET,)


def test_a_restore_that_is_repeated_is_done_once_and_another_is_refused() -> None:
    old, new = used(), Driven()
    backup = backup_of(old)
    first = told(new.step(RestoreBackup(2, backup)))
    assert told(new.step(RestoreBackup(3, backup))).revision == first.revision == new.core.state.revision
    old.put(x=b"1")
    refused = only(new.step(RestoreBackup(4, backup_of(old))), Refuse)
    assert refused.code == ErrorCode.BAD_CONFIGURATION
    assert refused.message.startswith("a backup has been restored here already")


def test_controllers_that_have_a_job_are_not_restored_onto() -> None:
    driven = used()
    backup = backup_of(driven)
    before, persisted = driven.core.state.snapshot(), len(driven.persisted)
    refused = only(driven.step(RestoreBackup(2, backup)), Refuse)
    assert refused.code == ErrorCode.BAD_CONFIGURATION
    assert "expected new controllers, without any job; found '/jobs/j'; start new ones" in refused.message
    assert driven.core.state.snapshot() == before and len(driven.persisted) == persisted


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(["c", 1, 2, 3])])
def test_what_is_no_backup_changes_nothing(data: bytes) -> None:
    driven = Driven()
    refused = only(driven.step(RestoreBackup(2, data)), Refuse)
    assert refused.code == ErrorCode.BAD_MESSAGE and not driven.persisted


def test_a_backup_with_impossible_numbers_is_refused() -> None:
    state = KeyState()
    entry = ConfigEntry("/retired", b"", 1)
    for backup in (
        Backup("c", NUMBER_MAX, 1, 1, ()),
        Backup("c", 1, NUMBER_MAX - LEAP + 1, 1, ()),
        Backup("c", -1, 1, 1, ()),
        Backup("c\x1b", 1, 1, 1, ()),
        Backup("c" * 65, 1, 1, 1, ()),
        Backup("c", 0, 1, 1, (entry,)),
    ):
        outcome = carry_out(state, Restore(msgspec.msgpack.encode(backup)))
        assert outcome.code == ErrorCode.BAD_MESSAGE and state.snapshot() == KeyState().snapshot(), backup
        with pytest.raises(UNREADABLE):
            restored(decode_backup(msgspec.msgpack.encode(backup)), state, "x")


def test_a_key_that_nobody_can_read_is_left_out_and_named() -> None:
    old = used()
    found = decode_backup(backup_of(old))
    high = encode(BucketRecord(NUMBER_MAX, "ps-0"))
    poison = (ConfigEntry(job_key("k"), b"\xc1", 1), ConfigEntry(bucket_key("j", 1), high, 1))
    poisoned = msgspec.structs.replace(found, entries=(*found.entries, *poison))
    reply = told(Driven().step(RestoreBackup(2, msgspec.msgpack.encode(poisoned))))
    assert reply.left_out == (job_key("k"), bucket_key("j", 1))


def test_all_members_agree_on_it_and_a_follower_names_the_leader() -> None:
    three = Three()
    backup = backup_of(used())
    (refused,) = (one for one in three.step("b", RestoreBackup(1, backup)) if isinstance(one, Refuse))
    assert refused.code == ErrorCode.NOT_LEADER and refused.details == {"leader": "a"}
    (refused,) = (one for one in three.step("c", TakeBackup(1)) if isinstance(one, Refuse))
    assert refused.code == ErrorCode.NOT_LEADER
    assert any(isinstance(one, Answer) for one in three.step("a", RestoreBackup(2, backup)))
    three.wait(1.0)
    states = {name: core.encode_state() for name, core in three.cores.items()}
    assert len(set(states.values())) == 1 and three.cores["b"].cluster == decode_backup(backup).cluster
    assert snapshot_problem(three.cores["c"].state.snapshot()) == ""


def test_what_was_restored_is_there_after_a_start_and_time_goes_on() -> None:
    """The leap in incarnations is no list of those that have gone."""
    new = Driven()
    new.step(RestoreBackup(2, backup_of(used())))
    again = Driven()
    again.core.recover(new.core.paxos.acceptor.vote, None, [one.entry for one in new.persisted], 0.0)
    assert again.core.state.snapshot() == new.core.state.snapshot()
    for driven in (new, again):
        for second in range(1, 2000, 100):
            driven.step(Tick(), float(second))
        answer = only(driven.step(Read(9, "/"), 2000.0), Answer)
        assert isinstance(answer.message, ConfigReadReply) and answer.message.revision > LEAP
        assert node_key("ps-0") not in [entry.key for entry in answer.entries or ()]
