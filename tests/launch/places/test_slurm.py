"""Slurm as an engine: a real slurmctld and real slurmd on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.launch.places.engines import EngineOptions
from adamctl.launch.places.places import Draining, HostNeeds, Lost
from adamctl.launch.places.slurm import SlurmPlaces, stop_deadline_in_job_s
from adamctl.launch.scripts.slurm import slurm_script
from adamctl.launch.scripts.wanted import Wanted
from tests.launch.places.agents import PROGRAM, Following, Front, becomes, listening, none_left
from tests.launch.places.slurm_cluster import CORES, SlurmCluster, slurm_cluster

POLL_S = 0.3
NEEDS = HostNeeds(CORES)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), 4) as started:
        yield started


@pytest.fixture(autouse=True)
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands are found, as on a login node."""
    if "cluster" in request.fixturenames:
        cluster = request.getfixturevalue("cluster")
        monkeypatch.setenv("PATH", cluster.environment["PATH"])
        cluster.until(lambda: not cluster.jobs())


@asynccontextmanager
async def engine(cluster: SlurmCluster, **flags: str) -> AsyncIterator[tuple[SlurmPlaces, Front, list[str]]]:
    notes: list[str] = []
    async with listening() as front:
        given = {f"slurm-{name}": value for name, value in flags.items()}
        options = EngineOptions("digits/001", cluster.folder, cluster.environment, notes.append, given)
        places = SlurmPlaces(options, POLL_S)
        try:
            yield places, front, notes
        finally:
            front.close()
            await places.end()
            await asyncio.to_thread(cluster.until, lambda: not cluster.jobs())


