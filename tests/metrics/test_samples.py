"""What becomes of a status: numbers with the labels of the registration, and nothing of what is not a number."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adamctl.metrics.catalogue import METRICS
from adamctl.metrics.samples import LABELS_MAX, ClusterReading, JobReading, NodeReading, samples

Found = dict[str, dict[tuple[str, ...], float]]


def found(*nodes: NodeReading, **others: Any) -> Found:
    return {metric.name: dict(rows) for metric, rows in samples(ClusterReading(nodes, **others))}


PS = {
    "role": "worker", "node": "liar", "ready": True, "uptime_s": 9.5,
    "process": {"cpu_s": 1.5, "resident_bytes": 1 << 20},
    "lease": {"valid": True},
    "network": {
        "received_bytes": 10, "refusals": {"NOT_READY": 2, "WRONG_TOKEN": 1}, "connections": 3, "connections_max": 4,
    },
    "queued_updates": 7, "bytes": 1000, "held_bytes": 3000, "bytes_max": 4000,
    "store": {"loss_window_s": 0.5, "degraded": "the disk is full"},
    "jobs": {"digits": {"updates": 100, "pushes": 50, "staleness_p99": 4, "refusals": {"NOT_FINITE": 1}}},
    "replication": {"jobs": {"digits": {"primary": 2, "secondary": 1}}},
}  # fmt: skip


def test_a_server_tells_of_itself_and_of_each_job() -> None:
    shown = found(NodeReading("ps", "ps-1", PS, restarts=2))
    own = ("ps", "ps-1")
    assert shown["adamctl_node_up"] == {own: 1.0} and shown["adamctl_node_restarts_total"] == {own: 2.0}
    assert shown["adamctl_process_resident_memory_bytes"] == {own: float(1 << 20)}
    assert shown["adamctl_refusals_total"] == {(*own, "NOT_READY"): 2.0, (*own, "WRONG_TOKEN"): 1.0}
    assert shown["adamctl_connections"] == {own: 3.0} and shown["adamctl_connections_limit"] == {own: 4.0}
    assert shown["adamctl_updates_total"] == {("digits", *own): 100.0}
    assert shown["adamctl_parameter_memory_bytes"] == {own: 3000.0}, "all that counts against the limit"
    assert shown["adamctl_parameter_memory_limit_bytes"] == {own: 4000.0}
    assert shown["adamctl_shard_refusals_total"] == {("digits", *own, "NOT_FINITE"): 1.0}
    assert shown["adamctl_primary_buckets"] == {("digits", *own): 2.0}
    assert shown["adamctl_store_loss_window_seconds"] == {own: 0.5}
    assert shown["adamctl_store_degraded"] == {own: 1.0}
    assert shown["adamctl_lease_valid"] == {own: 1.0}


def test_what_a_status_does_not_say_is_no_metric() -> None:
    shown = found(NodeReading("ps", "ps-1", PS))
    for name in ("adamctl_lease_left_seconds", "adamctl_certificate_left_seconds", "adamctl_store_file_bytes"):
        assert name not in shown
    assert not any(name.startswith(("adamctl_worker", "adamctl_data", "adamctl_run")) for name in shown)
    later = found(NodeReading("ps", "ps-1", {**PS, "certificate": {"seconds_left": 60}}))
    assert later["adamctl_certificate_left_seconds"] == {("ps", "ps-1"): 60.0}


def test_what_is_no_number_is_no_metric() -> None:
    for wrong in (math.nan, math.inf, 10**400, "5", None, [1], {"a": 1}):
        shown = found(NodeReading("ps", "ps-1", {"uptime_s": wrong, "network": {"refusals": {"A": wrong, "B": 1}}}))
        assert "adamctl_node_uptime_seconds" not in shown
        assert shown["adamctl_refusals_total"] == {("ps", "ps-1", "B"): 1.0}


def test_who_does_not_answer_is_down_and_nothing_else() -> None:
    shown = found(NodeReading("worker", "w", None), NodeReading("ps", "ps-1", PS))
    assert shown["adamctl_node_up"] == {("worker", "w"): 0.0, ("ps", "ps-1"): 1.0}
    assert shown["adamctl_scrape_unanswered_nodes"] == {(): 1.0}
    assert all(("worker", "w") not in rows for name, rows in shown.items() if not name.startswith("adamctl_node"))


def test_a_run_has_its_job_and_its_state_as_labels() -> None:
    status = {"job": "digits", "state": "training", "examples": 1000, "loss": None, "checkpoint_age_s": 3.0}
    shown = found(NodeReading("coordinator", "c", status))
    own = ("digits", "coordinator", "c")
    assert shown["adamctl_examples_total"] == {own: 1000.0} and shown["adamctl_checkpoint_age_seconds"] == {own: 3.0}
    assert shown["adamctl_run_state"] == {(*own, "training"): 1.0}
    assert "adamctl_run_loss" not in shown, "it has no loss yet"
    assert "adamctl_run_bundles" not in shown, "it is no batch algorithm"
    shown = found(NodeReading("coordinator", "c", status | {"batch": {"bundles": 3}}))
    assert shown["adamctl_run_bundles"] == {own: 3.0}


def test_what_a_model_is_judged_by_is_a_label() -> None:
    own = ("digits", "coordinator", "c")
    for status, rows in (
        ({"metric": "rmse", "metric_value": 0.25, "top1": None}, {(*own, "rmse"): 0.25}),
        ({"metric": "top-1", "metric_value": 0.5, "top1": 0.5}, {(*own, "top-1"): 0.5}),
        ({"metric": "rmse", "metric_value": None}, None),
        ({"metric": 5, "metric_value": 0.25}, None),
        ({"top1": 0.5}, None),
    ):
        shown = found(NodeReading("coordinator", "c", {"job": "digits", **status}))
        assert shown.get("adamctl_run_metric_value") == rows
        assert ("adamctl_run_top1_ratio" in shown) is (status.get("top1") is not None)


def test_a_data_server_counts_data_sets_that_it_has_closed() -> None:
    status = {"datasets": [{"skipped": 2, "read_bytes": 10}], "skipped": 5, "read_bytes": 30, "reads": 5}
    shown = found(NodeReading("data", "d", status))
    assert shown["adamctl_data_skipped_examples_total"] == {("data", "d"): 5.0}
    assert shown["adamctl_data_read_bytes_total"] == {("data", "d"): 30.0}
    assert shown["adamctl_data_reads_total"] == {("data", "d"): 5.0}


def test_the_configuration_tells_of_copies_and_nodes() -> None:
    job = JobReading("digits", 4, 3, 1, 1, 2)
    shown = found(jobs=[job], roles={"ps": 2, "worker": 0}, age_s=1.5, seconds=0.25)
    assert shown["adamctl_job_buckets"] == {("digits",): 4.0}
    assert shown["adamctl_job_buckets_without_primary"] == {("digits",): 1.0}
    assert shown["adamctl_job_buckets_short_of_copies"] == {("digits",): 2.0}
    assert shown["adamctl_job_copies"] == {("digits",): 3.0} and shown["adamctl_job_copies_in_sync"] == {
        ("digits",): 1.0
    }
    assert shown["adamctl_cluster_nodes"] == {("ps",): 2.0, ("worker",): 0.0}
    assert shown["adamctl_configuration_age_seconds"] == {(): 1.5} and shown["adamctl_scrape_seconds"] == {(): 0.25}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted(
    {key for metric in METRICS for key in metric.path} | {"jobs", "job", "datasets", "state", "metric", "replication"}
)


@given(st.dictionaries(st.sampled_from(KEYS), anything, max_size=8), st.sampled_from(["ps", "data", "coordinator"]))
def test_no_status_breaks_a_scrape(status: dict[str, Any], role: str) -> None:
    for metric, rows in samples(ClusterReading([NodeReading(role, "n", status)])):
        for labels, value in rows:
            assert len(labels) == len(metric.labels) and math.isfinite(value)
            assert all(label.isprintable() and len(label) <= 128 for label in labels)


def test_a_status_brings_up_so_many_labels_and_no_more() -> None:
    many = {f"job-{number}": {"updates": 1} for number in range(10 * LABELS_MAX)}
    codes = {f"C{number}": 1 for number in range(10 * LABELS_MAX)}
    shown = found(NodeReading("ps", "p", {"jobs": many, "network": {"refusals": codes}}))
    assert len(shown["adamctl_updates_total"]) == len(shown["adamctl_refusals_total"]) == LABELS_MAX


def test_names_are_what_prometheus_expects() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.name.startswith("adamctl_") and metric.help.endswith(".") and metric.name.islower()
        assert not {"shard", "bucket"} & set(metric.labels)
        assert not metric.name.endswith(("_ms", "_mb", "_percent", "_minutes")), "base units"
