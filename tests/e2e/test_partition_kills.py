"""Partitions are killed, stopped and cut off at random while a run trains: it goes on, and counts each example once.

ADAMCTL_PARTITION_FAULTS is how many faults there are, in as many runs as they take; each run has its own seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psutil
import pytest

from adamctl.roles.coordinator.core.progress import RunProgress
from tests.e2e.conftest import Command, Runner
from tests.e2e.followed_run import FollowedRun
from tests.e2e.relay import HOST, Relay
from tests.e2e.test_by_hand import DIGITS, Cluster
from tests.ports import free_ports

FAULTS = int(os.environ.get("ADAMCTL_PARTITION_FAULTS", "100"))
FAULTS_OF_A_RUN = 10
PASSES, EXAMPLES = 30, 1437
GOES_ON_S = 90.0
"""A stopped member is noticed within 5 s; then a group forms, compiles from its cache and fetches parameters."""
NOTICED_S = 60.0
KINDS = ("kill", "kill", "kill", "pause", "stop", "cut")
SETTINGS = [(2, True, False), (3, False, False), (2, False, True), (3, True, True)]
"""Partitions, whether there is a spare, and whether members are linked through relays that can be cut."""


class Trial(FollowedRun):
    """One run, its processes, and what is done to them.

    Attributes:
        told: each fault, for whoever looks for its cause.
        down: workers that are not started again before the next fault: a spare takes their place.
    """

    def __init__(self, runner: Runner, seed: int, folder: Path, cleanup: ExitStack) -> None:
        self.chance, self.seed = Random(seed), seed
        self.partitions, self.has_spare, self.relayed = SETTINGS[seed % len(SETTINGS)]
        self.runner, self.told = runner, list[str]()
        self.environment = {"TMPDIR": str(folder)} | ({"ADAMCTL_TRANSPORT": "tcp"} if self.relayed else {})
        self.cluster = Cluster(runner)
        self.cluster.environment |= self.environment
        self.cluster.start("ps", "--name", "ps-1")
        self.cluster.start("data", "--name", "data-1")
        names = [f"worker-{number}" for number in range(self.partitions + self.has_spare)]
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.relays: dict[str, Relay] = {}
        for name, port in self.ports.items() if self.relayed else ():
            self.relays[name] = Relay(port)
            cleanup.callback(self.relays[name].close)
        self.workers = {name: self.start_worker(name) for name in names}
        (port,) = free_ports(1)
        self.address = f"tcp://127.0.0.1:{port}"
        self.folder = runner.folder / "run"
        settings = (
            f"cluster.workers={self.partitions}", f"cluster.partitions={self.partitions}", f"train.passes={PASSES}",
            "train.target=1.0", "train.evaluate_every=50", "optimizer.schedule.type=constant", "optimizer.lr=0.02",
            f"seed={seed}",
        )  # fmt: skip
        flags = [part for setting in settings for part in ("--set", setting)]
        self.coordinator = self.cluster.start(
            "coordinator", "--experiment", str(DIGITS), "--port", str(port), "--run-dir", str(self.folder), *flags
        )
        self.faults = self._next_partition = 0
        self.down = set[str]()

    def start_worker(self, name: str) -> Command:
        where = ("--port", str(self.ports[name]), "--advertise", HOST) if self.relayed else ()
        return self.cluster.start("worker", "--name", name, "--threads", "1", *where)

    # --- looking ----------------------------------------------------------------------------------------------------

    def members(self, progress: RunProgress) -> list[str]:
        """The nodes of the only replica, in the order of their partitions; none while there is no whole one."""
        return [one.node for one in progress.replicas[0].members] if progress.replicas else []

    # --- faults -----------------------------------------------------------------------------------------------------

    async def fault(self) -> bool:
        """One fault, after which the run trains on; False: the run was over before."""
        progress = await self.reaches(
            lambda now: len(self.members(now)) == self.partitions and now.state == "training" and now.examples > 0,
            "no replica trains", GOES_ON_S,
        )  # fmt: skip
        if progress is None:
            return False
        await asyncio.sleep(self.chance.choice((0.0, 0.1, 1.0)) * self.chance.random())
        progress = await self.status()
        if progress is None or progress.final or not progress.replicas:
            return progress is not None and not progress.final
        kind = self.chance.choice([kind for kind in KINDS if self.relayed or kind != "cut"])
        partition = self._next_partition = (self._next_partition + 1) % self.partitions
        node, epoch = self.members(progress)[partition], progress.replicas[0].group_epoch
        self.told.append(f"{kind} {node}, partition {partition} of group {epoch}, at {progress.examples} examples")
        do: dict[str, Callable[[str, int], Awaitable[None]]] = {
            "kill": self.kill, "pause": self.pause, "stop": self.stop, "cut": self.cut
        }  # fmt: skip
        await do[kind](node, epoch)
        self.faults += 1
        before = progress.examples
        after = await self.status()
        assert after is None or after.examples >= before, f"what was counted is not any more: {self.told}"
        left = 0 if after is None else min(after.examples + 1, after.examples_total)
        await self.reaches(lambda now: now.examples >= left, "nothing is trained", GOES_ON_S)
        self.down.clear()
        await self.restart_the_dead()
        return True

    async def dissolved(self, epoch: int) -> None:
        gone = lambda now: not now.replicas or now.replicas[0].group_epoch > epoch  # noqa: E731
        await self.reaches(gone, f"group {epoch} is there", NOTICED_S)

    async def kill(self, node: str, epoch: int) -> None:
        """Its place is taken by the spare, or by the process that is started again, sooner or later."""
        self.workers[node].process.kill()
        await asyncio.to_thread(self.workers[node].wait, 30)
        if self.has_spare and self.chance.random() < 0.7:
            self.down.add(node)
        else:
            await asyncio.sleep(self.chance.choice((0.0, 0.5)))
        await self.dissolved(epoch)

    async def pause(self, node: str, epoch: int) -> None:
        """Too short for anybody to give it up."""
        process = psutil.Process(self.workers[node].process.pid)
        process.suspend()
        await asyncio.sleep(self.chance.random())
        process.resume()

    async def stop(self, node: str, epoch: int) -> None:
        """Until it is given up. What it does when it goes on is of an old group."""
        process = psutil.Process(self.workers[node].process.pid)
        process.suspend()
        try:
            await self.dissolved(epoch)
            await asyncio.sleep(self.chance.choice((0.0, 1.0)))
        finally:
            process.resume()

    async def cut(self, node: str, epoch: int) -> None:
        if self.relays[node].cut():
            await self.dissolved(epoch)
            return
        for other in self.relays.values():  # the others hold the connections
            other.cut()
        await self.dissolved(epoch)

    async def restart_the_dead(self) -> None:
        """As whoever tends workers does; one that was stopped for long has lost its membership, and may have ended."""
        for node, command in self.workers.items():
            if node not in self.down and command.process.poll() is not None:
                await asyncio.to_thread(command.wait, 30)
                self.workers[node] = self.start_worker(node)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """The run ends by itself. Nothing is left of it, first in processes that go on, then of these."""
        if self.client is not None:
            await self.client.connection.close()
        code, _, stderr = await asyncio.to_thread(self.coordinator.wait, 600)
        assert code == 0, f"seed {self.seed}: {self.told}\n{stderr}"
        summary = json.loads((self.folder / "summary.json").read_text())
        assert summary["examples"] == PASSES * EXAMPLES, f"seed {self.seed}: {self.told}"
        assert summary["best_test_top1"] > 0.9, f"seed {self.seed}: {self.told}\n{summary}"
        for node, command in self.workers.items():
            await self.free_of_buffers(node, command)
        for command in reversed(self.runner.commands):
            if command.process.poll() is None:
                command.process.terminate()
                await asyncio.to_thread(command.wait, 90)
        left = [" ".join(one.cmdline()) for command in self.runner.commands for one in command.family()]
        assert not left, f"processes left behind: {left}"

    async def free_of_buffers(self, node: str, command: Command) -> None:
        """A worker between runs maps no memory that it shared with members of its groups, or they with it."""
        for _ in range(200):
            if command.process.poll() is not None or not mapped(command.process.pid):
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"seed {self.seed}: {node} still maps {mapped(command.process.pid)}; {self.told}")


def mapped(pid: int) -> list[str]:
    """Returns the shared memory that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if "memfd:adamctl" in line]


async def trial(runner: Runner, seed: int, wanted: int) -> int:
    """One run with faults, until there were enough or it is over; returns how many."""
    folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))  # sockets' paths must be short
    try:
        with ExitStack() as cleanup:
            one = Trial(runner, seed, folder, cleanup)
            while one.faults < min(FAULTS_OF_A_RUN, wanted) and await one.fault():
                pass
            print(f"seed {seed}: {one.faults} faults, {one.partitions} partitions: {'; '.join(one.told)}")
            await one.finish()
        assert not os.listdir(folder), f"left behind: {os.listdir(folder)}"
        return one.faults
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and relays listen at a second loopback address")
async def test_partitions_are_killed_stopped_and_cut_off_at_random(tmp_path: Path) -> None:
    seed = int(os.environ.get("ADAMCTL_PARTITION_SEED", "0"))
    faults = 0
    while faults < FAULTS:
        (tmp_path / str(seed)).mkdir()
        runner = Runner(tmp_path / str(seed))
        try:
            faults += await trial(runner, seed, FAULTS - faults)
        finally:
            runner.close()
        seed += 1
    print(f"{faults} faults")
