"""What Prometheus gets: text that its own parser reads, in the format it asks for."""

from __future__ import annotations

import pytest

from adamctl.metrics.catalogue import METRICS
from adamctl.metrics.exposition import Exposition
from adamctl.metrics.samples import ClusterReading, NodeReading

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families as parsed  # noqa: E402

READING = ClusterReading(
    [
        NodeReading("ps", "ps-1", {"uptime_s": 1.5, "jobs": {'a"b\\c\n': {"updates": 3}}}),
        NodeReading("worker", "w", None),
    ],
    roles={"ps": 1},
)


def test_the_parser_of_prometheus_reads_it() -> None:
    body, content_type = Exposition().render(READING)
    assert content_type.startswith("text/plain")
    found = {sample.name: sample for family in parsed(body.decode()) for sample in family.samples}
    assert found["adamctl_node_uptime_seconds"].labels == {"role": "ps", "node": "ps-1"}
    assert found["adamctl_node_uptime_seconds"].value == 1.5
    assert found["adamctl_updates_total"].labels["job"] == 'a"b\\c\\n', "a line end is escaped as everywhere"
    assert found["adamctl_scrape_unanswered_nodes"].value == 1.0
    assert not any(name.startswith(("python_", "process_")) for name in found), "nothing of this process"


def test_open_metrics_is_given_to_who_asks_for_it() -> None:
    body, content_type = Exposition().render(READING, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text") and body.endswith(b"# EOF\n")


def test_each_metric_has_its_kind_and_help() -> None:
    status = {"ready": True, "lease": {"valid": True}}
    body, _ = Exposition().render(ClusterReading([NodeReading("ps", "p", status, 1)]))
    by_name = {metric.name: metric for metric in METRICS}
    for family in parsed(body.decode()):
        metric = by_name.get(family.name) or by_name[f"{family.name}_total"]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
