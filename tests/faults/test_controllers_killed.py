"""Controllers as processes: commits go on without any minority, nothing is granted without a majority, one history."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from adamctl.errors import UnreachableError
from adamctl.wire.messages import ConfigChanges, NodeRegisterRequest
from tests.e2e.conftest import EXAMPLES, Runner, adamctl  # noqa: F401
from tests.faults.controllers_under_fire import Fire, under_fire

CALM_S = 1.0
ROUNDS = int(os.environ.get("ADAMCTL_FAULT_ROUNDS", "40"))


async def kill_the_leader(fire: Fire, random: Random) -> Callable[[], None]:
    name = await fire.leader()
    fire.kill(name)
    return lambda: fire.start(name)


async def kill_a_minority(fire: Fire, random: Random) -> Callable[[], None]:
    leader = await fire.leader()
    others = [name for name in fire.addresses if name != leader]
    names = [leader, *random.sample(others, (len(fire.addresses) - 1) // 2 - 1)]
    if random.random() < 0.3:
        names[0] = next(name for name in others if name not in names)
    for name in names:
        fire.kill(name)

    def mend() -> None:
        for name in names:
            fire.start(name)

    return mend


async def stop_the_leader(fire: Fire, random: Random) -> Callable[[], None]:
    name = await fire.leader()
    fire.stop(name)
    return lambda: fire.go_on(name)


async def cut_the_leader_off(fire: Fire, random: Random) -> Callable[[], None]:
    """With a minority on its side; the clients reach all."""
    leader = await fire.leader()
    others = [name for name in fire.addresses if name != leader]
    side = [leader, *random.sample(others, random.randint(0, (len(fire.addresses) - 1) // 2 - 1))]
    fire.links.isolate(side, [name for name in fire.addresses if name not in side])
    return fire.links.cut.clear


async def cut_the_leader_off_one_way(fire: Fire, random: Random) -> Callable[[], None]:
    """It hears nobody, or nobody hears it; the clients reach all."""
    leader = await fire.leader()
    heard = random.random() < 0.5
    for name in fire.addresses:
        if name != leader:
            fire.links.cut.add((leader, name) if heard else (name, leader))
    return fire.links.cut.clear


FAULTS = (kill_the_leader, kill_a_minority, stop_the_leader, cut_the_leader_off, cut_the_leader_off_one_way)
Fault = Callable[[Fire, Random], Awaitable[Callable[[], None]]]


async def suffer(fire: Fire, fault: Fault, random: Random) -> float:
    """Lets something happen; returns after how many seconds a change asked for since was acknowledged; mends it."""
    mend = await fault(fire, random)
    spent_s = await fire.commits()
    await asyncio.sleep(CALM_S)
    mend()
    await fire.commits()
    return spent_s


def told(capsys: pytest.CaptureFixture[str], members: int, spent_s: dict[str, list[float]]) -> None:
    with capsys.disabled():
        for name, times in spent_s.items():
            median = sorted(times)[len(times) // 2]
            print(
                f"\n  {members} controllers, {name}: {median:.2f} s, worst of {len(times)}: {max(times):.2f} s", end=""
            )
        print()


@pytest.mark.parametrize("members", [3, 5])
async def test_commits_go_on_without_any_minority(
    members: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random, spent_s = Random(members), {}
    async with under_fire(tmp_path, members) as fire:
        for fault in FAULTS if members == 3 else (kill_a_minority, cut_the_leader_off):
            spent_s[fault.__name__] = [await suffer(fire, fault, random)]
    told(capsys, members, spent_s)


@pytest.mark.slow
@pytest.mark.parametrize("members", [3, 5])
async def test_commits_go_on_again_and_again(members: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random(members)
    spent_s: dict[str, list[float]] = {fault.__name__: [] for fault in FAULTS}
    async with under_fire(tmp_path, members) as fire:
        for number in range(ROUNDS):
            fault = FAULTS[number % len(FAULTS)]
            spent_s[fault.__name__].append(await suffer(fire, fault, random))
    told(capsys, members, {name: times for name, times in spent_s.items() if times})


async def test_what_a_deposed_leader_hears_is_not_granted(tmp_path: Path) -> None:
    """A node and a client that reach only the old leader get no answers, while the others go on."""
    async with under_fire(tmp_path, 3) as fire:
        leader = await fire.leader()
        alone = fire.client("n1", leader, deadline_s=20.0)
        registered = await alone.register(NodeRegisterRequest("n1", "ps", (), "h", 1))
        alone.deadline_s = 1.5
        fire.links.isolate([leader], [name for name in fire.addresses if name != leader])
        for call in (alone.read("/jobs/t/"), alone.beacon("n1", registered.incarnation)):
            with pytest.raises(UnreachableError):
                await call
        with pytest.raises(UnreachableError):
            await alone.compare_and_set(ConfigChanges({}, {"/jobs/t/d": b"alone"}))
        await fire.commits()
        fire.links.cut.clear()
        alone.deadline_s = 30.0
        await alone.read("/jobs/t/")
        await alone.close()


@pytest.mark.slow
async def test_without_a_majority_nothing_is_granted_training_goes_on_and_status_says_why(
    tmp_path: Path,
    adamctl: Runner,  # noqa: F811
) -> None:
    async with under_fire(tmp_path, 3, clients=1) as fire:
        where = ",".join(fire.addresses.values())

        def start(role: str, *arguments: str) -> None:
            adamctl.start(role, "start", "--controller-deadline", "120", *arguments, ADAMCTL_CONTROLLER=where)

        start("ps", "--name", "ps-1")
        start("data", "--name", "data-1")
        start("worker", "--name", "worker-1", "--threads", "1")
        experiment = ("--experiment", str(EXAMPLES / "digits.toml"), "--set", "train.passes=400")
        start("coordinator", *experiment, "--run-dir", str(tmp_path / "run"))
        command = adamctl.commands[-1]
        await asyncio.to_thread(command.wait_until, command.trained)
        leader = await fire.leader()
        gone = [leader, next(name for name in fire.addresses if name != leader)]
        for name in gone:
            fire.kill(name)
        before = _examples(tmp_path)
        asked = fire.client("ps-9", deadline_s=2.0)
        with pytest.raises(UnreachableError):
            await asked.register(NodeRegisterRequest("ps-9", "ps", (), "h", 1))
        with pytest.raises(UnreachableError):
            await asked.compare_and_set(ConfigChanges({}, {"/jobs/t/d": b"nobody"}))
        code, stdout, stderr = await asyncio.to_thread(adamctl.run, "status", ADAMCTL_CONTROLLER=where)
        assert code == 3 and "knows no leader" in stdout, stdout
        assert "1 of 3 controllers answer, 2 are needed" in stderr and "Traceback" not in stderr, stderr
        await asyncio.to_thread(command.wait_until, lambda: _examples(tmp_path) > before)
        for name in gone:
            fire.start(name)
        await fire.commits()
        code, stdout, stderr = await asyncio.to_thread(adamctl.run, "status", "--json", ADAMCTL_CONTROLLER=where)
        assert code in (0, 4), stderr
        found = json.loads(stdout)
        assert {one["name"] for one in found["controller"]["members"]} == set(fire.addresses)
        assert {"ps-1", "worker-1", "data-1"} <= {node["node"] for node in found["nodes"]}
        assert "ps-9" not in {node["node"] for node in found["nodes"]}
        await asked.close()
        await asyncio.to_thread(_end, adamctl)  # while there are controllers to take leave of


def _end(runner: Runner) -> None:
    running = [command for command in runner.commands if command.process.poll() is None]
    for command in running:
        command.process.terminate()
    for command in running:
        command.wait(60)


def _examples(folder: Path) -> int:
    """Returns how many examples a run has counted."""
    lines = [line for file in folder.rglob("metrics.jsonl") for line in file.read_text().splitlines()]
    return max((json.loads(line).get("examples", 0) for line in lines), default=0)