async def test_each_node_of_one_job_gets_an_agent_that_knows_its_node(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        await places.begin(3, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 3)
        assert len(cluster.jobs()) == 1
        assert len(set(front.named())) == 3
        for agent in front.agents:
            assert agent["name"] == agent["node"]
            assert agent["token"] == "a secret"
        shown = cluster.command("scontrol", "show", "job", cluster.jobs()[0].split()[0])
        assert "a secret" not in shown
        assert "Requeue=0" in shown
        pids = [agent["pid"] for agent in front.agents]
    await none_left(pids)


async def test_the_end_of_one_agent_ends_no_other(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 2)
        os.kill(front.agents[0]["pid"], signal.SIGKILL)
        await front.until(lambda front: len(front.gone) == 1)
        await asyncio.sleep(3 * POLL_S)
        assert front.gone == [front.agents[0]["name"]]


async def test_a_lost_node_is_said_and_the_others_stay(cluster: SlurmCluster) -> None:
    """Even the node that ran the job's script."""
    async with engine(cluster) as (places, front, _):
        await places.begin(3, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 3)
        following = Following(places)
        await asyncio.sleep(2 * POLL_S)
        node = sorted(front.named())[0]
        cluster.signal_node(node, signal.SIGKILL)
        await front.until(lambda front: front.gone == [node])
        try:
            await following.until(bool)
            [lost] = following.notices
            assert isinstance(lost, Lost)
            assert lost.host == node
            assert node in lost.why
            assert await places.one_more(f"host {node} was lost")
            await front.until(lambda front: len(front.agents) == 4)
            last = front.agents[-1]
            assert last["name"].startswith(f"{last['node']}-")
            assert last["name"].rpartition("-")[2].isdecimal()
            assert len(front.gone) == 1
        finally:
            cluster.start_node(node)
    await following.ended()
    cluster.until(lambda: cluster.command("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "4")


async def test_too_few_nodes_are_said_with_their_number(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        with pytest.raises(UnreachableError, match=r"expected 9 hosts with 2 cores; this Slurm cluster has 4 such"):
            await places.begin(9, NEEDS, front.command())


async def test_too_many_cores_are_said_with_the_number_of_nodes(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        with pytest.raises(UnreachableError, match="expected 1 hosts with 64 cores; this Slurm cluster has 0 such"):
            await places.begin(1, HostNeeds(64), front.command())


async def test_a_partition_that_is_not_there_is_said(cluster: SlurmCluster) -> None:
    async with engine(cluster, partition="none") as (places, front, _):
        with pytest.raises(UnreachableError, match="partition none has 0 such nodes"):
            await places.begin(1, NEEDS, front.command())


async def test_what_slurm_refuses_is_said_in_its_words(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        with pytest.raises(ConfigurationError, match=r"Slurm refuses the job: .*[Mm]emory"):
            await places.begin(1, HostNeeds(CORES, memory_bytes=1 << 50), front.command())


async def test_a_slurm_that_is_not_there_is_said(cluster: SlurmCluster, tmp_path: Path) -> None:
    text = cluster.configuration.read_text()
    dead = tmp_path / "slurm.conf"
    dead.write_text(re.sub("SlurmctldPort=.*", "SlurmctldPort=1", text))
    environment = {**cluster.environment, "SLURM_CONF": str(dead)}
    places = SlurmPlaces(EngineOptions("digits/001", tmp_path, environment))
    async with listening() as front:
        with pytest.raises(UnreachableError, match=r"Slurm does not answer: .*slurm"):
            await places.begin(1, NEEDS, front.command())
        await places.end()


async def test_a_job_in_the_queue_says_what_it_waits_for_and_is_cancelled_with_the_run(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, notes):
        await places.begin(4, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 4)
        following = Following(places)
        assert await places.one_more("a test asks for it")
        await becomes(lambda: any(re.search("waits for its hosts: (Resources|Priority)", note) for note in notes))
    await following.ended()


async def test_a_time_limit_drains_the_hosts(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        await places.begin(2, HostNeeds(CORES, time_s=60), front.command())
        await front.until(lambda front: len(front.agents) == 2)
        following = Following(places)
        await following.until(lambda notices: len(notices) == 2)
        assert {type(notice) for notice in following.notices} == {Draining}
        assert sorted(notice.host for notice in following.notices) == front.named()
        assert all(0 < notice.deadline_s <= 60 for notice in following.notices if isinstance(notice, Draining))


async def test_a_node_that_an_administrator_drains_is_left(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 2)
        following = Following(places)
        node = front.named()[1]
        try:
            cluster.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=new disk")
            await following.until(bool)
            assert [(notice.host, "new disk" in notice.why) for notice in following.notices] == [(node, True)]
        finally:
            cluster.command("scontrol", "update", f"NodeName={node}", "State=RESUME")


async def test_a_cancelled_job_loses_all_its_hosts(cluster: SlurmCluster) -> None:
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 2)
        following = Following(places)
        await asyncio.sleep(3 * POLL_S)
        cluster.command("scancel", cluster.jobs()[0].split()[0])
        await following.until(lambda notices: len(notices) == 2)
        assert all("cancelled" in notice.why for notice in following.notices)


FRONT = """
    import asyncio, os, sys
    from pathlib import Path
    from adamctl.launch.places.engines import EngineOptions
    from adamctl.launch.places.places import AgentCommand, HostNeeds
    from adamctl.launch.places.slurm import SlurmPlaces

    async def main(program, front, hosts):
        places = SlurmPlaces(EngineOptions("digits/001", Path.cwd(), os.environ, print), 0.3)
        command = AgentCommand((sys.executable, program, "--front", front, "--ignore-term"), {})
        await places.begin(int(hosts), HostNeeds(2), command)
        await places.one_more("a test asks for it")
        await asyncio.sleep(1e6)

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("after_s", [0.0, 1.5])
async def test_nothing_is_left_of_a_front_that_was_killed(
    cluster: SlurmCluster, tmp_path: Path, after_s: float
) -> None:
    script = tmp_path / "front.py"
    script.write_text(textwrap.dedent(FRONT))
    async with listening() as front:
        line = [sys.executable, str(script), str(PROGRAM), front.address, "2"]
        process = await asyncio.create_subprocess_exec(
            *line, env=cluster.environment, stdout=subprocess.DEVNULL, cwd=tmp_path
        )
        try:
            if after_s:
                await front.until(lambda front: len(front.agents) == 3)
            else:
                await becomes(cluster.jobs)
        finally:
            process.kill()
            await process.wait()
        await asyncio.to_thread(cluster.until, lambda: not cluster.jobs())
        await none_left([agent["pid"] for agent in front.agents])


async def test_within_a_job_the_agents_are_a_step_of_it(cluster: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "front.py"
    script.write_text(textwrap.dedent(FRONT))
    async with listening() as front:
        line = f"exec {sys.executable} {script} {PROGRAM} {front.address} 2"
        options = ("-N2", "--no-kill", "--exclusive", "--cpus-per-task=2", f"--chdir={tmp_path}")
        cluster.command("sbatch", *options, "-o", str(tmp_path / "out"), f"--wrap={line}")
        try:
            await front.until(lambda front: len(front.agents) == 3)
            assert sorted(front.named())[:2] == sorted({agent["node"] for agent in front.agents[:2]})
            assert len(cluster.jobs()) == 2
        finally:
            for job in cluster.jobs():
                cluster.command("scancel", job.split()[0])
        await asyncio.to_thread(cluster.until, lambda: not cluster.jobs())
        await none_left([agent["pid"] for agent in front.agents])


async def test_a_job_that_lost_the_node_of_its_front_starts_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Slurm itself would leave it running, without a script and without an agent, until its time limit."""
    script = tmp_path / "front.py"
    script.write_text(textwrap.dedent(FRONT).replace("--ignore-term", "--alone"))
    async with listening() as front:
        line = f"exec {sys.executable} {script} {PROGRAM} {front.address} 2"
        options = ("-N2", "--no-kill", "--requeue", "--exclusive", "--cpus-per-task=2", f"--chdir={tmp_path}")
        job = cluster.command("sbatch", "--parsable", *options, f"--wrap={line}").strip()
        first = ""
        try:
            await front.until(lambda front: len(front.agents) == 3)
            first = cluster.command("squeue", "-h", "-j", job, "-o", "%B").strip()
            cluster.signal_node(first, signal.SIGKILL)
            front.close()  # after a minute alone agents end
            await asyncio.to_thread(cluster.until, lambda: f"{job} PENDING" in cluster.jobs())
            assert "Restarts=1" in cluster.command("scontrol", "show", "job", job)
        finally:
            cancel_all(cluster)
            cluster.start_node(first)
    idle = ("sinfo", "-h", "-t", "idle", "-o", "%D")
    await asyncio.to_thread(cluster.until, lambda: cluster.command(*idle).strip() == "4")


async def test_a_job_with_too_few_nodes_or_cores_is_said(cluster: SlurmCluster) -> None:
    outer = {**cluster.environment, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    async with listening() as front:
        places = SlurmPlaces(EngineOptions("digits/001", cluster.folder, outer))
        with pytest.raises(UnreachableError, match="expected 3 hosts; Slurm job 7 has 2: submit it with --nodes=3"):
            await places.begin(3, NEEDS, front.command())
        await places.end()
        places = SlurmPlaces(EngineOptions("digits/001", cluster.folder, {**outer, "SLURM_CPUS_ON_NODE": "1"}))
        with pytest.raises(UnreachableError, match="has 1 on this node: submit it with --exclusive --cpus-per-task=2"):
            await places.begin(2, NEEDS, front.command())
        await places.end()


# --- the script of `adamctl launch slurm` ---------------------------------------------------------------------------

TRAINS = """#!/bin/bash
echo "begin $*" >> {log}
trap 'echo checkpoint >> {log}; exit 143' TERM
sbatch --quiet -N1 --exclusive --job-name="adamctl-hosts-$SLURM_JOB_ID" --wrap="sleep 1000" > /dev/null
for i in $(seq 600); do sleep 0.1; done
"""
"""Stands for `adamctl`: asks for a replacement, and writes a checkpoint when it is told to end."""


def submit(cluster: SlurmCluster, folder: Path, *options: str) -> Path:
    """Submits the script with a stand-in for `adamctl`; returns the file that it writes to."""
    log = folder / "log"
    program = folder / "adamctl"
    program.write_text(TRAINS.format(log=log))
    program.chmod(0o755)
    script = folder / "run.sbatch"
    script.write_text(slurm_script(Wanted("digits", "digits.toml", 2, 4, CORES)))
    environment = {**cluster.environment, "PATH": f"{folder}:{cluster.environment['PATH']}"}
    line = ("sbatch", *options, f"--chdir={folder}", str(script))
    subprocess.run(line, env=environment, check=True, capture_output=True, timeout=60)
    return log


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_a_script_goes_on_from_its_checkpoint_after_the_time_limit(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Slurm holds a requeued job back for two minutes."""
    log = submit(cluster, tmp_path, "--time=1")
    try:
        cluster.until(lambda: "checkpoint" in lines(log))
        assert lines(log)[0] == "begin train digits.toml --on slurm --hosts 2:4 --cores 2 --resume none --plain"
        cluster.until(lambda: [job.split()[1] for job in cluster.jobs()] == ["PENDING"])
        cluster.until(lambda: len(lines(log)) > 2, 240)
        assert lines(log)[2] == "begin train digits.toml --on slurm --hosts 2:4 --cores 2 --resume auto --plain"
    finally:
        cancel_all(cluster)


def test_a_cancelled_script_writes_its_checkpoint_and_does_not_come_back(cluster: SlurmCluster, tmp_path: Path) -> None:
    log = submit(cluster, tmp_path)
    try:
        cluster.until(lambda: len(cluster.jobs()) == 2)
        cluster.command("scancel", "--name=adamctl-digits")  # not the job of one more node
        cluster.until(lambda: not cluster.jobs())
        assert lines(log)[1:] == ["checkpoint"]
    finally:
        cancel_all(cluster)


def cancel_all(cluster: SlurmCluster) -> None:
    for job in cluster.jobs():
        cluster.command("scancel", job.split()[0])
    cluster.until(lambda: not cluster.jobs())


async def test_a_last_checkpoint_gets_the_time_that_slurm_leaves(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CONF", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    assert await stop_deadline_in_job_s(cluster.environment, 20.0) == 20.0
    inside = {**cluster.environment, "SLURM_JOB_ID": "7"}
    assert await stop_deadline_in_job_s(inside, 20.0) == 0.0  # KillWait is 5 s here
