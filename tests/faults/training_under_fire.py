"""A run that trains on handwritten digits, on three real parameter servers with three copies of everything."""

from __future__ import annotations

import asyncio
from pathlib import Path

from adamctl.bench.failover.cluster import FailoverCluster
from adamctl.bench.namespaces import HUB
from adamctl.bench.role_processes import role_hello
from adamctl.launch.plan import COORDINATOR, coordinator_role
from adamctl.net.stream import StreamTransport
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.role_process import RoleCommand
from tests.faults.tended_servers import COPIES, STARVED_S, Work

JOB = "digits"
EXPERIMENT = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
SETTINGS = (
    f"cluster.ps={COPIES}",
    f"cluster.replication={COPIES}",
    "train.passes=100000",
    "train.evaluate_every=1",
    "train.checkpoint_every=10",
    "optimizer.schedule.type=constant",
)
STEP_EXAMPLES = 256
TOP1_MIN = 0.95
LOOK_S = 0.05


class Training(Work):
    """One worker, one data server and the coordinator, out of reach of what happens to the servers."""

    def __init__(self, cluster: FailoverCluster) -> None:
        super().__init__(cluster, JOB)
        self._run_folder = cluster.folder / "run"
        self._client: CoordinatorClient | None = None

    async def open(self) -> None:
        """Starts the run; returns when it trains."""
        cluster = self.cluster
        own = ("--bind", HUB if cluster.links is not None else "127.0.0.1", "--socket-folder", str(cluster.folder))
        member = ("--controller", cluster.keeper, "--port", "0", "--log-level", "info", *own)
        settings = [part for setting in SETTINGS for part in ("--set", setting)]
        arguments = ("--job", JOB, *settings, *member)
        commands = (
            RoleCommand("data", "data-1", member),
            coordinator_role(EXPERIMENT, self._run_folder, "none", arguments, COORDINATOR),
            RoleCommand("worker", "worker-1", ("--threads", "1", *member)),
        )
        cluster.roles.add(*commands)
        for command in commands:
            cluster.roles.start_one(command.node)
        await asyncio.to_thread(cluster.wait_serving, *(command.node for command in commands))
        hello = role_hello("front", "front-training")
        address = cluster.addresses[COORDINATOR]
        self._client = await CoordinatorClient.connect(StreamTransport(), (address,), hello)
        await self.progress()

    async def _look(self) -> RunProgress:
        assert self._client is not None
        found = await self._client.status()
        assert not found.final, f"{found.state}: {found.failure}\n{self.cluster.log_end(COORDINATOR)}"
        return found

    async def progress(self, steps: int = 1) -> None:
        wanted = (await self._look()).examples + steps * STEP_EXAMPLES
        async with asyncio.timeout(STARVED_S):
            while (await self._look()).examples < wanted:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    async def check(self) -> None:
        """The next evaluations, begun with what is there now, reach what an undisturbed run reaches."""
        before = len((await self._look()).evaluations)
        async with asyncio.timeout(STARVED_S):
            while True:
                found = await self._look()
                if len(found.evaluations) > before + 1 and found.evaluations[-1].top1 >= TOP1_MIN:
                    return
                await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        await self.store.close()
