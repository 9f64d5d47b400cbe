"""The list of metrics, and the documents that name them: the table, the dashboard and the alerts."""

from __future__ import annotations

from pathlib import Path

from adamctl.metrics.catalogue import METRICS, table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_document_lists_every_metric() -> None:
    assert table() in (DOCS / "metrics.md").read_text(), "write what `adamctl metrics list` prints to docs/metrics.md"


def test_a_counter_ends_in_total() -> None:
    kinds = {metric.name: metric.kind for metric in METRICS}
    assert kinds["adamctl_updates_total"] == "counter" and kinds["adamctl_queued_updates"] == "gauge"


def test_labels_are_those_of_where_it_is_read_from() -> None:
    labels = {metric.name: metric.labels for metric in METRICS}
    assert labels["adamctl_node_up"] == ("role", "node")
    assert labels["adamctl_updates_total"] == ("job", "role", "node")
    assert labels["adamctl_refusals_total"] == ("role", "node", "code")
    assert labels["adamctl_job_buckets"] == ("job",) and labels["adamctl_scrape_seconds"] == ()
