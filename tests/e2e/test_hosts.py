"""Whole runs on many hosts: agents of this machine, started by the front or by hand, killed, and left by nobody."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from adamctl.launch.places.by_hand import TOKEN_FILE
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.test_train import SOON

DIGITS = EXAMPLES / "digits.toml"
COPIES = ("--ps", "2", "--set", "cluster.replication=2")
LONG = ("--passes", "4000")
KILLS = int(os.environ.get("ADAMCTL_HOST_KILLS", "20"))


def agents(command: Command) -> dict[str, psutil.Process]:
    """Returns the agents that the front of a run has started, by the names of their hosts."""
    found = {}
    for process, line in _lines(command):
        if " host start" in " ".join(line):
            found[line[line.index("--name") + 1]] = process
    return found


def _lines(command: Command) -> list[tuple[psutil.Process, list[str]]]:
    """Returns the processes of a command with their command lines, without those that end meanwhile."""
    found = []
    for process in command.family():
        with suppress(psutil.Error):
            found.append((process, process.cmdline()))
    return found


def node(command: Command, role: str, name: str) -> psutil.Process | None:
    """Returns the process of a node."""
    return next((one for one, line in _lines(command) if f" {role} start" in " ".join(line) and name in line), None)


def note(folder: Path) -> dict[str, Any]:
    """Returns what a live run tells other commands; empty before it does."""
    for file in (folder / "state" / "runs").glob("*.json"):
        text = file.read_text()
        return dict(json.loads(text)) if text.endswith("}") else {}
    return {}


def test_two_hosts_train_and_nothing_is_left(adamctl: Runner) -> None:
    code, stdout, stderr = adamctl.run(
        "train", DIGITS, "--json", "--hosts", "2", "--on", "local", "--passes", "25", *COPIES, *SOON
    )
    assert code == 0, stderr
    result = json.loads(stdout)
    assert result["roles"] == {"controller": 1, "coordinator": 1, "data": 1, "ps": 2, "worker": 2}
    assert result["best_test_top1"] >= 0.95, stderr
    assert "waiting for 2 of 2 hosts (none is there yet)" in stderr
    folder = Path(result["run_folder"])
    assert not list(folder.rglob("kept")), "stores are removed at a good end"
    for host in ("host-1", "host-2"):
        assert list((folder / "hosts" / host / "logs").glob("worker-*.log")), "logs stay on each host"


def test_a_missing_data_path_is_named_with_its_host(adamctl: Runner, tmp_path: Path) -> None:
    """By hand, as a user does: the run says what to type, an agent is started with that, and its data are not there."""
    experiment = tmp_path / "away.toml"
    text = DIGITS.read_text().replace('format = "digits"', f'format = "idx"\nsource = "{tmp_path}/nowhere/mnist"')
    experiment.write_text(text.replace("translate = 1", "translate = 0"))
    state = {"ADAMCTL_STATE": str(tmp_path / "state"), "ADAMCTL_DATA": ""}
    loopback = ("--bind", "127.0.0.1", "--advertise", "127.0.0.1")
    train = adamctl.start("train", experiment, "--plain", "--hosts", "1", *loopback, **state)
    front = train.wait_until(lambda: note(tmp_path).get("front"), 60)[0]
    (token,) = tmp_path.glob("runs/*/001/secrets/token")
    data = ("--data-root", tmp_path / "nowhere" / "mnist", "--checkpoint-root", tmp_path / "runs")
    started_s = time.monotonic()
    agent = adamctl.start(
        "host", "start", "--front", front, "--token-file", token, "--name", "far", "--root", tmp_path / "far", *data
    )
    code, _, stderr = train.wait(60)
    assert code == 2, stderr
    assert f"data-1 on far: far has no {tmp_path}/nowhere/mnist" in stderr
    assert f"adamctl host start --front {front}" in stderr and f"--token-file {TOKEN_FILE} --name NAME" in stderr
    assert "waiting for 1 of 1 host (none is there yet)" in stderr
    assert agent.wait(60)[0] == 0, "the front has told it that the run is over"
    assert time.monotonic() - started_s < 30


def test_hosts_and_join_are_one_or_the_other(adamctl: Runner) -> None:
    code, _, stderr = adamctl.run("train", DIGITS, "--hosts", "2", "--join", "127.0.0.1:1")
    assert code == 2 and "give one of them" in stderr


@pytest.mark.slow
def test_killed_roles_start_again_where_they_were(adamctl: Runner) -> None:
    train = adamctl.start("train", DIGITS, "--plain", "--hosts", "2", "--on", "local", *LONG, *COPIES)
    train.wait_until(train.trained)
    for role, name in (("worker", "worker-1"), ("ps", "ps-2"), ("data", "data-1")):
        process = train.wait_until(lambda role=role, name=name: node(train, role, name))
        process.kill()
        train.wait_until(lambda role=role, name=name, old=process.pid: (
            (now := node(train, role, name)) is not None and now.pid != old
        ))  # fmt: skip
        time.sleep(3)
    train.interrupt()
    code, _, stderr = train.wait(120)
    assert code == 130
    for name in ("worker-1", "ps-2", "data-1"):
        assert f"{name} on host-" in stderr and "ended: killed by SIGKILL; restarting it" in stderr


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_killed_host(adamctl: Runner) -> None:
    train = adamctl.start("train", DIGITS, "--plain", "--hosts", "2", "--spares", "1", "--on", "local", *LONG, *COPIES)
    train.wait_until(train.trained)
    train.wait_until(lambda: len(agents(train)) == 3)
    busy = next(host for host, process in agents(train).items() if process.children())
    agents(train)[busy].kill()
    train.wait_until(
        lambda: node(train, "worker", "worker-2") and node(train, "worker", "worker-1") and busy not in agents(train),
        60,
    )
    time.sleep(5)
    train.interrupt()
    code, _, stderr = train.wait(120)
    assert code == 130
    assert stderr.count(f"{busy} is lost") == 1, "one cause, said once"
    assert "starts again on host-" in stderr


@pytest.mark.slow
def test_an_agent_that_is_told_to_end_is_emptied_first(adamctl: Runner) -> None:
    train = adamctl.start("train", DIGITS, "--plain", "--hosts", "2", "--spares", "1", "--on", "local", *LONG, *COPIES)
    train.wait_until(train.trained)
    train.wait_until(lambda: len(agents(train)) == 3)
    leaving = next(
        host for host, process in agents(train).items() if any("ps" in c.cmdline() for c in process.children())
    )
    agents(train)[leaving].send_signal(signal.SIGTERM)
    train.wait_until(lambda: leaving not in agents(train), 60)
    time.sleep(3)
    train.interrupt()
    code, _, stderr = train.wait(120)
    assert code == 130
    assert f"{leaving} will be taken away in 23 s: received SIGTERM" in stderr
    assert f"{leaving} is empty and is let go" in stderr and f"{leaving} is lost" not in stderr


@pytest.mark.slow
def test_a_killed_coordinator_starts_again_from_the_newest_checkpoint(adamctl: Runner, tmp_path: Path) -> None:
    train = adamctl.start("train", DIGITS, "--plain", "--hosts", "2", "--on", "local", "--passes", "40", *COPIES)
    train.wait_until(lambda: list(tmp_path.glob("runs/digits/001/checkpoints/*/manifest.json")))
    process = node(train, "coordinator", "coordinator")
    assert process is not None
    process.kill()
    code, _, stderr = train.wait(300)
    assert code == 0, stderr
    assert "coordinator ended: killed by SIGKILL; restarting it" in stderr
    assert json.loads((tmp_path / "runs/digits/001/summary.json").read_text())["best_test_top1"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_front_or_agent_leaves_nothing(adamctl: Runner, seed: int) -> None:
    """Agents of this machine end with the front that started them; roles end with their agent."""
    random = Random(seed)
    train = adamctl.start("train", DIGITS, "--plain", "--hosts", "2", "--on", "local", *LONG, *COPIES)
    train.wait_until(lambda: len(train.roles("worker")) == 2 if seed % 2 else len(agents(train)) == 2)
    time.sleep(random.uniform(0.0, 2.0))
    if random.random() < 0.5:
        random.choice(list(agents(train).values())).kill()
        time.sleep(random.uniform(0.0, 1.0))
    train.process.kill()
    train.process.wait()
    until_s = time.monotonic() + 60
    while train.family() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert [process.cmdline() for process in train.family()] == []


@pytest.mark.slow
def test_an_agent_started_by_hand_ends_a_minute_after_its_front(adamctl: Runner, tmp_path: Path) -> None:
    state = {"ADAMCTL_STATE": str(tmp_path / "state"), "ADAMCTL_DATA": ""}
    loopback = ("--bind", "127.0.0.1", "--advertise", "127.0.0.1")
    train = adamctl.start("train", DIGITS, "--plain", "--hosts", "1", *LONG, *loopback, **state)
    front = train.wait_until(lambda: note(tmp_path).get("front"), 60)[0]
    (token,) = tmp_path.glob("runs/*/001/secrets/token")
    agent = adamctl.start(
        "host", "start", "--front", front, "--token-file", token, "--name", "far", "--root", tmp_path / "far",
        "--checkpoint-root", tmp_path / "runs",
    )  # fmt: skip
    train.wait_until(train.trained)
    code, stdout, stderr = adamctl.run("logs", "digits", "--role", "worker", **state)
    assert code == 0 and "worker-1 | " in stdout and "ready on" in stdout, stderr
    train.process.kill()
    train.process.wait()
    killed_s = time.monotonic()
    time.sleep(20)
    assert len(agent.roles("worker")) == 1, "it keeps its roles for a while"
    code, _, stderr = agent.wait(120)
    assert code == 3 and "the front has not been there for 60 s; its roles were ended" in stderr
    assert time.monotonic() - killed_s < 90
    assert agent.family() == []
