"""The configuration's records: what older ones lack, and how a bucket's record changes."""

from __future__ import annotations

import msgspec

from adamctl.config.records import (
    HISTORY_MAX,
    BucketChange,
    BucketRecord,
    JobRecord,
    decode,
    default_acks,
    default_min_in_sync,
    encode,
)
from adamctl.model.rule import RuleConfig


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
