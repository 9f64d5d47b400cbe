"""Workers and servers are killed and stopped at random while a batch algorithm runs: it ends with the same bits.

Three servers have three copies of everything or, in every third run, one copy that is on disk before a commit counts;
two workers evaluate. Every run's parameters have the hash of a run that nothing disturbed. ADAMCTL_BATCH_FAULTS is how
many faults there are, in as many runs as they take, each with a seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from adamctl.bench.failover.cluster import wait_whole
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import ControllerClient
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.followed_run import FollowedRun
from tests.e2e.test_by_hand import Cluster
from tests.e2e.trained_bits import digest
from tests.ports import free_ports

FAULTS = int(os.environ.get("ADAMCTL_BATCH_FAULTS", "100"))
FAULTS_OF_A_RUN = 10
EXPERIMENT, JOB = EXAMPLES / "digits_lbfgs.toml", "digits_lbfgs"
EVALUATIONS, COPIES = 500, 3
SETTINGS = (
    f"train.passes={EVALUATIONS}", "train.evaluate_every=1000", "train.checkpoint_every=100",
    "optimizer.gradient_tolerance=0", "optimizer.change_tolerance=0",
)  # fmt: skip
GOES_ON_S, ENDS_S = 120.0, 900.0
SOON_S = (0.0, 0.02, 0.3)
KINDS = ("kill worker", "kill worker", "kill server", "kill server", "pause worker", "pause server", "stop worker")


class Trial(FollowedRun):
    """One run, its processes, and what is done to them.

    Attributes:
        told: each fault, for whoever looks for its cause.
    """

    def __init__(self, runner: Runner, seed: int, folder: Path) -> None:
        self.chance, self.seed, self.told, self.faults = Random(seed), seed, list[str](), 0
        self.cluster = Cluster(runner)
        self.cluster.environment["TMPDIR"] = str(folder)
        self.cluster.environment["ADAMCTL_TRANSPORT"] = self.chance.choice(("auto", "auto", "tcp"))
        self.runner, self.durable = runner, seed % 3 == 2
        self.servers = {f"ps-{number}": self.start_server(f"ps-{number}") for number in range(1, COPIES + 1)}
        self.cluster.start("data", "--name", "data-1")
        self.workers = {name: self.start_worker(name) for name in ("worker-1", "worker-2")}
        (port,) = free_ports(1)
        self.address, self.folder = f"tcp://127.0.0.1:{port}", runner.folder / "run"
        kept = ("cluster.acks=durable",) if self.durable else (f"cluster.replication={COPIES}",)
        settings = (*SETTINGS, "cluster.workers=2", f"cluster.ps={COPIES}", *kept)
        flags = [part for setting in settings for part in ("--set", setting)]
        self.coordinator = self.cluster.start(
            "coordinator", "--experiment", str(EXPERIMENT), "--port", str(port), "--run-dir", str(self.folder), *flags
        )
        self.store: ControllerClient | None = None

    def start_server(self, name: str) -> Command:
        store = ("--store", str(self.runner.folder / name)) if self.durable else ()
        return self.cluster.start("ps", "--name", name, *store)

    def start_worker(self, name: str) -> Command:
        return self.cluster.start("worker", "--name", name, "--threads", "1")

    # --- looking ------------------------------------------------------------------------------------------------------

    async def whole(self) -> None:
        """Waits until all copies are there: with one of three lost, the next one may take what nobody else has."""
        if self.store is None:
            hello = make_hello("operator", "kills-too")
            self.store = ControllerClient(StreamTransport(), [f"tcp://{self.cluster.address}"], lambda: hello)
        waiting = asyncio.create_task(wait_whole(self.store, JOB, COPIES, GOES_ON_S))
        while not waiting.done():
            progress = await self.status()
            if progress is None or progress.final:
                waiting.cancel()  # the buckets are gone with the run
                await asyncio.gather(waiting, return_exceptions=True)
                return
            await asyncio.sleep(0.1)
        await waiting

    # --- faults -------------------------------------------------------------------------------------------------------

    async def fault(self) -> bool:
        """One fault, after which the run goes on; False: it was over before."""
        progress = await self.reaches(
            lambda now: now.batch is not None and now.batch.evaluations > 0 and now.state != "starting",
            "it begins",
            GOES_ON_S,
        )
        if progress is None:
            return False
        kind = self.chance.choice(KINDS)
        await self.restart_the_dead()
        if kind == "kill server" and not self.durable:
            await self.whole()
        await asyncio.sleep(self.chance.choice(SOON_S) * self.chance.random())
        progress = await self.status()
        if progress is None or progress.final or progress.batch is None:
            return False
        some = self.servers if kind.endswith("server") else self.workers
        node = self.chance.choice(sorted(some))
        self.told.append(f"{kind} {node} at evaluation {progress.batch.evaluations}, bundle {progress.batch.bundles}")
        await {"kill": self.kill, "pause": self.pause, "stop": self.stop}[kind.partition(" ")[0]](some[node])
        self.faults += 1
        before = progress.batch.evaluations
        await self.reaches(
            lambda now: now.batch is not None and now.batch.evaluations > before,
            f"no evaluation after {before}",
            GOES_ON_S,
        )
        return True

    async def kill(self, command: Command) -> None:
        command.process.kill()
        await asyncio.to_thread(command.wait, 30)
        await asyncio.sleep(self.chance.choice((0.0, 0.5)))

    async def pause(self, command: Command, seconds: float = 1.5) -> None:
        """Mostly too short for anybody to give it up."""
        with suppress(psutil.NoSuchProcess):  # one that was stopped for long has ended by itself
            process = psutil.Process(command.process.pid)
            process.suspend()
            try:
                await asyncio.sleep(seconds * self.chance.random())
            finally:
                process.resume()

    async def stop(self, command: Command) -> None:
        """For longer than a worker is waited for."""
        await self.pause(command, 12.0)

    async def restart_the_dead(self) -> None:
        """As whoever tends a cluster does."""
        for some, start in ((self.workers, self.start_worker), (self.servers, self.start_server)):
            for node, command in some.items():
                if command.process.poll() is not None:
                    await asyncio.to_thread(command.wait, 30)
                    some[node] = start(node)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def finish(self) -> str:
        """The run ends by itself; returns the hash of its parameters."""
        await self.reaches(lambda now: False, "it does not end", ENDS_S)
        for one in (self.client.connection if self.client else None, self.store):
            if one is not None:
                await one.close()
        code, _, stderr = await asyncio.to_thread(self.coordinator.wait, 300)
        assert code == 0, f"seed {self.seed}: {self.told}\n{stderr}"
        summary = json.loads((self.folder / "summary.json").read_text())
        found = summary["batch"]["evaluations"], summary["batch"]["restarts"]
        assert found == (EVALUATIONS, 0), f"seed {self.seed}: {self.told}\n{summary}"
        for command in reversed(self.cluster.runner.commands):
            if command.process.poll() is None:
                command.process.terminate()
                await asyncio.to_thread(command.wait, 90)
        return digest(self.folder)


async def trial(runner: Runner, seed: int, wanted: int, right: str) -> int:
    """One run with faults, until there were enough or it is over; returns how many."""
    folder = Path(tempfile.mkdtemp(prefix="b", dir="/tmp"))  # sockets' paths must be short
    try:
        one = Trial(runner, seed, folder)
        while one.faults < min(FAULTS_OF_A_RUN, wanted) and await one.fault():
            pass
        print(f"seed {seed}: {one.faults} faults: {'; '.join(one.told)}", flush=True)
        assert await one.finish() == right, f"seed {seed}: other bits; {one.told}"
        return one.faults
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped by signals")
async def test_kills_and_stops_cost_no_bit(tmp_path: Path, adamctl: Runner) -> None:
    flags = [part for setting in SETTINGS for part in ("--set", setting)]
    code, stdout, stderr = await asyncio.to_thread(adamctl.run, "train", EXPERIMENT, *flags, "--json")
    assert code == 0, stderr
    right = digest(json.loads(stdout)["run_folder"])
    seed, faults = int(os.environ.get("ADAMCTL_BATCH_SEED", "0")), 0
    while faults < FAULTS:
        (tmp_path / f"seed-{seed}").mkdir()
        runner = Runner(tmp_path / f"seed-{seed}")
        try:
            faults += await trial(runner, seed, FAULTS - faults, right)
        finally:
            runner.close()
        seed += 1
    print(f"{faults} faults")
