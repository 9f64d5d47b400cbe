"""Ray as an engine: a real cluster of Ray on this machine, real actors, nodes that are killed, removed and frozen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.launch.places.engines import EngineOptions, open_engine
from adamctl.launch.places.places import Draining, HostNeeds, Lost
from tests.launch.places.agents import PROGRAM, Following, Front, listening, none_left, running
from tests.launch.places.ray_cluster import CORES, RayCluster, ray_cluster

NEEDS = HostNeeds(CORES)
REPLACED_S = 120.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started() -> Iterator[RayCluster]:
    with ray_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(started: RayCluster) -> Iterator[RayCluster]:
    yield started
    started.clear()


@asynccontextmanager
async def engine(cluster: RayCluster, **settings: Any) -> AsyncIterator[tuple[Any, Front, list[str]]]:
    from adamctl.launch.places.ray import RayPlaces

    notes: list[str] = []
    async with listening() as front:
        options = EngineOptions("digits/001", Path.cwd(), cluster.environment, notes.append)
        places = RayPlaces(options, **settings)
        try:
            yield places, front, notes
        finally:
            await places.end()
        pids = [agent["pid"] for agent in front.agents]
        await none_left(pids)


async def test_each_node_gets_an_agent_with_a_name_of_its_own(cluster: RayCluster) -> None:
    nodes = [cluster.add_node(), cluster.add_node()]
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 2)
        assert len(set(front.named())) == 2
        assert {cluster.node_of(agent["pid"]) for agent in front.agents} == set(nodes)
        for agent in front.agents:
            assert agent["token"] == "a secret"
            assert agent["threads"] == "1", "Ray's OMP_NUM_THREADS"


async def test_an_agent_that_ends_is_lost_with_its_last_line(cluster: RayCluster) -> None:
    cluster.add_node()
    async with engine(cluster) as (places, front, _):
        await places.begin(1, NEEDS, front.command("--fail"))
        following = Following(places)
        await following.until(bool)
        [lost] = following.notices
        assert isinstance(lost, Lost)
        assert lost.why == "its agent ended with status 7: error: no such folder"
    await following.ended()


async def test_the_agent_of_a_killed_actor_ends_and_another_one_comes(cluster: RayCluster) -> None:
    """On the same node, as there is no other."""
    cluster.add_node(), cluster.add_node()
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 2)
        following = Following(places)
        agent = front.agents[0]
        psutil.Process(agent["pid"]).parent().kill()
        await following.until(bool)
        assert [notice.host for notice in following.notices] == [agent["name"]]
        await none_left([agent["pid"]])
        assert await places.one_more(f"host {agent['name']} was lost")
        await front.until(lambda front: len(front.agents) == 3)
        assert len(set(front.named())) == 3
        assert front.gone == [agent["name"]]


async def test_a_removed_node_is_lost_and_replaced_by_another(cluster: RayCluster) -> None:
    cluster.add_node(), cluster.add_node()
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 2)
        following = Following(places)
        agent = front.agents[0]
        cluster.remove_node(cluster.node_of(agent["pid"]))
        await none_left([agent["pid"]])
        assert await places.one_more("its lease ended")  # before Ray knows
        cluster.add_node()
        await front.until(lambda front: len(front.agents) == 3, REPLACED_S)
        await following.until(bool)
        assert [notice.host for notice in following.notices] == [agent["name"]]
        assert front.gone == [agent["name"]]


async def test_a_frozen_node_gets_no_replacement(cluster: RayCluster) -> None:
    """Ray believes it alive, and its cores are said to be there."""
    cluster.add_node(), cluster.add_node()
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 2)
        frozen = cluster.node_of(front.agents[0]["pid"])
        cluster.signal_node(frozen, signal.SIGSTOP)
        assert await places.one_more("its lease ended")
        new = cluster.add_node()
        await front.until(lambda front: len(front.agents) == 3, REPLACED_S)
        assert cluster.node_of(front.agents[2]["pid"]) is new
        cluster.signal_node(frozen, signal.SIGCONT)


async def test_two_hosts_that_are_wanted_at_once_get_two_nodes(cluster: RayCluster) -> None:
    cluster.add_node()
    async with engine(cluster) as (places, front, _):
        await places.begin(1, HostNeeds(1), front.command())
        assert await places.one_more("first")
        assert await places.one_more("second")
        cluster.add_node(), cluster.add_node()
        await front.until(lambda front: len(front.agents) == 3, REPLACED_S)
        assert len({cluster.node_of(agent["pid"]) for agent in front.agents}) == 3


async def test_too_few_nodes_are_said_and_end_the_begin(cluster: RayCluster) -> None:
    cluster.add_node()
    async with engine(cluster, begin_deadline_s=3.0) as (places, front, notes):
        with pytest.raises(UnreachableError, match=r"expected 3 nodes of Ray .*; of its 2 nodes 1 has 2 cores"):
            await places.begin(3, NEEDS, front.command())
        assert notes == [
            "waiting for Ray: expected 3 nodes of Ray with 2 free cores each; of its 2 nodes 1 has 2 cores, free or not"
        ]


async def test_a_node_that_ray_drains_is_said_with_its_deadline(cluster: RayCluster) -> None:
    cluster.add_node()
    async with engine(cluster) as (places, front, _):
        await places.begin(1, NEEDS, front.command())
        await front.until(lambda front: len(front.agents) == 1)
        following = Following(places)
        drain(cluster.address, cluster.node_of(front.agents[0]["pid"]).node_id, 100)
        await following.until(bool)
        [draining] = following.notices
        assert isinstance(draining, Draining)
        assert draining.host == front.agents[0]["name"]
        assert 0 < draining.deadline_s <= 100


def drain(address: str, node: str, deadline_s: int) -> None:
    command = Path(sys.executable).with_name("ray")
    line = [str(command), "drain-node", "--address", address, "--node-id", node, "--reason"]
    line += [
        "DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message",
        "spot",
        "--deadline-remaining-seconds",
        f"{deadline_s}",
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


async def test_another_version_on_a_node_is_refused(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.add_node()
    async with engine(cluster) as (places, front, _):
        monkeypatch.setattr("adamctl.launch.places.ray_calls.__version__", "9.9.9")
        with pytest.raises(ConfigurationError, match=r"has adamctl .*, expected 9\.9\.9 as here"):
            await places.begin(1, NEEDS, front.command())


def test_the_client_of_ray_is_refused_with_advice() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    options = EngineOptions("digits/001", Path.cwd(), {"RAY_ADDRESS": "ray://head:10001"})
    with pytest.raises(ConfigurationError, match="ray job submit"):
        open_engine("ray", options)


async def test_a_cluster_that_is_not_there_is_said(cluster: RayCluster) -> None:
    options = EngineOptions("digits/001", Path.cwd(), {"RAY_ADDRESS": "127.0.0.1:1"})
    places = open_engine("ray", options)
    async with listening() as front:
        with pytest.raises(UnreachableError, match=r"no cluster of Ray answers at 127\.0\.0\.1:1"):
            await places.begin(1, NEEDS, front.command())
        await places.end()


FRONT = """
    import asyncio, os, sys
    from pathlib import Path
    from adamctl.launch.places.places import AgentCommand, HostNeeds
    from adamctl.launch.places.engines import EngineOptions, open_engine

    async def main(program, front):
        places = open_engine("ray", EngineOptions("digits/001", Path.cwd(), os.environ, print))
        command = AgentCommand((sys.executable, program, "--front", front, "--ignore-term"), {})
        await places.begin(1, HostNeeds(2), command)
        await places.one_more("a test asks for it")
        await asyncio.sleep(1e6)

    asyncio.run(main(*sys.argv[1:]))
"""


async def test_nothing_is_left_of_a_front_that_was_killed(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.add_node(), cluster.add_node()
    script = tmp_path / "front.py"
    script.write_text(textwrap.dedent(FRONT))
    async with listening() as front:
        line = [sys.executable, str(script), str(PROGRAM), front.address]
        process = await asyncio.create_subprocess_exec(*line, env=cluster.environment, cwd=tmp_path)
        try:
            await front.until(lambda front: len(front.agents) == 2)
        finally:
            process.kill()
            await process.wait()
        await none_left([agent["pid"] for agent in front.agents])
    async with engine(cluster) as (places, front, _):
        await places.begin(2, NEEDS, front.command())  # all cores are free again
        await front.until(lambda front: len(front.agents) == 2)
        assert all(running(agent["pid"]) for agent in front.agents)
        assert os.getpid() not in [agent["pid"] for agent in front.agents]
