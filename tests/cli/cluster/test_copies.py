"""`shards`, `events` and `drain`: what the records say, and the commands on a living cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec import structs

from adamctl.cli.cluster.copies import events, holdings, sharing
from adamctl.cli.cluster.events import line
from adamctl.cli.cluster.shards import rows, summary
from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    encode,
    job_key,
    layout_key,
    node_key,
)
from adamctl.errors import DamagedDataError
from adamctl.model.layout import Tensor, cut_layout
from adamctl.model.rule import RuleConfig
from adamctl.wire.messages import ConfigEntry
from tests.cli.cluster.test_state import adamctl, controller_and

TENSORS = (Tensor("weight", 0, (40, 100), 0, "zeros", 0.0),)
LAYOUT = cut_layout(TENSORS, 1)


def entry(key: str, value: bytes) -> ConfigEntry:
    return ConfigEntry(key, value, 1)


def job_entries(name: str, record: BucketRecord, state: str = "running") -> list[ConfigEntry]:
    job = JobRecord(state, LAYOUT.hash, RuleConfig("add"), 1, replication=3)  # type: ignore[arg-type]
    keys = [entry(job_key(name), encode(job)), entry(layout_key(name), encode(LayoutRecord(TENSORS, 1)))]
    return keys + [entry(bucket_key(name, bucket.index), encode(record)) for bucket in LAYOUT.buckets]


def node_entries(*names: str) -> list[ConfigEntry]:
    return [entry(node_key(name), encode(NodeRecord(name, "ps", 1, (), "host", 1))) for name in names]


def test_what_is_wrong_with_a_bucket() -> None:
    record = BucketRecord(4, "a", ("a", "b", "c"))
    entries = job_entries("one", record) + job_entries("over", record, state="ended")
    found = holdings(entries, node_entries("a", "b", "c"))
    assert len(found) == len(LAYOUT.buckets) and {one.job for one in found} == {"one"}
    assert sum(one.size_bytes for one in found) == 40 * 100 * 4
    assert not any(one.problem for one in found)
    assert summary(found) == f"{len(found)} buckets, each with its primary and all copies"
    assert {one.problem for one in holdings(entries, node_entries("a", "b"))} == {"2 of 3 copies"}
    lost = holdings(entries, node_entries("b", "c"))
    assert {one.problem for one in lost} == {"its primary a is gone"}
    assert summary(lost) == f"{len(lost)} buckets, {len(lost)} of them without all copies"
    assert holdings(entries, (), job="another") == []


def test_copies_that_have_to_share_a_machine() -> None:
    entries = job_entries("one", BucketRecord(4, "a", ("a", "b"))) + job_entries("over", BucketRecord(1, "a"), "ended")
    members = [NodeRecord(name, "ps", 1, (), "host", 1) for name in "abc"]
    (line,) = sharing(entries, members)
    assert line == (
        "job one: 1 failure domain for 3 copies, so copies share one and are lost with it; "
        "start parameter servers on other machines"
    )
    elsewhere = [structs.replace(record, failure_domain=f"rack-{record.node}") for record in members]
    assert sharing(entries, elsewhere) == [] == sharing(entries, [])
    worker = NodeRecord("w", "worker", 1, (), "other", 1)
    assert "2 failure domains for 3 copies" in sharing(entries, [*elsewhere[:2], worker])[0]


def test_a_row_of_a_bucket() -> None:
    record = BucketRecord(1, "a", ("a", "b")).changed(100.0, "c has come", learners=("c",))
    (row, *_) = rows(holdings(job_entries("one", record), node_entries("a", "b", "c")), 161.0)
    assert row[0] == "one" and row[4:] == ("2", "a", "b", "c", "1 min 01 s", "2 of 3 copies; c has come")


def test_buckets_that_change_together_are_one_event() -> None:
    first = BucketRecord(1, "a", ("a", "b", "c"))
    second = first.changed(100.0, "a is gone", primary="b", in_sync=("b", "c"))
    entries = job_entries("one", second.changed(200.0, "a is back", learners=("a",)))
    found = events(entries)
    assert [(event.unix_s, event.what, event.why) for event in found] == [
        (100.0, "b primary after a, a out of sync", "a is gone"),
        (200.0, "a learns", "a is back"),
    ]
    assert found[0].buckets == tuple(range(len(LAYOUT.buckets)))
    assert line(found[1]).endswith(f"one, buckets 0-{len(LAYOUT.buckets) - 1}: a learns (a is back)")
    assert events(entries, "another") == []


def test_the_same_thing_later_is_another_event() -> None:
    record = BucketRecord(1, "a", ("a", "b")).changed(100.0, "why", in_sync=("a",))
    record = record.changed(101.0, "back", in_sync=("a", "b")).changed(300.0, "why", in_sync=("a",))
    found = events([entry(bucket_key("one", 0), encode(record))])
    assert [event.unix_s for event in found] == [100.0, 101.0, 300.0]


def test_a_job_whose_records_cannot_be_read_is_not_left_out_in_silence() -> None:
    good = job_entries("one", BucketRecord(1, "a", ("a",)))
    entries = [*good, entry(job_key("two"), good[0].value), entry(layout_key("two"), b"no layout")]
    assert len(holdings(entries, (), "one")) == len(LAYOUT.buckets)
    with pytest.raises(DamagedDataError, match="records of job 'two' cannot be read"):
        holdings(entries, ())


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with controller_and("ps", tmp_path_factory.mktemp("controller")) as address:
        yield address


def test_commands_where_there_is_no_job(controller: str) -> None:
    common = ("--controller", controller)
    assert adamctl("shards", *common).stdout == "no buckets\n"
    assert json.loads(adamctl("shards", *common, "--json").stdout)["buckets"] == []
    assert adamctl("shards", *common, "--check").returncode == 0
    assert json.loads(adamctl("events", *common, "--json").stdout)["events"] == []


def test_draining_a_server_that_holds_nothing(controller: str) -> None:
    common = ("--controller", controller)
    assert adamctl("drain", "ps-1", *common).stdout == "ps-1 holds nothing now; it can be stopped\n"
    assert adamctl("drain", "ps-1", *common, "--undo").stdout == "ps-1 can hold buckets again\n"
    done, undone = adamctl("events", *common).stdout.splitlines()[-2:]
    assert "front/front-" in done and done.endswith(": CONFIG_COMPARE_AND_SET puts=['/drains/ps-1']: done")
    assert undone.endswith(": CONFIG_COMPARE_AND_SET deletes=['/drains/ps-1']: done")
    told = json.loads(adamctl("events", *common, "--json").stdout)["administration"]
    assert [one["what"] for one in told[-2:]] == [{"puts": ["/drains/ps-1"]}, {"deletes": ["/drains/ps-1"]}]
    unknown = adamctl("drain", "ps-9", *common)
    assert unknown.returncode == 2
    assert "NODE: expected the name of a live parameter server (ps-1); found 'ps-9'" in unknown.stderr


def test_names_that_nobody_has(controller: str) -> None:
    common = ("--controller", controller)
    job = adamctl("shards", *common, "--job", "no", "--check")
    assert job.returncode == 2 and "--job: expected a running job; found 'no' (running: none)" in job.stderr
    node = adamctl("shards", *common, "--node", "ps-9")
    assert node.stdout == "no buckets\n"
    assert node.stderr == "no live parameter server is called 'ps-9'; live ones: ps-1\n"
    assert adamctl("shards", *common, "--node", "ps-1").stderr == ""
    events_of = adamctl("events", *common, "--job", "no")
    assert events_of.returncode == 2
    assert "--job: expected an existing job; found 'no' (jobs: none)" in events_of.stderr
