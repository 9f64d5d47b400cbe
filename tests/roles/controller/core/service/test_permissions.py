"""Who may change which key."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace

from adamctl.config.records import (
    BucketRecord,
    DrainRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    ServedRecord,
    bucket_key,
    decode,
    drain_key,
    encode,
    job_key,
    layout_key,
    node_key,
    served_key,
)
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.instructions import Answer, Instruction, Refuse
from adamctl.roles.controller.core.service.events import CompareAndSet, Disconnected, Read, Watch
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply, ConfigWatchReply
from tests.roles.controller.core.paxos.test_paxos_core import Three
from tests.roles.controller.driven_core import Driven, only
from tests.roles.ps.ps_cluster import make_tensors

NODE = encode(NodeRecord("ps-0", "ps", 1, (), "h", 1))
BUCKET = encode(BucketRecord(1, "ps-0"))
SERVED = encode(ServedRecord(1))
DRAIN = encode(DrainRecord(1, 1.0))


LAYOUT = encode(LayoutRecord(make_tensors(((4, 4),)), 1))


def job(coordinator: str = "", state: Literal["running", "ended"] = "running") -> bytes:
    return encode(JobRecord(state, "h", RuleConfig("sgd"), 1, coordinator))


def asked(driven: Driven, role: str, node: str, changes: ConfigChanges) -> list[Instruction]:
    driven.sequence += 1
    return driven.step(CompareAndSet(7, f"s{driven.sequence}", 1, changes, driven.core.state.serial, role, node))


def allowed(driven: Driven, role: str, node: str, changes: ConfigChanges) -> bool:
    before = driven.core.state.revision
    out = asked(driven, role, node, changes)
    refused = [one for one in out if isinstance(one, Refuse)]
    if refused:
        assert refused[0].code == ErrorCode.NOT_ALLOWED and driven.core.state.revision == before
        return False
    message = only(out, Answer).message
    assert isinstance(message, ConfigCompareAndSetReply) and not message.conflicts
    return True


@pytest.mark.parametrize("role", ["ps", "worker", "data", "coordinator", "client", "front", "controller", "greeter"])
def test_nobody_writes_or_deletes_a_node(role: str) -> None:
    driven = Driven()
    assert not allowed(driven, role, "ps-0", ConfigChanges({}, {node_key("ps-0"): NODE}))
    driven.register("ps-0")
    assert not allowed(driven, role, "ps-0", ConfigChanges({}, {}, (node_key("ps-0"),)))


def set_up(driven: Driven, puts: dict[str, bytes]) -> None:
    """Writes as the controllers themselves do, whom nobody asks."""
    assert allowed(driven, "", "", ConfigChanges({}, puts))


@pytest.mark.parametrize(
    ("key", "value", "who"),
    [
        (bucket_key("j", 0), encode(BucketRecord(2, "ps-0")), {"ps", "coordinator", "front", "operator"}),
        (bucket_key("j", 1), BUCKET, {"ps", "coordinator"}),
        (served_key("j", "ps-0"), SERVED, {"ps", "coordinator"}),
        (served_key("j", "ps-1"), SERVED, {"coordinator"}),
        (layout_key("j"), LAYOUT, {"coordinator"}),
        (job_key("j"), job("c-0"), {"coordinator"}),
        (job_key("j"), job("c-0", "ended"), {"coordinator", "front", "operator"}),
        (job_key("j"), job("c-1"), set()),
        (job_key("j"), job("c-1", "ended"), set()),
        (job_key("k"), job("c-1"), set()),
        (drain_key("ps-0"), DRAIN, {"ps", "front", "operator"}),
        (drain_key("ps-1"), DRAIN, {"front", "operator"}),
        ("/other", b"", set()),
        ("/jobs/", b"", set()),
    ],
)
def test_who_may_change_the_keys_of_a_job(key: str, value: bytes, who: set[str]) -> None:
    roles = {"ps": "ps-0", "coordinator": "c-0", "client": "client-1", "worker": "w", "front": "f", "data": "d"}
    for role, node in (roles | {"operator": "o"}).items():
        driven = Driven()
        driven.register("c-0")
        set_up(driven, {job_key("j"): job("c-0"), bucket_key("j", 0): BUCKET})
        assert allowed(driven, role, node, ConfigChanges({}, {key: value})) is (role in who), role


@pytest.mark.parametrize("role", ["front", "operator"])
def test_an_operator_deletes_drains_and_nothing_else(role: str) -> None:
    driven, drain = Driven(), drain_key("ps-0")
    keys = {job_key("j"): job("c-0"), bucket_key("j", 0): BUCKET, layout_key("j"): LAYOUT}
    set_up(driven, keys | {drain: DRAIN})
    for key in keys:
        assert not allowed(driven, role, "f", ConfigChanges({}, {}, (key,)))
    assert allowed(driven, role, "f", ConfigChanges({}, {}, (drain,)))


def test_a_coordinator_reaches_into_no_other_job() -> None:
    driven = Driven()
    created = ConfigChanges({job_key("j"): 0}, {job_key("j"): job("c-0"), bucket_key("j", 0): BUCKET})
    assert allowed(driven, "coordinator", "c-0", created)
    assert not allowed(driven, "coordinator", "c-1", ConfigChanges({}, {bucket_key("j", 0): BUCKET}))
    assert not allowed(driven, "coordinator", "c-1", ConfigChanges({}, {job_key("j"): job("c-1")}))
    assert not allowed(driven, "coordinator", "c-1", ConfigChanges({}, {}, (job_key("j"),)))
    mixed = ConfigChanges({job_key("k"): 0}, {job_key("k"): job("c-1"), bucket_key("j", 0): BUCKET})
    assert not allowed(driven, "coordinator", "c-1", mixed)


def test_who_creates_a_job_writes_all_of_it_and_says_that_it_is_new() -> None:
    for role, node, record in (("coordinator", "c-0", job("c-0")), ("client", "client-1", job())):
        puts = {job_key("j"): record, bucket_key("j", 0): BUCKET}
        assert not allowed(Driven(), role, node, ConfigChanges({}, puts))
        assert not allowed(Driven(), role, node, ConfigChanges({}, {bucket_key("j", 0): BUCKET}))
        assert allowed(Driven(), role, node, ConfigChanges({job_key("j"): 0}, puts))


def test_a_client_ends_a_job_that_no_coordinator_keeps_and_changes_nothing_else() -> None:
    driven = Driven()
    for number, maker in enumerate(("client-1", "c-0")):
        name = f"j{number}"
        set_up(driven, {job_key(name): job(maker), bucket_key(name, 0): BUCKET})
    driven.register("c-0")
    ended = encode(replace(decode(job("client-1"), JobRecord), state="ended"))
    for changes in (
        ConfigChanges({}, {job_key("j0"): encode(replace(decode(ended, JobRecord), seed=2))}),
        ConfigChanges({}, {job_key("j0"): ended, bucket_key("j0", 0): BUCKET}),
        ConfigChanges({}, {job_key("j0"): ended}, (bucket_key("j0", 0),)),
        ConfigChanges({}, {job_key("j1"): encode(replace(decode(job("c-0"), JobRecord), state="ended"))}),
        ConfigChanges({}, {job_key("j2"): ended}),
    ):
        assert not allowed(driven, "client", "client-2", changes)
    assert not allowed(driven, "worker", "w", ConfigChanges({}, {job_key("j0"): ended}))
    assert allowed(driven, "client", "client-2", ConfigChanges({}, {job_key("j0"): ended}))


def test_a_name_that_is_taken_is_a_conflict() -> None:
    driven = Driven()
    for node in ("c-0", "c-1"):
        out = asked(driven, "coordinator", node, ConfigChanges({job_key("j"): 0}, {job_key("j"): job(node)}))
        message = only(out, Answer).message
        assert isinstance(message, ConfigCompareAndSetReply)
        assert message.conflicts == (() if node == "c-0" else (job_key("j"),))


def test_a_follower_says_who_leads_and_judges_nothing() -> None:
    three = Three()
    put = CompareAndSet(1, "s", 1, ConfigChanges({}, {node_key("ps-0"): NODE}), 0, "ps", "ps-0")
    (follower,) = (one for one in three.step("b", put) if isinstance(one, Refuse))
    (leader,) = (one for one in three.step("a", put) if isinstance(one, Refuse))
    assert (follower.code, leader.code) == (ErrorCode.NOT_LEADER, ErrorCode.NOT_ALLOWED)


def read(driven: Driven, role: str, prefix: str, connection: int = 5) -> list[str] | str:
    """Returns the keys that a role is shown, or why it is refused."""
    (answer,) = driven.step(Read(3, prefix, role, connection))
    if isinstance(answer, Refuse):
        assert answer.code == ErrorCode.NOT_ALLOWED
        return answer.message
    assert isinstance(answer, Answer) and answer.entries is not None
    return [entry.key for entry in answer.entries]


def two_jobs() -> Driven:
    driven = Driven()
    for name in ("a", "a~2", "ab"):
        puts = {job_key(name): job("c-0"), bucket_key(name, 0): BUCKET, served_key(name, "ps-0"): SERVED}
        set_up(driven, puts)
    driven.register("ps-0")
    return driven


def test_a_worker_that_looks_for_a_run_sees_the_records_of_jobs_and_nothing_below() -> None:
    driven = two_jobs()
    assert read(driven, "worker", "/jobs/") == ["/jobs/a", "/jobs/ab", "/jobs/a~2"]
    assert read(driven, "worker", "/nodes/") == ["/nodes/ps-0"]
    assert len(read(driven, "ps", "/jobs/")) == len(read(driven, "", "/jobs/")) == 9


@pytest.mark.parametrize("role", ["worker", "client"])
def test_a_trainer_that_reads_a_job_sees_no_other_job_whose_name_begins_alike(role: str) -> None:
    found = read(two_jobs(), role, "/jobs/a")
    assert found == [f"/jobs/a{more}" for more in ("", "/buckets/000000", "/served/ps-0")] + [
        f"/jobs/a~2{more}" for more in ("", "/buckets/000000", "/served/ps-0")
    ]


def test_a_clients_connection_is_for_one_job() -> None:
    driven = two_jobs()
    assert len(read(driven, "client", "/jobs/ab")) == 3
    assert read(driven, "client", "/jobs/ab/buckets/") == ["/jobs/ab/buckets/000000"]
    assert read(driven, "client", "/jobs/a") == (
        "this connection is for job 'ab'; a client reads of no other; found 'a'"
    )
    assert read(driven, "client", "/nodes/") == ["/nodes/ps-0"]
    assert len(read(driven, "client", "/jobs/a", connection=6)) == 6
    driven.step(Disconnected(5))
    assert len(read(driven, "client", "/jobs/a")) == 6


def test_a_worker_goes_from_run_to_run_over_one_connection() -> None:
    driven = two_jobs()
    for name, count in (("a", 6), ("ab", 3)):
        assert len(read(driven, "worker", f"/jobs/{name}")) == count


def test_a_watch_tells_a_trainer_of_nothing_that_it_does_not_see() -> None:
    driven = two_jobs()
    revision = driven.core.state.revision
    assert not driven.step(Watch(4, 5, "/jobs/", revision, 60.0, "worker"))
    put = ConfigChanges({}, {bucket_key("ab", 0): encode(BucketRecord(2, "ps-0"))}, (served_key("a", "ps-0"),))
    assert not [one for one in asked(driven, "", "", put) if isinstance(one, Answer) and one.token == 4]
    put = ConfigChanges({}, {job_key("ab"): job("c-0"), bucket_key("ab", 0): encode(BucketRecord(3, "ps-0"))})
    (told,) = (one for one in asked(driven, "", "", put) if isinstance(one, Answer) and one.token == 4)
    assert told.entries is not None and [entry.key for entry in told.entries] == ["/jobs/ab"]
    assert isinstance(told.message, ConfigWatchReply) and told.message.deleted == ()


@pytest.mark.parametrize("role", ["ps", "front", "coordinator"])
def test_no_epoch_goes_back_and_none_stays(role: str) -> None:
    driven, key = Driven(), bucket_key("j", 0)
    node = {"coordinator": "c-0"}.get(role, role)
    puts = {job_key("j"): job("c-0"), key: encode(BucketRecord(7, "ps-0"))}
    set_up(driven, puts)
    revision = driven.core.state.revision_of(key)
    for epoch in (6, 7):
        for conditions in ({}, {key: revision}):
            put = ConfigChanges(conditions, {key: encode(BucketRecord(epoch, "ps-1"))})
            (refused,) = (one for one in asked(driven, role, node, put) if isinstance(one, Refuse))
            assert refused.code == ErrorCode.NOT_ALLOWED
            assert refused.message == f"/jobs/j/buckets/000000: expected an epoch above 7; found {epoch}"
    late = ConfigChanges({key: revision - 1}, {key: encode(BucketRecord(7, "ps-1"))})
    message = only(asked(driven, role, node, late), Answer).message
    assert isinstance(message, ConfigCompareAndSetReply) and message.conflicts == (key,)
    assert allowed(driven, role, node, ConfigChanges({key: revision}, {key: encode(BucketRecord(8, "ps-1"))}))
