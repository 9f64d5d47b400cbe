"""A run on hosts loses hosts with controllers: while they form, and in mid-training until none of the first is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.on_hosts import COUNTING
from tests.e2e.test_hosts import agents, node, note

DIGITS = EXAMPLES / "digits.toml"
COPIES = ("--ps", "3", "--set", "cluster.replication=3")


def kill_the_host_of(train: Command, controller: str) -> str:
    """Kills an agent with SIGKILL; its roles end with it. Returns the name of the host."""
    process = train.wait_until(lambda: node(train, "controller", controller))
    parent = process.ppid()
    (host,) = [name for name, agent in agents(train).items() if agent.pid == parent]
    agent = psutil.Process(parent)
    roles = agent.children(recursive=True)
    agent.kill()
    psutil.wait_procs(roles, timeout=30)
    return host


@pytest.mark.slow
def test_controllers_are_replaced_until_none_of_the_first_is_left(adamctl: Runner, tmp_path: Path) -> None:
    """Meanwhile a client of its own counts what is acknowledged to it."""
    state = {"ADAMCTL_STATE": str(tmp_path / "state")}
    hosts = ("--hosts", "3", "--spares", "1", "--on", "local")
    train = adamctl.start("train", DIGITS, "--plain", *hosts, *COPIES, "--passes", "400", **state)
    train.wait_until(train.trained)

    def at() -> list[str]:
        return list(note(tmp_path).get("controllers", ()))

    first = train.wait_until(lambda: at() if len(at()) == 3 else [])
    (token,) = tmp_path.glob("runs/*/001/secrets/token")
    around = {**state, "ADAMCTL_TOKEN": token.read_text().strip(), "ADAMCTL_CONTROLLER": ""}
    own, over = first[0].removeprefix("tcp://"), tmp_path / "over"
    counting = adamctl.start_program(sys.executable, "-c", COUNTING, own, str(over), **around)

    def whole() -> bool:
        """Says whether each part of both models has its three copies."""
        code, stdout, _ = adamctl.run("shards", "--json", "--controller", at()[-1], **around)
        buckets: list[dict[str, Any]] = json.loads(stdout)["buckets"] if code == 0 else []
        return len({one["job"] for one in buckets}) == 2 and all(len(one["in_sync"]) == 3 for one in buckets)

    for number in (1, 2, 3):
        train.wait_until(whole)
        before = set(at())
        kill_the_host_of(train, f"controller-{number}")
        train.wait_until(lambda before=before: len(at()) == 3 and len(set(at()) - before) == 1)
    assert set(at()).isdisjoint(first)
    train.wait_until(whole)
    over.touch()
    code, stdout, stderr = counting.wait(120)
    assert code == 0 and stdout.endswith("all there\n"), stderr
    code, _, stderr = train.wait(600)
    assert code == 0, stderr
    for number in (1, 2, 3):
        assert f"has taken the place of controller-{number} as a controller" in stderr
    assert "rolled back" not in stderr and "the run failed" not in stderr
    assert json.loads((tmp_path / "runs/digits/001/summary.json").read_text())["best_test_top1"] >= 0.95


@pytest.mark.slow
def test_a_host_lost_while_the_controllers_form_has_all_begin_anew(adamctl: Runner, tmp_path: Path) -> None:
    train = adamctl.start("train", DIGITS, "--plain", "--hosts", "3", "--on", "local", *COPIES, "--passes", "25")
    host = kill_the_host_of(train, "controller-2")
    code, _, stderr = train.wait(300)
    assert code == 0, stderr
    assert f"{host} is lost: " in stderr and "nothing is trained yet, so all begins anew" in stderr
    assert stderr.count("3 hosts: ") == 2, "it has begun twice"
    assert json.loads((tmp_path / "runs/digits/001/summary.json").read_text())["best_test_top1"] >= 0.95
