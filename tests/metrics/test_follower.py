"""A cluster is read within a bound: who is frozen is shown as down, asked no second time, and not waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from adamctl.metrics.follower import ClusterFollower
from adamctl.metrics.samples import ClusterReading
from adamctl.metrics.serving import metrics_hello
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.client import ControllerClient
from adamctl.wire.messages import Empty
from tests.cluster import ClusterInMemory, memory_cluster

CONTROLLER = "memory://controller-0"
DEADLINE_S = 0.5


async def serve(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    await context.stopping.wait()


def follower(cluster: ClusterInMemory) -> ClusterFollower:
    return ClusterFollower(cluster.network, [CONTROLLER], metrics_hello(""), node_deadline_s=DEADLINE_S)


def up(reading: ClusterReading) -> dict[str, bool]:
    return {node.node: node.status is not None for node in reading.nodes}


async def until(follower: ClusterFollower, holds: Callable[[ClusterReading], bool]) -> ClusterReading:
    async with asyncio.timeout(60):
        while not holds(reading := await follower.read()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return reading


def test_every_node_and_the_controller_are_asked() -> None:
    async def main() -> None:
        async with memory_cluster() as cluster:
            await cluster.start("ps", "ps-0", serve)
            await cluster.start("worker", "w-0", serve)
            async with follower(cluster) as following:
                reading = await until(following, lambda reading: len(reading.nodes) == 3)
                assert up(reading) == {"controller-0": True, "ps-0": True, "w-0": True}
                assert reading.roles == {"ps": 1, "worker": 1} and reading.age_s < 10
                (ps,) = (node for node in reading.nodes if node.node == "ps-0")
                assert ps.role == "ps" and ps.status is not None and ps.status["lease"]["valid"] is True
                await cluster.stop("w-0")
                await until(following, lambda reading: reading.roles == {"ps": 1, "worker": 0})

    run_virtual(main())


def test_a_frozen_node_is_down_and_holds_nobody_up() -> None:
    async def main() -> None:
        async with memory_cluster() as cluster:
            await cluster.start("ps", "ps-0", serve)
            await cluster.start("ps", "ps-1", serve)
            async with follower(cluster) as following:
                await until(following, lambda reading: up(reading).get("ps-1", False))
                cluster.network.partition(following._hello().node, "ps-1")
                loop = asyncio.get_running_loop()
                for _ in range(5):
                    began_s = loop.time()
                    reading = await following.read()
                    assert loop.time() - began_s <= DEADLINE_S + 0.1
                    assert up(reading) == {"controller-0": True, "ps-0": True, "ps-1": False}
                cluster.network.heal()
                await until(following, lambda reading: up(reading)["ps-1"])

    run_virtual(main())


def test_a_frozen_node_is_not_asked_again_meanwhile() -> None:
    async def main() -> None:
        async with memory_cluster() as cluster:
            await cluster.start("ps", "ps-0", serve)
            async with follower(cluster) as following:
                await until(following, lambda reading: up(reading).get("ps-0", False))
                own = following._hello().node
                cluster.network._keep_trace = True
                cluster.network.partition("ps-0", own)  # the question arrives, the answer does not
                for _ in range(8):
                    await following.read()
                sent = [line for line in cluster.network.trace if line[1:3] == (own, "ps-0")]
                assert len(sent) == 1, sent

    run_virtual(main())


def test_one_reading_serves_all_who_ask_at_once() -> None:
    async def main() -> None:
        async with memory_cluster() as cluster, follower(cluster) as following:
            found = await asyncio.gather(*(following.read() for _ in range(5)))
            assert all(reading is found[0] for reading in found)
            assert await following.read() is not found[0]

    run_virtual(main())


def test_without_controllers_nodes_are_still_asked_and_the_age_grows() -> None:
    async def main() -> None:
        async with memory_cluster() as cluster:
            await cluster.start("ps", "ps-0", serve)
            quiet = logging.getLogger("quiet")
            async with ClusterFollower(
                cluster.network, [CONTROLLER], metrics_hello(""), node_deadline_s=DEADLINE_S, log=quiet
            ) as following:
                await until(following, lambda reading: up(reading).get("ps-0", False))
                own = following._hello().node
                cluster.network.partition(own, "controller-0", both_ways=True)
                await asyncio.sleep(30)
                reading = await following.read()
                assert up(reading) == {"controller-0": False, "ps-0": True} and reading.age_s > 20
                cluster.network.heal()
                await until(following, lambda reading: reading.age_s < 10 and up(reading)["controller-0"])

    run_virtual(main())


def test_a_controller_that_was_replaced_is_not_down_for_ever() -> None:
    """Whether its address was given or learned."""
    given = [f"tcp://{name}:7070" for name in ("a", "b", "elsewhere")]
    following = ClusterFollower(MemoryNetwork(Random(1)), given, metrics_hello(""))

    def readings(members: str, answering: str) -> dict[str, bool]:
        listed = [{"name": name, "address": f"tcp://{name}:7070"} for name in members]
        answers = {("controller", f"tcp://{name}:7070", 0): {"node": name, "members": listed} for name in answering}
        return {one.node: one.status is not None for one in following._controller_readings(answers)}

    unanswered = {"tcp://elsewhere:7070": False}
    assert readings("abc", "ab") == {"a": True, "b": True} | unanswered
    assert readings("abc", "abc") == {"a": True, "b": True, "c": True} | unanswered
    assert readings("abc", "a") == {"a": True, "b": False, "c": False} | unanswered, "lost, and not replaced yet"
    readings("ade", "a")
    assert readings("ade", "ade") == {"a": True, "d": True, "e": True} | unanswered
    assert readings("ade", "") == {"a": False, "d": False, "e": False} | unanswered


def test_a_controller_that_starts_over_is_counted() -> None:
    following = ClusterFollower(MemoryNetwork(Random(1)), ["tcp://a:7070"], metrics_hello(""))
    found = []
    for uptime_s in (9.0, 14.0, 2.0):
        answers = {("controller", "tcp://a:7070", 0): {"node": "a", "uptime_s": uptime_s}}
        found += [(one.node, one.restarts) for one in following._controller_readings(answers)]
    found += [(one.node, one.restarts) for one in following._controller_readings({})]
    assert found == [("a", 0), ("a", 0), ("a", 1), ("a", 1)]


def test_a_controller_that_is_known_by_two_addresses_is_counted_once() -> None:
    given, listed = "tcp://localhost:7070", "tcp://127.0.0.1:7070"
    following = ClusterFollower(MemoryNetwork(Random(1)), [given], metrics_hello(""))
    found = []
    for uptime_s in (9.0, 24.0, 39.0, 2.0, 17.0):
        status = {"node": "a", "members": [{"name": "a", "address": listed}]}
        answers = {
            ("controller", listed, 0): status | {"uptime_s": uptime_s + 0.001},
            ("controller", given, 0): status | {"uptime_s": uptime_s},
        }
        found += [(one.node, one.restarts) for one in following._controller_readings(answers)]
    assert found == [("a", 0), ("a", 0), ("a", 0), ("a", 1), ("a", 1)]


def test_the_configuration_is_read_from_controllers_that_came_later() -> None:
    given, quiet = ("tcp://a:7070", "tcp://b:7070"), logging.getLogger("quiet")
    members = [{"name": name, "address": f"tcp://{name}:7070"} for name in "bcd"]

    async def main() -> None:
        network = MemoryNetwork(Random(1))
        async with ClusterFollower(network, given, metrics_hello(""), node_deadline_s=0.0, log=quiet) as following:
            assert isinstance(following._store, ControllerClient) and following._store.addresses == given
            following._controller_readings({("controller", given[1], 0): {"node": "b", "members": members}})
            assert following._store.addresses == (*(f"tcp://{name}:7070" for name in "bcd"), given[0])

    run_virtual(main())


def test_who_comes_back_has_restarted() -> None:
    async def main() -> None:
        async with memory_cluster() as cluster:
            await cluster.start("ps", "ps-0", serve)
            async with follower(cluster) as following:
                await until(following, lambda reading: up(reading).get("ps-0", False))
                await cluster.kill("ps-0")
                await until(following, lambda reading: "ps-0" not in up(reading))
                await cluster.start("ps", "ps-0", serve)
                reading = await until(following, lambda reading: up(reading).get("ps-0", False))
                assert {node.node: node.restarts for node in reading.nodes}["ps-0"] == 1

    run_virtual(main())
