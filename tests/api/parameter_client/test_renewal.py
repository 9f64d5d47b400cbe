"""Clients that servers have forgotten: nothing is lost in silence, and nothing is applied twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

import adamctl as adam
from adamctl.api.parameter_client.renewal import FormerClients, Identity, evicted, push_again
from adamctl.errors import DeadlineError, RemoteError, UnreachableError
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.ps.client.parameter_client import RefusedPart
from adamctl.roles.ps.client.rollback import Rollbacks
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges
from tests.api.cluster_for_tests import TOKEN, address_of, start
from tests.cluster import memory_cluster

PUSHES_MAX = 1000
FORGOTTEN = RefusedPart(3, ErrorCode.CLIENT_EVICTED, "forgotten")


def test_a_client_waits_for_its_own_cluster_where_a_new_controller_stands() -> None:
    """It is still empty, and its client would be told that there is no such job."""

    async def scenario() -> None:
        async with memory_cluster() as cluster:
            await cluster.client.compare_and_set(ConfigChanges({}, {"/jobs/t/a": b"1"}))
            cluster.network.tls = None  # type: ignore[attr-defined]
            identity = Identity(cluster.network, ["memory://controller-0"], "", 5.0)  # type: ignore[arg-type]
            await identity.begin()
            await cluster.kill("controller-0")
            await cluster.open(identity=2)
            with pytest.raises(UnreachableError, match="belongs to cluster"):
                await identity.store.read("/jobs/t/")
            with pytest.raises(UnreachableError, match="belongs to cluster"):
                await identity.restart()
            await identity.end_beacons()
            await identity.store.close()

    run_virtual(scenario())


def test_the_controllers_are_asked_for_as_long_as_a_call_may_wait() -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            cluster.network.tls = None  # type: ignore[attr-defined]
            identity = Identity(cluster.network, ["memory://controller-0"], "", 5.0)  # type: ignore[arg-type]
            await identity.begin()
            await cluster.kill("controller-0")
            with pytest.raises(UnreachableError, match="within 5 s"):
                await identity.store.read("/jobs/t/")
            await identity.end_beacons()
            await identity.store.close()

    run_virtual(scenario())


def test_a_push_waits_no_longer_than_its_deadline_in_all() -> None:
    """For those before it, so that a client that was given up may join again, and then for their acknowledgement."""

    async def may_join_again(pending: set[asyncio.Task[None]], deadline_s: float) -> bool:
        await asyncio.wait(pending, timeout=deadline_s)
        return False

    async def scenario() -> None:
        ps = adam.AsyncParameterClient("adam://127.0.0.1:1/j", token=TOKEN, deadline_s=10, pushes_max=1)
        before = asyncio.create_task(asyncio.sleep(1000))
        ps._pending.add(before)
        ps._servers = ps._identity = SimpleNamespace(listed=False, may_join_again=may_join_again)  # type: ignore[assignment]
        ps._arrays = SimpleNamespace(give_back=lambda staged: None)  # type: ignore[assignment]
        async with asyncio.timeout(11):
            with pytest.raises(DeadlineError, match="were not acknowledged within 10 s"):
                await ps.submit(None)  # type: ignore[arg-type]
        before.cancel()

    run_virtual(scenario())


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a controller that retires whoever has been gone for a second."""
    processes = [
        start("controller", "start", "--dir", str(tmp_path_factory.mktemp("controller")), "--lost-after", "2",
              "--retire-after", "2")
    ]  # fmt: skip
    try:
        address = address_of(processes[0])
        processes.append(start("ps", "start", "--name", "ps-0", "--apply-threads", "1", "--controller", address))
        address_of(processes[1])
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.communicate(timeout=30)


@pytest.mark.parametrize("wire", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def test_a_forgotten_client_begins_anew_and_pushes_again_what_was_refused(forgetful: str, wire: str) -> None:
    """It has been cut off from the controllers for longer than they wait."""
    url = f"adam://{forgetful}/{wire}"
    async with adam.AsyncParameterClient(url, token=TOKEN, deadline_s=60, wire_push=wire) as ps:  # type: ignore[arg-type]
        await ps.register({"w": np.zeros(300_000, np.float32), "b": np.zeros(3, np.float32)})
        first = ps._identity.incarnation
        await ps._identity.end_beacons()
        await ps._store.leave(ps._identity.node, first, deadline_s=60)
        pushes = 0
        while ps._identity.incarnation == first and pushes < PUSHES_MAX:
            for _ in range(3):  # several on their way when it is told
                await ps.add({"w": np.full(300_000, 1, np.float32), "b": np.full(3, 2, np.float32)})
                pushes += 1
            await ps.wait()
            await asyncio.sleep(0.05)
        assert ps._identity.incarnation > first
        await ps.add({"b": np.full(3, 2, np.float32)})
        await ps.wait()
        values = await ps.pull()
        assert set(values["w"].tolist()) == {pushes} and set(values["b"].tolist()) == {2 * pushes + 2}
        await ps.close(end=True)


async def test_what_may_have_been_applied_is_not_pushed_again() -> None:
    other = RefusedPart(3, ErrorCode.NOT_FINITE, "NaN")
    assert evicted([other, FORGOTTEN]) == [FORGOTTEN]
    unsure = RefusedPart(4, ErrorCode.CLIENT_EVICTED, "forgotten", unsure=True)
    with pytest.raises(RemoteError, match=r"shard 4: .* it is unknown whether that push was applied") as caught:
        await push_again(None, None, [FORGOTTEN, unsure])  # type: ignore[arg-type]
    assert caught.value.code == ErrorCode.CLIENT_EVICTED


class Former:
    """A client whose pushes are answered when `answered` is set, and then tell of two that were lost."""

    def __init__(self) -> None:
        self.answered, self.closed = asyncio.Event(), False
        self.rollbacks = Rollbacks("j", lambda text: None)

    async def idle(self) -> None:
        await self.answered.wait()
        self.rollbacks.told("ps-0", 1, 2)

    async def close(self) -> None:
        self.closed = True


async def test_a_former_client_is_closed_when_its_pushes_and_pulls_are_answered() -> None:
    pulling = asyncio.Lock()
    clients, quick, slow = FormerClients(pulling), Former(), Former()
    clients.add(quick)  # type: ignore[arg-type]
    clients.add(slow)  # type: ignore[arg-type]
    async with pulling:
        quick.answered.set()
        await asyncio.sleep(0.01)
        assert not quick.closed and clients.rolled_back == 2
    await asyncio.sleep(0.01)
    assert quick.closed and not slow.closed and clients.rolled_back == 2
    await clients.close()
    assert slow.closed


async def test_a_client_that_was_given_up_joins_again_before_servers_forget_it(url: str) -> None:
    """Its process paused for longer than the controllers wait; they retire it ten minutes later."""
    async with adam.AsyncParameterClient(url, token=TOKEN, deadline_s=60) as ps:
        await ps.register({"w": np.zeros(300_000, np.float32)})
        first, former = ps._identity.incarnation, ps._servers
        assert former is not None
        await ps._store.leave(ps._identity.node, first, deadline_s=60)
        for _ in range(3):  # on their way when it learns of it
            await ps.add({"w": np.ones(300_000, np.float32)})
        async with asyncio.timeout(60):
            while ps._identity.listed:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await ps.add({"w": np.ones(300_000, np.float32)})
        assert ps._identity.incarnation > first and ps._identity.listed
        await ps.add({"w": np.ones(300_000, np.float32)})
        await ps.wait()
        assert set((await ps.pull())["w"].tolist()) == {5.0}
        assert ps._servers is not former and not any(former.transports().values())
        await ps.close(end=True)
