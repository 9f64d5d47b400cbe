"""A run that fails names, last, the role that failed first and why; and what cannot get better is not tried again."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.conftest import EXAMPLES, Runner

DIGITS = EXAMPLES / "digits.toml"
WITHOUT_A_STORE = ("--set", "cluster.store=none")
"""With one, a parameter server is started again."""
HOPELESS = """\
name = "hopeless"
[data]
format = "digits"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "softmax"
units = 10
[optimizer]
type = "sgd"
lr = 1e38
[train]
passes = 2000
[cluster]
workers = 2
threads = 1
"""
BUG = '''\
"""Python imports this in every process of the run: its parameter server fails at its 20th push, as by a bug in it.

It is slow to end after that, so that everybody else notices that it is gone before its process is.
"""

import atexit
import sys
import time

if sys.orig_argv[3:5] == ["ps", "start"]:
    import asyncio

    from adamctl.roles.ps.jobs.keeper import JobKeeper
    from adamctl.roles.ps.server import ParameterServer
    from adamctl.wire.messages import PushRequest

    handle, pushes, broken = ParameterServer.handle, [], asyncio.Event()

    def counting(self, request):
        if isinstance(request.message, PushRequest):
            pushes.append(1)
            if len(pushes) == 20:
                broken.set()
        handle(self, request)

    async def failing(self):
        await broken.wait()
        raise ValueError("a bug in the server")

    follow = JobKeeper.follow

    async def following(self):
        done, others = await asyncio.wait(
            [asyncio.ensure_future(follow(self)), asyncio.ensure_future(failing(self))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for other in others:
            other.cancel()
        done.pop().result()

    ParameterServer.handle, JobKeeper.follow = counting, following
    atexit.register(time.sleep, 3.0)
'''


def test_a_bug_in_a_server_is_the_first_cause_and_not_what_the_coordinator_says_of_it(
    adamctl: Runner, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BUG)
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, _, stderr = adamctl.run("train", DIGITS, "--passes", "2000", *WITHOUT_A_STORE, PYTHONPATH=path)
    assert code == 1, stderr
    head, place, *quoted = stderr.rpartition("adamctl: error: ")[2].splitlines()
    assert "ps-1 (role ps on " in head and head.endswith("ended: ValueError: a bug in the server")
    (log,) = adamctl.folder.rglob("ps-1.log")
    assert place == f"  the end of {log.relative_to(adamctl.folder)}:"
    assert "    Traceback (most recent call last):" in quoted
    assert quoted[-1] == "    ValueError: a bug in the server", stderr
    assert not adamctl.commands[-1].family(), "processes left behind"


def test_a_killed_server_is_the_first_cause(adamctl: Runner) -> None:
    command = adamctl.start("train", DIGITS, "--passes", "2000", "--ps", "2", *WITHOUT_A_STORE)
    command.wait_until(command.trained)
    victim = command.roles("ps")[1]
    node = victim.cmdline()[victim.cmdline().index("--name") + 1]
    victim.kill()
    code, _, stderr = command.wait()
    assert code == 1, stderr
    head = stderr.rpartition("adamctl: error: ")[2].splitlines()[0]
    assert f"{node} (role ps on " in head and head.endswith("ended: killed by SIGKILL")
    assert not command.family(), "processes left behind"


def test_a_run_that_diverges_ends_soon_with_what_to_do(adamctl: Runner, tmp_path: Path) -> None:
    (tmp_path / "hopeless.toml").write_text(HOPELESS)
    code, _, stderr = adamctl.run("train", "hopeless.toml")
    assert code == 1, stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("adamctl: error: worker-"), stderr
    assert "the loss is no longer finite at learning rate 1e+38" in last
    assert "try a lower optimizer.lr, or set optimizer.clip_norm" in last
    assert "restarting it" not in stderr
    assert not adamctl.commands[-1].family(), "processes left behind"
