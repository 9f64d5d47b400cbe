"""Versions of nodes: what is shown, which may work together, and what `doctor` says of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from adamctl.cli.cluster.versions import (
    Version,
    grouped,
    releases_apart,
    shown_version,
    too_far_apart,
    version_of,
    versions_of,
)
from adamctl.cli.doctor_cluster import version_finding


def told(product: str, lowest: int = 1, highest: int = 1) -> dict[str, Any]:
    return {"versions": {"adamctl": product, "wire": [lowest, highest]}}


def cluster(**products: str) -> dict[str, Any]:
    nodes = [{"node": name.replace("_", "-"), "status": told(product)} for name, product in products.items()]
    return {"controller": {"node": "c-1", **told("0.1.0")}, "nodes": nodes}


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("0.1.0", "0.1.0", 0),
        ("0.1.0", "0.1.5", 0),
        ("0.1.5", "0.2.0", 1),
        ("0.1.0", "0.3.0", 2),
        ("1.9.0", "1.2.0", 7),
        ("0.9.0", "1.0.0", 1),
        ("0.9.0", "1.1.0", 2),
        ("1.0.0", "3.0.0", 2),
        ("0.1.0.dev3", "0.2.0rc1", 1),
        ("unknown", "0.1.0", 2),
        ("unknown", "unknown", 0),
    ],
)
def test_how_many_releases_lie_between(one: str, other: str, apart: int) -> None:
    assert (releases_apart(one, other), releases_apart(other, one)) == (apart, apart)


def test_versions_that_may_not_be_in_one_cluster() -> None:
    assert too_far_apart([]) == too_far_apart([Version("0.1.0", (1, 1)), Version("0.2.0", (1, 2))]) == ""
    found = too_far_apart([Version("0.1.0", (1, 1)), Version("0.2.0", (1, 2)), Version("0.3.0", (2, 3))])
    assert found == "0.1.0 and 0.3.0 are more than one release apart"
    found = too_far_apart([Version("0.1.0", (1, 1)), Version("0.2.0", (2, 3))])
    assert found == "0.1.0, wire 1 and 0.2.0, wire 2 to 3 have no version of the wire format in common"


@pytest.mark.parametrize(
    "status", [{}, {"versions": "1"}, {"versions": {"adamctl": 1, "wire": [1, 1]}},
               {"versions": {"adamctl": "1", "wire": [1]}}, {"versions": {"adamctl": "1", "wire": ["a", "b"]}}]
)  # fmt: skip
def test_a_node_that_does_not_tell_it_well_has_none(status: dict[str, Any]) -> None:
    assert version_of(status) is None and shown_version(status) == "-"


def test_a_version_from_another_machine_cannot_move_the_cursor() -> None:
    assert shown_version(told("\x1b[2J")) == "\\x1b[2J, wire 1"
    assert len(shown_version(told("x" * 1000))) < 50


def test_all_nodes_and_controllers_are_asked() -> None:
    found = cluster(ps_1="0.1.0", ps_2="0.2.0")
    found["controllers"] = [
        {"name": "c-1", **told("0.1.0")},
        {"name": "c-2", "error": "nobody listens"},
        {"name": "c-3"},
    ]
    versions = versions_of(found)
    assert set(versions) == {"c-1", "c-3", "ps-1", "ps-2"} and versions["c-3"] is None
    assert grouped(versions) == "adamctl 0.1.0, wire 1: c-1, ps-1; no version told: c-3; adamctl 0.2.0, wire 1: ps-2"


def test_what_doctor_says() -> None:
    same = version_finding(cluster(ps_1="0.1.0", ps_2="0.1.0"))
    assert (same.state, same.found, same.advice) == ("ok", "adamctl 0.1.0, wire 1 on all 3 nodes", "")
    between = version_finding(cluster(ps_1="0.2.0", ps_2="0.1.0"))
    assert between.state == "ok" and "an upgrade is under way" in between.advice
    far = version_finding(cluster(ps_1="0.3.0", ps_2="0.1.0"))
    assert far.state == "slow" and "more than one release apart" in far.found and "docs/upgrades.md" in far.advice
    untold = cluster(ps_1="0.1.0")
    untold["nodes"].append({"node": "ps-0", "status": {"role": "ps"}})
    assert "an upgrade is under way" in version_finding(untold).advice
    old = {"controller": {}, "nodes": [{"node": "ps-1", "status": told("0.9.0")}]}
    assert version_finding(old).state == "slow" and "this command is of" in version_finding(old).found
