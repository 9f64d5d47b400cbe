"""The controller is lost with its folder in mid-work; a backup is restored onto a new one, and nothing goes back."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from adamctl.bench.failover.cluster import buckets_of
from adamctl.bench.role_processes import CONTROLLER
from adamctl.config.records import LEAP
from adamctl.errors import AdamctlError
from adamctl.roles.role_process import RoleCommand
from tests.faults.servers_under_fire import JOB, Fire
from tests.faults.tended_servers import COPIES, QUICK_LEASE_S, WHOLE_S
from tests.faults.test_recovered import StoredCluster, command, saved
from tests.ports import free_ports


class FixedCluster(StoredCluster):
    """Its controller is always at the same address."""

    def __init__(self, servers: int, lease_s: float) -> None:
        super().__init__(servers, lease_s)
        (self._port,) = free_ports(1)

    def _command(self, name: str) -> RoleCommand:
        made = super()._command(name)
        if name != CONTROLLER:
            return made
        return replace(made, arguments=(*made.arguments, "--port", str(self._port)))


class EpochWatch:
    """Reads the records of all buckets again and again.

    `highest`: bucket -> the highest epoch ever read; `leapt`: all are restored ones."""

    def __init__(self, fire: Fire) -> None:
        self._store = fire.cluster.connect()
        self.highest: dict[int, int] = {}
        self.leapt = asyncio.Event()
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            try:
                records = await buckets_of(self._store, JOB)
            except AdamctlError:
                records = {}
            for bucket, record in records.items():
                assert record.epoch >= self.highest.get(bucket, 0), f"bucket {bucket} goes back to {record}"
                self.highest[bucket] = record.epoch
            if self.highest and all(epoch > LEAP for epoch in self.highest.values()):
                self.leapt.set()
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Raises what it has found."""
        self._task.cancel()
        (found,) = await asyncio.gather(self._task, return_exceptions=True)
        await self._store.close()
        if isinstance(found, Exception):
            raise found


@pytest.mark.slow
async def test_a_backup_is_restored_under_load_and_no_epoch_goes_back(tmp_path: Path) -> None:
    with FixedCluster(COPIES, QUICK_LEASE_S) as cluster:
        fire = Fire(cluster, 2)
        watch = EpochWatch(fire)
        try:
            await fire.open()
            await saved(fire)
            await fire.whole()
            code, told, errors = await command(fire, "controller", "backup", str(tmp_path / "backup"))
            assert code == 0 and told.startswith(f"{tmp_path}/backup: "), errors
            backed_up = await buckets_of(fire.store, JOB)
            fire.kill("ps-3")
            await fire.start("ps-3")
            await fire.whole()
            await fire.progress(10)
            before = await buckets_of(fire.store, JOB)
            assert any(before[one].epoch > record.epoch for one, record in backed_up.items())
            cluster.kill(CONTROLLER)
            await fire.progress(5)  # nothing needs a controller as yet
            shutil.move(cluster.folder / CONTROLLER, tmp_path / "lost")
            await asyncio.to_thread(cluster.start, CONTROLLER)
            await asyncio.to_thread(cluster.wait_serving, CONTROLLER)
            code, told, errors = await command(fire, "controller", "restore", str(tmp_path / "backup"))
            assert code == 0 and told.startswith("restored "), errors
            await asyncio.wait_for(watch.leapt.wait(), WHOLE_S)
            await fire.whole()
            after = await buckets_of(fire.store, JOB)
            assert all(after[one].epoch > record.epoch for one, record in before.items())
            await fire.progress(20)
            await fire.check()  # each push once, in each copy
        finally:
            await fire.close()
            await watch.close()
