"""The in-memory network: every fault happens, the seed decides which, and time is virtual."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from adamctl.errors import DeadlineError, UnreachableError
from adamctl.net.connection import StreamConnection
from adamctl.net.handshake import make_hello
from adamctl.net.testing.faults import FaultPlan, LinkFaults
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.net.transport import Request
from adamctl.wire.messages import BenchBlockRequest, Empty, PushReply, PushRequest


class Cluster:
    """One server that notes what it is asked, one client."""

    def __init__(self, seed: int, faults: LinkFaults | None = None) -> None:
        self.network = MemoryNetwork(Random(seed), faults, keep_trace=True)
        self.seen: list[int] = []
        self.lost: list[int] = []

    def handle(self, request: Request) -> None:
        self.seen.append(getattr(request.message, "number", -1))
        request.reply(Empty())

    async def start(self) -> StreamConnection:
        await self.network.serve(["memory://ps"], make_hello("ps", "ps"), self.handle, on_disconnect=self.lost.append)
        return await self.network.connect("memory://ps", make_hello("worker", "w"), deadline_s=60)

    async def ask(self, connection: StreamConnection, number: int, deadline_s: float = 1.0) -> bool:
        try:
            await connection.request(BenchBlockRequest(number), [bytes(100)], deadline_s=deadline_s)
        except DeadlineError:
            return False
        return True


def session(seed: int, faults: LinkFaults) -> tuple[list[bool], Cluster]:
    """A hundred concurrent requests; returns which were answered."""
    cluster = Cluster(seed, faults)

    async def main() -> list[bool]:
        connection = await cluster.start()
        answered = await asyncio.gather(*(cluster.ask(connection, number) for number in range(100)))
        assert connection.in_flight_bytes == 0
        await asyncio.sleep(1)  # the second copies
        await connection.close()
        await asyncio.sleep(1)  # the news of it
        return answered

    return run_virtual(main()), cluster


def test_without_faults_everything_arrives_in_order() -> None:
    answered, cluster = session(1, LinkFaults(0.0, 5.0e-3))
    assert all(answered)
    assert cluster.seen == list(range(100))
    assert cluster.lost == [1]


def test_loss_is_a_deadline_error_at_the_client() -> None:
    answered, cluster = session(1, LinkFaults(loss=0.3))
    assert 20 < answered.count(True) < 80
    assert len(cluster.seen) < 100


def test_a_doubled_request_reaches_the_handler_twice_and_its_caller_once() -> None:
    answered, cluster = session(1, LinkFaults(duplication=0.5))
    assert all(answered)
    counts = Counter(cluster.seen)
    assert set(counts.values()) == {1, 2}
    assert 120 < len(cluster.seen) < 180


def test_reordered_frames_overtake() -> None:
    answered, cluster = session(1, LinkFaults(reordering=0.5))
    assert all(answered)
    assert sorted(cluster.seen) == list(range(100))
    assert cluster.seen != list(range(100))


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    faults = LinkFaults(loss=0.2, duplication=0.3, reordering=0.4)
    runs = [session(seed, faults) for seed in (7, 7, 8)]
    assert runs[0][0] == runs[1][0]
    assert runs[0][1].network.trace == runs[1][1].network.trace
    assert runs[0][1].seen == runs[1][1].seen
    assert runs[0][1].network.trace != runs[2][1].network.trace


def test_minutes_pass_in_an_instant() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        cluster = Cluster(1)
        connection = await cluster.start()
        cluster.network.partition("w", "ps")
        assert not await cluster.ask(connection, 1, deadline_s=3600.0)
        return loop.time()

    assert 3600 <= run_virtual(main()) < 3601


@pytest.mark.parametrize("direction", [("w", "ps"), ("ps", "w")])
def test_a_partition_is_one_way_and_heals(direction: tuple[str, str]) -> None:
    async def main() -> None:
        cluster = Cluster(1)
        connection = await cluster.start()
        cluster.network.partition(*direction)
        assert not await cluster.ask(connection, 1)
        assert cluster.seen == ([] if direction[0] == "w" else [1])
        with pytest.raises(DeadlineError, match="memory://ps"):
            await cluster.network.connect("memory://ps", make_hello("worker", "w"), deadline_s=1)
        cluster.network.heal(*direction)
        assert await cluster.ask(connection, 2)

    run_virtual(main())


def test_a_partition_takes_what_is_on_its_way() -> None:
    async def main() -> None:
        cluster = Cluster(1, LinkFaults(1.0, 1.0))
        connection = await cluster.start()
        task = asyncio.ensure_future(cluster.ask(connection, 1, deadline_s=10))
        await asyncio.sleep(0.5)
        cluster.network.partition("w", "ps")
        assert not await task
        assert cluster.seen == []

    run_virtual(main())


def test_faults_of_one_link_are_that_links_alone() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        first = await cluster.start()
        second = await cluster.network.connect("memory://ps", make_hello("worker", "other"), deadline_s=60)
        cluster.network.set_faults(LinkFaults(loss=1.0), "w", "ps")
        assert not await cluster.ask(first, 1)
        assert await cluster.ask(second, 2)

    run_virtual(main())


def test_a_crash_breaks_connections_and_a_silent_one_leaves_them_hanging() -> None:
    async def main() -> None:
        for silent in (False, True):
            cluster = Cluster(1)
            connection = await cluster.start()
            cluster.network.crash("ps", silent=silent)
            with pytest.raises(DeadlineError if silent else UnreachableError):
                await connection.request(BenchBlockRequest(1), deadline_s=5)
            with pytest.raises(UnreachableError):
                await cluster.network.connect("memory://ps", make_hello("worker", "w"), deadline_s=5)

    run_virtual(main())


def test_a_crashed_client_is_noticed_by_its_server() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        await cluster.start()
        cluster.network.crash("w")
        await asyncio.sleep(1)
        assert cluster.lost == [1]

    run_virtual(main())


def test_a_body_is_taken_after_reply_has_returned_and_on_sent_says_when() -> None:
    """As over TCP: who writes into a buffer before `on_sent` sends a torn body, and a test can see it."""

    async def main() -> None:
        network = MemoryNetwork(Random(1))
        value = bytearray(b"before")
        sent: list[bytes] = []

        def handle(request: Request) -> None:
            request.reply(PushReply(()), [value], on_sent=lambda: sent.append(bytes(value)))
            assert not sent
            value[:] = b"during"

        await network.serve(["memory://ps"], make_hello("ps", "ps"), handle)
        connection = await network.connect("memory://ps", make_hello("worker", "w"), deadline_s=5)
        reply = await connection.request(PushRequest("j", {}, 0.1, 1, 1, (), ()), deadline_s=5)
        assert bytes(reply.body) == b"during"
        assert sent == [b"during"]
        reply.release()

    run_virtual(main())


def test_a_plan_draws_as_often_whatever_happens() -> None:
    def draw(faults: LinkFaults) -> list[Any]:
        plan = FaultPlan(Random(3), faults)
        return [plan.fate(("a", "b")) for _ in range(50)]

    plain, lossy = draw(LinkFaults()), draw(LinkFaults(loss=0.5))
    assert [fate for fate in lossy if fate] != plain
    assert all(fate in ([], clean) for fate, clean in zip(lossy, plain, strict=True))
