"""What a run does when one of its servers or workers is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adamctl.errors import RemoteError, RunFailedError
from adamctl.roles.coordinator import server
from adamctl.roles.data import server as data_server
from adamctl.roles.ps import server as ps_server
from tests.roles.coordinator.played_run import (
    EXAMPLES,
    heard,
    make_experiment,
    until,
    world,
)


async def test_a_lost_server_fails_the_run_with_its_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path, store="none"))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("ps-0")
        assert "parameter server ps-0" in await worker.work()
        with pytest.raises(RunFailedError, match=r"parameter server ps-0 .* is gone"):
            await w.ended()


async def test_a_server_that_keeps_its_part_on_disk_may_die_and_come_back(tmp_path: Path) -> None:
    options = {"apply_threads": "1", "store": str(tmp_path / "store"), "loss_window_s": 0.1}
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.cluster.stop("ps-0")
        await w.cluster.start("ps", "ps-0", ps_server.run, options)
        await w.start_run(make_experiment(tmp_path, workers=1), job="small")
        worker = await w.worker()
        client = await w.client()
        for life in (1, 2):
            await w.cluster.kill("ps-0")
            await w.cluster.start("ps", "ps-0", ps_server.run, options)
            await until(client, lambda progress, life=life: heard(progress, "ps-0 is back") >= life)
        await worker.work()
        await w.ended()


async def test_a_server_that_does_not_come_back_fails_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SERVER_AGAIN_S", 0.1)
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("ps-0")
        assert "parameter server ps-0" in await worker.work()
        with pytest.raises(RunFailedError, match=r"parameter server ps-0 .* is gone"):
            await w.ended()


async def test_a_server_that_comes_back_without_its_part_fails_the_run(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("ps-0")
        await w.cluster.start("ps", "ps-0", ps_server.run, {"apply_threads": "1"})
        await worker.work()
        with pytest.raises(RemoteError, match="ps-0 was restarted and no longer has"):
            await w.ended()


@pytest.mark.parametrize("servers", [1, 2])
async def test_data_servers_may_die_and_come_back(tmp_path: Path, servers: int) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(data=servers)
        await w.start_run(make_experiment(tmp_path, workers=1), job="small")
        worker = await w.worker()
        client = await w.client()
        for life in (1, 2):  # the second time, it is the one that came back which dies
            for number in range(servers):
                await w.cluster.kill(f"data-{number}")
            for number in range(servers):
                await w.cluster.start("data", f"data-{number}", data_server.run, {"threads": 1})
            await until(client, lambda progress, life=life: heard(progress, "is back") >= life)
        await worker.work()
        await w.ended()


async def test_a_run_without_any_data_server_fails_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DATA_AGAIN_S", 0.1)
    async with world(tmp_path) as w:
        await w.start_servers(data=2)
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("data-0")
        await w.cluster.kill("data-1")
        assert "data server data-" in await worker.work()
        with pytest.raises(RunFailedError, match=r"data server data-[01] is gone, and it was the last one"):
            await w.ended()


async def test_a_killed_worker_does_not_end_the_run(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path, workers=2))
        killed, other = await w.worker(), await w.worker()
        await killed.ask()
        await killed.client.close()
        await other.work()
        await w.ended()
        summary = json.loads((tmp_path / "001" / "summary.json").read_text())
        assert summary["examples"] == 2 * EXAMPLES
