"""A coordinator killed while it fetches a checkpoint in parts, from a server that cannot write into its folder."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adamctl.cli.cluster.access import ClusterAccess, running_job
from adamctl.net import loop
from tests.e2e.conftest import Command, Runner
from tests.e2e.test_by_hand import Cluster

EXPERIMENT = """
name = "wide"
[data]
format = "digits"
[model]
input = [64]
[[model.layers]]
type = "dense"
units = 1024
[[model.layers]]
type = "dense"
units = 4096
[[model.layers]]
type = "softmax"
units = 10
[optimizer]
type = "adam"
lr = 0.0001
[train]
passes = 100000
batch = 128
checkpoint_every = 1
evaluate_every = 100000
checkpoint_keep = 100
[cluster]
workers = 1
ps = 1
"""
"""50 MB of parameters and state of the rule: two portions, which are several parts."""
TRIES_S = 240.0


def finished(run: Path) -> list[Path]:
    return sorted(path.parent for path in run.glob("checkpoints/*/manifest.json"))


def part_of(folder: Path) -> Path:
    return folder / ".shards-ps-1.adam.partial"


def begun(run: Path) -> list[Path]:
    """Returns the checkpoint that is being written, if one is."""
    return [path.parent for path in run.glob("checkpoints/*/.nonce")]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TRIES_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def stopped_before_it_hears(run: Path, server: Command, cluster: Cluster) -> Path:
    """Stops the server, then asks for a checkpoint; returns its folder. Who asks is gone when the server goes on."""
    before = finished(run)

    async def ask() -> Path:
        async with ClusterAccess([cluster.address], "", deadline_s=30.0) as access:
            _, record = await running_job(access.store, None)
            client = await access.coordinator_of(record)
            assert client is not None
            await until(lambda: finished(run) != before)  # so that the next one is the one that is asked for
            server.process.send_signal(signal.SIGSTOP)
            asking = asyncio.ensure_future(client.checkpoint(deadline_s=60.0))
            await until(lambda: begun(run))
            folder = begun(run)[0]
            await asyncio.sleep(0.3)  # the request is on its way
            asking.cancel()
            await asyncio.gather(asking, client.close(), return_exceptions=True)
            return folder

    folder = loop.run(ask())
    assert not part_of(folder).exists()
    return folder


def stopped_half_way(run: Path, server: Command, cluster: Cluster) -> Path:
    """Stops the server when a part of its file has come, and not all; returns the checkpoint's folder."""
    (whole, *_) = [path.stat().st_size for folder in finished(run) for path in folder.glob("shards-*.adam")]

    def half() -> list[Path]:
        with suppress(FileNotFoundError):  # it was finished meanwhile
            parts = [part_of(folder) for folder in begun(run)]
            return [part.parent for part in parts if part.exists() and 0 < part.stat().st_size < whole]
        return []

    until_s = time.monotonic() + TRIES_S
    while time.monotonic() < until_s:
        if half():
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)  # what was sent before has arrived
            if found := half():
                return found[0]
            server.process.send_signal(signal.SIGCONT)
        time.sleep(0.0005)
    pytest.fail("no checkpoint was seen half fetched")


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [stopped_before_it_hears, stopped_half_way])
def test_a_coordinator_killed_in_the_middle_of_a_streamed_checkpoint(
    adamctl: Runner, stopped: Callable[[Path, Command, Cluster], Path]
) -> None:
    folder, run = adamctl.folder, adamctl.folder / "run"
    (folder / "wide.toml").write_text(EXPERIMENT)
    cluster = Cluster(adamctl)
    server = cluster.start("ps", "--name", "ps-1", "--checkpoint-root", str(folder / "elsewhere"))
    cluster.start("data", "--name", "data-1")
    cluster.start("worker", "--name", "worker-1", "--threads", "1")
    cluster.members("ps-1", "data-1", "worker-1")

    def coordinator(*resume: str) -> Command:
        given = ("--name", "coordinator", "--experiment", str(folder / "wide.toml"), "--run-dir", str(run))
        return cluster.start("coordinator", *given, "--job", "wide", "--wait-for-name", *resume)

    def streams() -> Any:
        code, stdout, _ = adamctl.run("status", "--json", timeout_s=60, **cluster.environment)
        nodes = json.loads(stdout)["nodes"] if code in (0, 4) else []
        return next((node["status"].get("checkpoint_streams") for node in nodes if node["node"] == "ps-1"), None)

    killed = coordinator()
    killed.wait_until(lambda: finished(run))
    unfinished = stopped(run, server, cluster)
    before = finished(run)[-1]
    killed.process.send_signal(signal.SIGKILL)
    killed.process.communicate(timeout=60)
    server.process.send_signal(signal.SIGCONT)
    assert unfinished > before and finished(run)[-1] == before, "a half-written checkpoint counts as a whole one"
    assert adamctl.run("ckpt", "verify", unfinished)[0] != 0, "and is taken for one"
    code, stdout, stderr = adamctl.run("ckpt", "verify", run)
    assert code == 0 and before.name in stdout and unfinished.name not in stdout, (stdout, stderr)
    server.wait_until(lambda: streams() == 0, 60)
    again = coordinator("--resume", str(run))
    again.wait_until(lambda: finished(run)[-1] >= unfinished)
    assert not part_of(unfinished).exists()
    manifest = json.loads((finished(run)[-1] / "manifest.json").read_text())
    earlier = json.loads((before / "manifest.json").read_text())
    assert manifest["state"]["examples"] > earlier["state"]["examples"]
    again.process.terminate()
    _, _, stderr = again.wait(120)
    assert f"resumes from checkpoint {earlier['number']}, {earlier['state']['examples']} examples" in stderr
    code, stdout, stderr = adamctl.run("ckpt", "verify", run)
    assert code == 0 and unfinished.name in stdout, (stdout, stderr)
