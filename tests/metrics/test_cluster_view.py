"""The view of a cluster: from changes of the configuration to nodes, restarts and the state of copies."""

from __future__ import annotations

import msgspec

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    job_key,
    layout_key,
)
from adamctl.metrics.cluster_view import NAMES_MAX, ClusterView
from adamctl.metrics.samples import JobReading
from adamctl.model.rule import RuleConfig
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry
from tests.roles.ps.ps_cluster import make_tensors


def entry(key: str, record: msgspec.Struct, revision: int = 1) -> ConfigEntry:
    return ConfigEntry(key, msgspec.msgpack.encode(record), revision)


def node(name: str, incarnation: int = 1, role: str = "ps") -> ConfigEntry:
    return entry(f"/nodes/{name}", NodeRecord(name, role, incarnation, ("tcp://127.0.0.1:1",), "h", 1))


def test_a_node_that_comes_back_as_another_process_has_restarted() -> None:
    view = ClusterView()
    view.take_nodes(Changes(1, (node("a"), node("b")), (), True))
    assert [record.node for record in view.nodes] == ["a", "b"] and view.restarts("a") == 0
    view.take_nodes(Changes(2, (), ("/nodes/a",)))
    assert [record.node for record in view.nodes] == ["b"] and view.counts() == {"ps": 1}
    view.take_nodes(Changes(3, (node("a", 2),)))
    view.take_nodes(Changes(4, (node("a", 2), node("b", 1)), (), True))
    assert view.restarts("a") == 1 and view.restarts("b") == 0
    view.take_nodes(Changes(5, (), ("/nodes/a", "/nodes/b")))
    assert view.counts() == {"ps": 0}, "that there is none left is a number, too"


def test_a_controller_that_has_served_for_less_than_before_has_restarted() -> None:
    view = ClusterView()
    told: list[object] = [7.5, 12.5, 1.0, None, "soon", 6.0, 0.5]
    assert [view.controller_restarts("c", uptime_s) for uptime_s in told] == [0, 0, 1, 1, 1, 1, 2]
    assert view.controller_restarts("d", 3.0) == 0
    for number in range(NAMES_MAX + 1):
        view.controller_restarts(f"c-{number}", 1.0)
    assert len(view._controllers) == NAMES_MAX


def test_names_that_never_come_back_are_forgotten() -> None:
    view = ClusterView()
    view.take_nodes(Changes(1, (node("kept"),), (), True))
    for number in range(NAMES_MAX + 10):
        view.take_nodes(Changes(2, (node(f"n-{number}"), node("kept", 1)), (f"/nodes/n-{number - 1}",)))
    view.take_nodes(Changes(3, (node("kept", 2),)))
    assert view.restarts("kept") == 1 and len(view._incarnations) == NAMES_MAX


def test_what_cannot_be_read_is_left_out() -> None:
    view = ClusterView()
    view.take_nodes(Changes(1, (ConfigEntry("/nodes/x", b"\xc1", 1), node("a")), (), True))
    view.take_jobs(Changes(1, (ConfigEntry("/jobs/j", b"\xc1", 1),), (), True))
    assert [record.node for record in view.nodes] == ["a"] and view.jobs() == []


def test_copies_count_only_on_nodes_that_are_there() -> None:
    record = LayoutRecord(make_tensors(((8, 4), (8,)), "zeros"), 2)
    layout = record.layout()
    view = ClusterView()
    buckets = len(layout.buckets)
    job = JobRecord("running", layout.hash, RuleConfig("add"), 1, replication=3, min_in_sync=2)
    view.take_jobs(
        Changes(
            1,
            (
                entry(job_key("j"), job),
                entry(layout_key("j"), record),
                *(
                    entry(bucket_key("j", index), BucketRecord(1, "a", ("a", "b", "c") if index else ("a", "b")))
                    for index in range(buckets)
                ),
            ),
            (),
            True,
        )
    )
    view.take_nodes(Changes(1, (node("a"), node("b"), node("c")), (), True))
    assert buckets > 1
    assert view.jobs() == [JobReading("j", buckets, 3, 2, 0, 1)]
    view.take_nodes(Changes(2, (), ("/nodes/a",)))
    assert view.jobs() == [JobReading("j", buckets, 3, 1, buckets, buckets)]
    view.take_jobs(Changes(2, (), (job_key("j"),)))
    assert view.jobs() == [], "a job whose record is gone is no job"
