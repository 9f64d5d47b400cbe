"""`status` and `top` of a living cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from adamctl.cli.cluster.table import (
    NODE_COLUMNS,
    REPLICA_COLUMNS,
    certificates,
    controller_rows,
    details,
    fitting_columns,
    fitting_replica_columns,
    job_rows,
    node_rows,
    proposals,
    replica_rows,
    standing_rows,
    why_none_leads,
)
from tests.api.cluster_for_tests import TOKEN, cluster_of


def controller_and(role: str, folder: Path) -> AbstractContextManager[str]:
    """Starts a controller, and `ROLE-1` in its cluster; gives the controller's address."""
    return cluster_of(folder, (role, "start", "--name", f"{role}-1"))


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with controller_and("data", tmp_path_factory.mktemp("controller")) as address:
        yield address


def adamctl(*arguments: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ADAMCTL_")}
    clean["ADAMCTL_TOKEN"] = token
    return subprocess.run(
        [sys.executable, "-m", "adamctl", *arguments], capture_output=True, text=True, timeout=60, env=clean
    )


def test_status_for_programs(controller: str) -> None:
    result = adamctl("status", "--controller", controller, "--json")
    assert result.returncode == 0, result.stderr
    cluster = json.loads(result.stdout)
    assert cluster["schema_version"] == 1
    assert cluster["controller"]["nodes"] == 1
    (node,) = cluster["nodes"]
    assert (node["role"], node["node"], node["answers"]) == ("data", "data-1", True)
    assert node["status"]["ready"] is True
    assert cluster["controller"]["last_seen_s"]["data-1"] >= 0
    assert cluster["jobs"] == []


def test_status_for_people(controller: str) -> None:
    text = adamctl("status", "--controller", controller).stdout
    assert text.split()[:2] == ["role", "node"]
    assert "data-1" in text
    assert "no jobs" in text


def test_top_without_a_terminal_is_one_picture(controller: str) -> None:
    result = adamctl("top", "--controller", controller)
    assert result.returncode == 0, result.stderr
    assert "data-1" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_wrong_token_is_refused(controller: str) -> None:
    result = adamctl("status", "--controller", controller, token="wrong")
    assert result.returncode == 2
    assert "token" in result.stderr
    assert "Traceback" not in result.stderr


def test_rows_of_nodes_that_answer_and_one_that_does_not() -> None:
    node = {"role": "ps", "incarnation": 3, "addresses": ["unix:///s", "tcp://h:1"]}
    told = {"adamctl": "0.2.0", "wire": [1, 2]}
    cluster = {
        "controller": {"last_seen_s": {"ps-1": 0.5}},
        "nodes": [
            node | {"node": "ps-2", "status": {"error": "connection refused"}},
            node
            | {
                "node": "ps-1",
                "status": {"uptime_s": 61.0, "ready": True, "updates": 12_345, "jobs": ["x"], "versions": told},
            },
        ],
        "jobs": [{"job": "mnist", "state": "running", "rule": "sgd", "coordinator": "coordinator-1"}],
    }
    rows = node_rows(cluster)
    assert dict(zip(NODE_COLUMNS, rows[0], strict=True)) == {
        "role": "ps",
        "node": "ps-1",
        "address": "h:1",
        "version": "0.2.0, wire 1 to 2",
        "up": "1 min 01 s",
        "last seen": "0.5 s",
        "status": "updates 12.3 k",
    }
    assert rows[1][3:] == ("-", "-", "-", "does not answer: connection refused")
    assert job_rows(cluster) == [("mnist", "running", "sgd", "coordinator-1")]


def test_what_each_role_says_of_itself() -> None:
    coordinator = {
        "job": "mnist", "state": "training", "progress": 0.138, "top1": 0.98, "images_per_s": 1.38e4, "eta_seconds": 4,
    }  # fmt: skip
    line = "mnist: training, 14%, top-1 98.00%, 13.8 k images/s, 4.0 s left"
    assert details("coordinator", coordinator) == line
    grouped = coordinator | {"partitions": 2, "replicas": [{}, {}], "lobby": []}
    assert details("coordinator", grouped) == f"{line}, 2 replicas of 2 partitions"
    grouped |= {"replicas": [{}], "lobby": ["w3"]}
    assert details("coordinator", grouped) == f"{line}, 1 replica of 2 partitions, 1 in the lobby"
    batch = {"algorithm": "lbfgs", "iterations": 40, "evaluations": 44, "loss": 0.25, "bundles": 3, "bundles_total": 32}
    assert details("coordinator", coordinator | {"passes_total": 100, "batch": batch}) == (
        "mnist: training, iteration 40, 44 of 100 evaluations, 3 of 32 bundles, loss 0.25, top-1 98.00%, "
        "13.8 k images/s, at most 4.0 s left"
    )
    assert details("coordinator", coordinator | {"passes_total": 100, "batch": None}) == line
    servers = {"jobs": {"mnist": {}}, "buckets": 12, "bytes": 1 << 20, "updates_per_s": 3e8, "updates": 2e9}
    assert details("ps", servers) == "1 job, 12 buckets, 1.0 MiB, 300 M updates/s, 2.00 G in all"
    copies = {"replication": {"jobs": {"mnist": {"primary": 12, "secondary": 20, "learner": 2}}}}
    shown = details("ps", servers | copies)
    assert shown.startswith("1 job, 12 buckets and 20 copies, 2 more on their way, 1.0 MiB, ")
    shown = details("ps", servers | copies | {"held_bytes": 3 << 20})
    assert shown.startswith("1 job, 12 buckets and 20 copies, 2 more on their way, 3.0 MiB, ")
    assert details("ps", {"jobs": {}, "bytes_max": 1 << 30}) == "no job; room for 1.0 GiB"
    store = {"degraded": "", "loss_window_s": 0.42, "loss_window_s_max": 5.0}
    shown = details("ps", servers | {"store": store})
    assert shown.endswith(" in all, 0.4 s not on disk yet, of 5.0 s allowed")
    assert details("ps", servers | {"store": store | {"loss_window_s": 0.0}}).endswith(" in all, all on disk")
    store |= {"degraded": "no space left: /data", "loss_window_s": 7.9}
    for jobs in (servers, {"jobs": {}, "bytes_max": 1 << 30}):
        shown = details("ps", jobs | {"store": store})
        assert shown.startswith("degraded: no space left: /data; 7.9 s not on disk yet, of 5.0 s allowed; ")
    data = {"datasets": [{"source": "/data/mnist"}], "cache_bytes": 2048, "reads": 200, "reads_ready": 199}
    assert details("data", data) == "mnist: 2.0 KiB held, 200 reads, 99.50% ready when asked for"
    worker = {"job": "mnist", "state": "training", "threads": 2, "batches": 5110, "pushes": 10}
    assert details("worker", worker) == "mnist: training, 2 threads, 5.11 k batches, 10 pushes"
    assert details("worker", worker | {"transport": "shared, tcp"}).endswith("10 pushes by shared memory and TCP")
    assert details("worker", worker | {"blocks_by": "TCP, shared memory"}).endswith(", blocks by TCP and shared memory")
    assert details("worker", {"state": "waiting for a run", "threads": 1}) == "waiting for a run, 1 thread"
    assert details("mine", {"ready": True, "things": 3}) == "things 3"


def test_each_partition_of_a_replica_has_a_row() -> None:
    members = [
        {"partition": 0, "node": "w1", "host": "h", "state": "training", "flights": 2, "waiting_share": 0.5,
         "waits_for": "1", "waits_for_share": 0.5},
        {"partition": 1, "node": "w2", "host": "h", "state": "training", "slow": True, "waiting_share": 0.0},
    ]  # fmt: skip
    replica = {"replica": 0, "group_epoch": 1, "state": "training", "members": members, "cut": "rows conv2d1"}
    nodes = [
        {"node": "coordinator", "role": "coordinator", "status": {"job": "mnist", "replicas": [replica]}},
        {"node": "of-another-version", "role": "coordinator", "status": {"replicas": [{"members": 3}]}},
        {"node": "silent", "role": "coordinator", "status": {"error": "refused"}},
        {"node": "w1", "role": "worker", "status": {"replicas": 1}},
    ]
    rows = replica_rows({"nodes": nodes})
    assert rows == [
        ("mnist", "0", "0", "w1", "h", "training", "2", "50%, for 1", "rows conv2d1"),
        ("", "", "1", "w2", "h", "training", "-", "0%, slow", ""),
    ]
    assert proposals({"nodes": nodes}) == []
    replica["proposed"] = "conv2d1: rows at 9"
    text = "mnist: with these cuts in [partition], replica 0 would have no slow partition: conv2d1: rows at 9"
    assert proposals({"nodes": nodes}) == [text]
    names = {width: [REPLICA_COLUMNS[one] for one in fitting_replica_columns(rows, width, 2)] for width in (120, 66, 9)}
    assert names[120] == list(REPLICA_COLUMNS)
    assert names[66] == ["job", "replica", "partition", "node", "state", "flights", "waits"]
    assert names[9] == ["replica", "partition", "node", "flights", "waits"]


def test_a_narrow_terminal_does_without_columns() -> None:
    rows = [("worker", "worker-1", "127.0.0.1:40000", "0.1.0, wire 1", "1 min 20 s", "0.5 s", "x" * 60)]
    names = {width: [NODE_COLUMNS[index] for index in fitting_columns(rows, width, 2)] for width in (130, 75, 64, 10)}
    assert names[130] == list(NODE_COLUMNS)
    assert names[75] == ["role", "node", "up", "last seen", "status"]
    assert names[64] == ["role", "node", "last seen", "status"]
    assert names[10] == ["node", "status"]


def test_the_controllers_of_a_cluster() -> None:
    members = [{"name": name, "address": f"tcp://h:{port}"} for name, port in (("a", 1), ("b", 2), ("c", 3))]
    status: dict[str, object] = {"leader": "a", "revision": 7, "members": [dict(one) for one in members]}
    for member, lag in zip(status["members"], (0, 5, None), strict=True):  # type: ignore[call-overload]
        member["lag"] = lag
    status["strangers"] = [{"name": "d", "address": "tcp://h:4"}]
    told = [{"name": name, "versions": {"adamctl": "0.1.0", "wire": [1, 1]}} for name in "ab"]
    assert controller_rows({"controller": status, "controllers": told}) == [
        ("a", "h:1", "0.1.0, wire 1", "leads, revision 7"),
        ("b", "h:2", "0.1.0, wire 1", "5 decisions behind"),
        ("c", "h:3", "-", "not heard from yet"),
        ("d", "h:4", "-", "waits to replace one"),
    ]
    leaderless = {"leader": "", "revision": 7, "members": members}
    assert controller_rows({"controller": leaderless})[0] == ("a", "h:1", "-", "no leader is known")
    silent = {
        "leader": "a",
        "revision": 7,
        "members": [members[0] | {"lag": 0}, members[1] | {"lag": 0, "silent_s": 9}],
    }
    assert controller_rows({"controller": silent})[1] == ("b", "h:2", "-", "silent for 9.0 s")
    silent["differing"] = {"tcp://h:2": "lost_after_s=9"}
    assert controller_rows({"controller": silent})[1] == ("b", "h:2", "-", "has other limits")


def test_what_is_wrong_with_controllers_of_which_none_leads() -> None:
    members = [{"name": name, "address": f"tcp://h:{port}"} for name, port in (("a", 1), ("b", 2), ("c", 3))]
    one = {"name": "a", "address": "tcp://h:1", "state": "probing", "leader": "", "slot": 7, "members": members}
    two = {"name": "b", "address": "tcp://h:2", "error": "nobody listens"}
    three = one | {"name": "c", "address": "tcp://h:3", "state": "follower", "leader": "b"}
    assert standing_rows([one, two, three]) == [
        ("a", "h:1", "-", "knows no leader, knows 7 decisions"),
        ("b", "h:2", "-", "does not answer: nobody listens"),
        ("c", "h:3", "-", "follows b, knows 7 decisions"),
    ]
    assert why_none_leads([one, two, two | {"name": "c"}]).startswith("1 of 3 controllers answer, 2 are needed")
    assert "none is confirmed as leader by 2" in why_none_leads([one, two, three])
    assert "have not formed a cluster yet" in why_none_leads([{"state": "forming"}, two])


def test_certificates_that_end_soon_are_told_first_ends_first() -> None:
    def told(name: str, end_s: float, warning: str) -> dict[str, Any]:
        return {"certificate": {"identity": f"adam://c/ps/{name}", "not_after_s": end_s, "warning": warning}}

    nodes = [told("late", 1.9e9, ""), told("b", 1.8e9, "expires in 7 days"), told("\x1b[2J", 1.7e9, "has expired")]
    cluster = {"controller": told("head", 1.75e9, "expires in 24 hours"), "nodes": [{"status": one} for one in nodes]}
    lines = certificates(cluster)
    assert [line.partition(": the certificate ")[2] for line in lines] == [
        "has expired; adamctl tls renew",
        "expires in 24 hours; adamctl tls renew",
        "expires in 7 days; adamctl tls renew",
    ]
    assert all(line.isprintable() for line in lines)
    assert certificates({"controller": {}, "nodes": [{"status": {"certificate": "nonsense"}}]}) == []
