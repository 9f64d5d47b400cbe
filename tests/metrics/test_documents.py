"""Dashboard and alerts name metrics and labels that exist, and each alert has its entry for the person on call."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adamctl.metrics.catalogue import METRICS
from adamctl.wire.constants import ErrorCode

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"\b(adamctl_\w+)")
BY_NAME = {metric.name: metric for metric in METRICS}
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds by itself."""
RATES = ("rate", "increase")
BEGUN_ABOVE_ZERO = re.compile(r"(adamctl_\w+) > 0 unless \1 offset 15m")
"""Of a counter that was not there before: an increase is not seen from nothing."""


def alerts() -> dict[str, dict[str, str]]:
    """Returns alert -> its fields, from the part of YAML that the file is written in."""
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    key = ""
    for line in (DOCS / "alerts.yml").read_text().splitlines():
        text = line.strip()
        if text.startswith("- alert: "):
            fields = found.setdefault(text.removeprefix("- alert: "), {})
        elif match := re.fullmatch(r"(expr|for|labels|annotations): (.*)", text):
            key = match[1]
            fields[key] = "" if match[2] == ">-" else match[2]
        elif key == "expr" and line.startswith(" " * 10):
            fields[key] = f"{fields[key]} {text}".strip()
    return found


def queries(value: Any) -> list[str]:
    """Returns all queries of a dashboard."""
    if isinstance(value, list):
        return [query for one in value for query in queries(one)]
    if not isinstance(value, dict):
        return []
    own = [value[key] for key in ("expr", "definition") if isinstance(value.get(key), str)]
    return own + [query for one in value.values() for query in queries(one)]


DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = alerts()
EXPRESSIONS = sorted({*queries(DASHBOARD), *(fields["expr"] for fields in ALERTS.values())})


def test_there_are_some() -> None:
    assert len(ALERTS) >= 20 and len(PANELS) >= 25 and len(EXPRESSIONS) >= 50
    assert all({"expr", "labels", "annotations"} <= fields.keys() for fields in ALERTS.values())


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_a_query_names_metrics_that_exist(query: str) -> None:
    names = NAME.findall(query)
    assert names or query.startswith("up{")
    assert set(names) <= BY_NAME.keys()
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing)


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_a_counter_is_never_shown_as_it_is(query: str) -> None:
    query = BEGUN_ABOVE_ZERO.sub("", query)
    for match in NAME.finditer(query):
        rated = query[: match.start()].endswith(tuple(f"{function}(" for function in RATES))
        assert rated is (BY_NAME[match[1]].kind == "counter"), match[1]


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_a_query_selects_by_labels_that_its_metrics_have(query: str) -> None:
    for match in re.finditer(r"(adamctl_\w+)\{([^}]*)\}", query):
        for label in re.findall(r"(\w+)\s*[=!]", match[2]):
            assert label in BY_NAME[match[1]].labels, (match[1], label)
    known = {label for name in NAME.findall(query) for label in BY_NAME[name].labels} | OF_PROMETHEUS
    for labels in re.findall(r"(?:by|on) \(([^)]*)\)", query):
        assert {label.strip() for label in labels.split(",")} <= known


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_legend_shows_labels_that_are_there(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        known = {label for name in NAME.findall(target["expr"]) for label in BY_NAME[name].labels}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, target


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_says_who_it_is_about(alert: str) -> None:
    fields = ALERTS[alert]
    known = {label for name in NAME.findall(fields["expr"]) for label in BY_NAME[name].labels} | OF_PROMETHEUS
    assert set(re.findall(r"\$labels\.(\w+)", fields["annotations"])) <= known
    assert fields["labels"] in ("{severity: page}", "{severity: ticket}")


def test_each_alert_has_its_entry_for_the_person_on_call() -> None:
    text = (DOCS / "operations.md").read_text()
    assert re.findall(r"^### (Adamctl\w+)$", text, re.MULTILINE) == list(ALERTS), "in the order of docs/alerts.yml"


def test_what_is_lost_is_told_where_a_process_counts_from_nothing() -> None:
    assert BEGUN_ABOVE_ZERO.search(ALERTS["AdamctlRolledBack"]["expr"])


def test_fewer_nodes_are_told_of_those_that_stay_between_runs_and_for_longer_than_the_loss_is_new() -> None:
    expression = ALERTS["AdamctlFewerNodes"]["expr"]
    assert re.findall(r'role=~"([a-z|]+)"', expression) == ["ps|data|worker"] * 2, "others end normally"
    assert "offset" not in expression and "max_over_time(" in expression


def test_a_batch_algorithm_trains_while_its_bundles_are_done() -> None:
    expression = ALERTS["AdamctlTrainingStopped"]["expr"]
    assert expression.endswith(" unless on (job, role, node) changes(adamctl_run_bundles[5m]) > 0")


def test_strangers_are_all_that_are_refused_for_who_they_are() -> None:
    codes = re.search(r'code=~"([A-Z_|]+)"', ALERTS["AdamctlStrangers"]["expr"])
    assert codes is not None
    of_strangers = (
        ErrorCode.WRONG_TOKEN, ErrorCode.WRONG_CLUSTER, ErrorCode.WRONG_IDENTITY, ErrorCode.NOT_ALLOWED,
    )  # fmt: skip
    assert codes[1].split("|") == [code.name for code in of_strangers]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
