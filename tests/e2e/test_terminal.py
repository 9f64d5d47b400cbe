"""Runs and the terminals they are looked at from: one that closes, none at all, and another one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Command, Runner

SMALL = """\
name = "small"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "softmax"
units = 10
[train]
passes = 100000
evaluate_every = 1000
checkpoint_every = 0
[cluster]
threads = 1
"""
WAIT_S = 60.0


@pytest.fixture
def experiment(adamctl: Runner) -> Path:
    path = adamctl.folder / "small.toml"
    path.write_text(SMALL)
    return path


def in_a_terminal(adamctl: Runner, *arguments: str | Path) -> tuple[Command, int]:
    """Starts a command as the leader of a session with a terminal of its own; returns it and our end of that."""
    ours, theirs = pty.openpty()
    marker = f"{adamctl.folder}-{len(adamctl.commands)}"

    def take() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "adamctl", *map(str, arguments)],
        cwd=adamctl.folder,
        env={**os.environ, "ADAMCTL_TEST_MARKER": marker, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take,
        text=True,
    )
    os.close(theirs)
    adamctl.commands.append(Command(process, adamctl.folder, marker))
    return adamctl.commands[-1], ours


def drain(descriptor: int, seen: list[bytes]) -> None:
    """Reads what a terminal is sent, so that nobody waits for it, until it is closed."""
    while True:
        try:
            seen.append(os.read(descriptor, 65536))
        except OSError:
            return


def test_a_run_whose_terminal_closes_ends_with_a_checkpoint(adamctl: Runner, experiment: Path) -> None:
    command, ours = in_a_terminal(adamctl, "train", experiment)
    seen: list[bytes] = []
    threading.Thread(target=drain, args=(ours, seen), daemon=True).start()
    command.wait_until(command.trained)
    command.process.send_signal(signal.SIGHUP)  # before the terminal itself goes, as from a shell
    os.close(ours)
    assert command.process.wait(WAIT_S) == 129, b"".join(seen)[-2000:]
    (folder,) = (adamctl.folder / "runs" / "small").iterdir()
    assert json.loads((folder / "summary.json").read_text())["state"] == "stopped"
    assert len(list(folder.glob("checkpoints/*/manifest.json"))) == 1
    assert command.family() == [] and not (folder / "stores").exists()


def test_a_run_without_a_terminal_is_found_watched_and_stopped(adamctl: Runner, experiment: Path) -> None:
    code, stdout, stderr = adamctl.run("train", experiment, "--detach", "--json")
    assert code == 0, stderr
    started = json.loads(stdout)
    assert started["run"] == "small/001" and "adamctl attach small/001" in stderr
    try:
        follow = adamctl.start("logs", "-f")
        code, stdout, stderr = adamctl.run("status", "--json")
        assert {"coordinator", "worker-1", "ps-1", "data-1"} <= {node["node"] for node in json.loads(stdout)["nodes"]}
        assert adamctl.run("top", "small", "--once")[0] == 0
        code, stdout, _ = adamctl.run("run", "list", "--json")
        (listed,) = json.loads(stdout)["runs"]
        assert (listed["run"], listed["live"]) == ("small/001", True)
        assert adamctl.run("run", "rm", "small/001")[0] == 2
        attached = adamctl.start("attach", "--plain")
        assert attached.process.stderr is not None
        for line in attached.process.stderr:
            if line.startswith("small: training"):
                break
        attached.interrupt()
        code, _, stderr = attached.wait()
        assert (code, stderr.splitlines()[-1]) == (
            0,
            "small/001 keeps running; adamctl attach small/001 shows it again",
        )
        last = adamctl.start("attach", "small/001", "--plain")
        assert last.process.stderr is not None and last.process.stderr.readline()
        assert adamctl.run("run", "stop") == (0, "run small/001 was asked to end\n", "")
        code, _, stderr = last.wait()
        assert code == 1 and "small: stopped: adamctl run stop" in stderr
    finally:
        ended = wait_for_the_end_of(started["pid"])
    assert ended, "the front ends by itself"
    code, stdout, _ = follow.wait(WAIT_S)
    assert code == 0 and "run small: stopped" in stdout
    (folder,) = (adamctl.folder / "runs" / "small").iterdir()
    assert (folder / "summary.json").exists() and not (folder / "stores").exists()
    code, stdout, _ = adamctl.run("run", "show", "--json")
    assert (json.loads(stdout)["state"], json.loads(stdout)["live"]) == ("stopped", False)
    assert adamctl.run("attach")[0] == 2, "no run goes on any more"


def wait_for_the_end_of(pid: int) -> bool:
    """Waits for a process that is not ours to wait for; kills it if it does not end."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


def test_what_is_wrong_with_a_detached_run_is_told_before_it_goes_on(adamctl: Runner, experiment: Path) -> None:
    code, stdout, stderr = adamctl.run("train", experiment, "--detach", "--set", "train.batch=0")
    assert (code, stdout) == (2, "") and "train.batch" in stderr
    nowhere = ("--set", "data.format=idx", "--set", "data.source=nowhere")
    code, stdout, stderr = adamctl.run("train", experiment, "--detach", *nowhere)
    assert (code, stdout) == (2, "") and "no data set called 'nowhere' was found" in stderr
