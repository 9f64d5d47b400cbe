"""Whatever can happen to parameter servers that keep stores, in any order, while clients count or a run trains.

    python -m tests.faults.any_fault counting|training ROUNDS SEED LEASE_S FAULT...

runs inside namespaces (`inside` is the command for it): each server has a network link of its own, to be cut both ways
or one way, and a disk of its own, to be filled.
"""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

from adamctl.bench import namespaces
from adamctl.bench.failover.cluster import FailoverCluster
from adamctl.roles.role_process import RoleCommand
from tests.faults.servers_under_fire import Fire
from tests.faults.tended_servers import COPIES, Work
from tests.faults.training_under_fire import Training

KINDS: dict[str, Callable[[FailoverCluster], Work]] = {
    "counting": lambda cluster: Fire(cluster, 2),
    "training": Training,
}
DISK_MIB = 24
CHUNK = bytes(1 << 20)
FULL_S = 2.0
LOST_LEASES = 1.6


def inside(work: str, rounds: int, seed: int, lease_s: float, *faults: str) -> tuple[list[str], dict[str, str]]:
    """Returns the command that runs rounds inside namespaces, and what it needs in its environment."""
    unshared = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    program = [sys.executable, "-m", "tests.faults.any_fault", work, str(rounds), str(seed), str(lease_s), *faults]
    return [*unshared, *program], namespaces.settings()


class Disks(FailoverCluster):
    """Servers whose stores are on file systems of their own."""

    def _start(self, stack: ExitStack) -> None:
        for name in self.servers:
            self.disk(name).mkdir(parents=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(self.disk(name))], check=True
            )
            stack.callback(subprocess.run, ["umount", "--lazy", str(self.disk(name))], check=False)
        super()._start(stack)

    def _command(self, name: str) -> RoleCommand:
        command = super()._command(name)
        if command.role != "ps":
            return command
        return replace(command, arguments=(*command.arguments, "--store", str(self.disk(name) / "store")))

    def disk(self, name: str) -> Path:
        return self.folder / "disks" / name

    def fill(self, name: str) -> None:
        with (self.disk(name) / "filler").open("wb", buffering=0) as file:
            try:
                while file.write(CHUNK):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error

    def free(self, name: str) -> None:
        (self.disk(name) / "filler").unlink()


class AnyFault:
    """What happens to servers, by name; each is over when its method returns."""

    def __init__(self, work: Work, cluster: Disks, chance: Random) -> None:
        self.work, self.cluster, self.chance = work, cluster, chance
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill-one": lambda: self.kill(1),
            "kill-two": lambda: self.kill(2),
            "stop": self.stop,
            "cut": lambda: self.cut(inward=True, outward=True),
            "cut-inward": lambda: self.cut(inward=True, outward=False),
            "cut-outward": lambda: self.cut(inward=False, outward=True),
            "cut-all": self.cut_all,
            "full": self.full,
        }

    def leases_s(self) -> float:
        """Returns 0 to 3 leases, mostly near where a server is given up."""
        return self.cluster.lease_s * self.chance.choice([0.3, 0.95, 1.0, 1.2, 1.3, 2.0, 3.0])

    def one(self) -> str:
        return self.chance.choice(self.cluster.servers)

    async def kill(self, count: int) -> None:
        nodes = self.chance.sample(self.cluster.servers, count)
        for node in nodes:
            self.work.kill(node)
            await asyncio.sleep(self.chance.choice([0.0, 0.1, 0.5]) * self.chance.random())
        if count == 1:
            await self.work.progress(2)
        await asyncio.sleep(self.chance.choice([0.0, 0.5]) * self.chance.random())
        await self.work.start(*nodes)

    async def stop(self) -> None:
        node, for_s = self.one(), self.leases_s()
        self.cluster.stop(node)
        try:
            await asyncio.sleep(for_s)
        finally:
            self.cluster.go_on(node)

    async def cut(self, inward: bool, outward: bool) -> None:
        node, for_s = self.one(), self.leases_s()
        assert self.cluster.links is not None
        await asyncio.to_thread(self.cluster.links.cut, node, inward=inward, outward=outward)
        try:
            await asyncio.sleep(for_s)
            await self.work.progress(2)
        finally:
            await asyncio.to_thread(self.cluster.links.heal, node)

    async def cut_all(self) -> None:
        """Controllers that live hear of no server for longer than G, so that each has to begin anew, from its disk."""
        links, servers = self.cluster.links, self.cluster.servers
        assert links is not None
        try:
            for node in servers:
                await asyncio.to_thread(links.cut, node, inward=True, outward=True)
            await asyncio.sleep(LOST_LEASES * self.cluster.lease_s)
        finally:
            for node in servers:
                await asyncio.to_thread(links.heal, node)

    async def full(self) -> None:
        node = self.one()
        await asyncio.to_thread(self.cluster.fill, node)
        try:
            await self.work.progress(5)
            await asyncio.sleep(FULL_S * self.chance.random())
        finally:
            self.cluster.free(node)


async def rounds(kind: str, count: int, seed: int, lease_s: float, faults: list[str]) -> None:
    """One fault after the other; after each everything that was done is looked at, and every copy."""
    chance = Random(seed)
    with Disks(COPIES, lease_s) as cluster:
        work = KINDS[kind](cluster)
        try:
            await work.open()
            await work.progress(5)
            trouble = AnyFault(work, cluster, chance)
            for number in range(count):
                name = chance.choice(faults or list(trouble.faults))
                print(f"seed {seed}, round {number}: {name}", flush=True)
                await trouble.faults[name]()
                await work.whole()
                await work.progress(2)
                await work.check()
        finally:
            await work.close()


if __name__ == "__main__":
    asyncio.run(rounds(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
