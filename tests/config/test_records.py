"""The configuration's records: what older ones lack, and how a bucket's record changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adamctl.config.records import (
    HISTORY_MAX,
    BucketChange,
    BucketRecord,
    DrainRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    ServedRecord,
    bucket_key,
    decode,
    default_acks,
    default_min_in_sync,
    drain_key,
    encode,
    job_key,
    layout_key,
    node_key,
    served_key,
)
from adamctl.model.layout import Owners, Tensor
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.service.validate import record_problem
from adamctl.wire.unreadable import UNREADABLE


def test_each_change_of_a_bucket_is_an_epoch_that_says_what_when_and_why() -> None:
    first = BucketRecord(1, "ps-0", ("ps-0", "ps-1", "ps-2"), (), 10.0, "the job began")
    taken = first.changed(20.0, "ps-0 is gone", primary="ps-1", in_sync=("ps-1", "ps-2"))
    assert (taken.epoch, taken.primary, taken.in_sync, taken.learners) == (2, "ps-1", ("ps-1", "ps-2"), ())
    assert (taken.since_unix_s, taken.why) == (20.0, "ps-0 is gone")
    assert taken.history == (BucketChange(2, 20.0, "ps-1 primary after ps-0, ps-0 out of sync", "ps-0 is gone"),)
    learning = taken.changed(30.0, "one copy is missing", learners=("ps-0",))
    assert learning.in_sync == ("ps-1", "ps-2")
    back = learning.changed(40.0, "it has everything", in_sync=("ps-1", "ps-2", "ps-0"), learners=())
    assert [change.what for change in back.history[1:]] == ["ps-0 learns", "ps-0 in sync"]
    assert [change.epoch for change in back.history] == [2, 3, 4]
    dropped = learning.changed(40.0, "it does not answer", learners=())
    assert dropped.history[-1].what == "ps-0 learns no more"
    assert back.changed(50.0, "fenced").history[-1].what == "nothing but the epoch"


def test_the_last_changes_are_kept() -> None:
    record = BucketRecord(1, "ps-0", ("ps-0",))
    for number in range(20):
        record = record.changed(float(number), "again", primary=f"ps-{number % 2}")
    assert [change.epoch for change in record.history] == list(range(21 - HISTORY_MAX + 1, 22))


def test_records_of_the_version_before_have_one_copy() -> None:
    old = msgspec.msgpack.encode([7, "ps-0", ["ps-0"], []])
    assert decode(old, BucketRecord) == BucketRecord(7, "ps-0", ("ps-0",))
    job = JobRecord("running", "hash", RuleConfig("sgd"), 1, acks="durable")
    values = msgspec.msgpack.decode(encode(job))
    found = decode(msgspec.msgpack.encode(values[:7]), JobRecord)
    assert (found.acks, found.replication, found.min_in_sync) == ("durable", 1, 1)


def test_what_is_acknowledged_follows_from_the_number_of_copies() -> None:
    assert [default_acks(copies) for copies in (1, 2, 3)] == ["applied", "replicated", "replicated"]
    assert [default_min_in_sync(copies) for copies in (1, 2, 3)] == [1, 1, 2]


RULE = RuleConfig("sgd")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (NodeRecord, ["a b", "ps", 1, [], "h", 1]),
        (NodeRecord, ["a", "\x1b", 1, [], "h", 1]),
        (NodeRecord, ["a", "ps", 2**64 - 1, [], "h", 1]),
        (NodeRecord, ["a", "ps", 1, ["x"] * 65, "h", 1]),
        (NodeRecord, ["a", "ps", 1, ["x" * 5000], "h", 1]),
        (NodeRecord, ["a", "ps", 1, [], "h", 1, -1]),
        (JobRecord, ["running", "h", {"name": "sgd"}, -1]),
        (JobRecord, ["running", "h", {"name": "sgd"}, 2**63]),
        (JobRecord, ["running", "h", {"name": "sgd"}, 1, "a/b"]),
        (JobRecord, ["running", "h", {"name": "sgd"}, 1, "", "a\0b"]),
        (JobRecord, ["running", "h", {"name": "sgd"}, 1, "", "", "applied", 4]),
        (JobRecord, ["running", "h", {"name": "sgd"}, 1, "", "", "applied", 2, 3]),
        (JobRecord, ["running", "h", {"name": "sgd"}, 1, "", "", "applied", 2, 0]),
        (BucketRecord, [2**64 - 1, "a"]),
        (BucketRecord, [-1, "a"]),
        (BucketRecord, [1, ""]),
        (BucketRecord, [1, "a", ["a", "a"]]),
        (BucketRecord, [1, "a", ["a"], ["\n"]]),
        (BucketRecord, [1, "a", ["a"], [], 1e300]),
        (BucketRecord, [1, "a", ["a"], [], 1.0, "", [[1, float("nan"), "", ""]]]),
        (DrainRecord, [2**63, 1.0]),
        (ServedRecord, [2**64 - 1]),
    ],
)
def test_a_record_out_of_its_bounds_is_none(kind: type[Any], values: list[object]) -> None:
    with pytest.raises(UNREADABLE):
        decode(msgspec.msgpack.encode(values), kind)
    problem = record_problem(KEYS[kind], msgspec.msgpack.encode(values))
    assert kind.__name__ in problem


KEYS: dict[type, str] = {
    NodeRecord: node_key("a"),
    JobRecord: job_key("j"),
    BucketRecord: bucket_key("j", 3),
    DrainRecord: drain_key("a"),
    ServedRecord: served_key("j", "a"),
    LayoutRecord: layout_key("j"),
}


def test_controllers_know_which_record_belongs_under_a_key() -> None:
    good: dict[type, Any] = {
        NodeRecord: NodeRecord("a", "ps", 1, ("tcp://h:1",), "h", 1),
        JobRecord: JobRecord("running", "h", RULE, 1),
        BucketRecord: BucketRecord(1, "a"),
        DrainRecord: DrainRecord(1, 1.0),
        ServedRecord: ServedRecord(1),
        LayoutRecord: LayoutRecord((Tensor("t", 0, (2, 3), 0, "zeros", 0.0),), 1, Owners(2, (((0, 1, 1), (1, 2, 0)),))),
    }
    for kind, key in KEYS.items():
        assert record_problem(key, encode(good[kind])) == ""
        assert record_problem(key, b"\xc1") != ""
    bad = LayoutRecord((Tensor("t", 0, (1, 0), 0, "zeros", 0.0),), 1)
    assert "LayoutRecord" in record_problem(KEYS[LayoutRecord], encode(bad))
    assert record_problem("/jobs/j/of/others", b"\xc1") == ""


def test_nodes_of_one_machine_fail_together_unless_they_are_told_with_what() -> None:
    def record(host: str, failure_domain: str = "") -> NodeRecord:
        return NodeRecord("ps-1", "ps", 1, (), host, 1, failure_domain=failure_domain)

    assert record("pod-a/boot-1").fails_with == record("pod-b/boot-1").fails_with, "containers of one machine"
    assert record("a/boot-1").fails_with != record("a/boot-2").fails_with
    assert record("a/boot-1", "rack-7").fails_with == record("b/boot-2", "rack-7").fails_with == "rack-7"
    assert record("h").fails_with == "h"
    assert decode(encode(record("h", "rack-7")), NodeRecord) == record("h", "rack-7")
    for wrong in ("a rack", "\x1b[2J", "x" * 200):
        with pytest.raises(ValueError, match="failure_domain"):
            record("h", wrong)
