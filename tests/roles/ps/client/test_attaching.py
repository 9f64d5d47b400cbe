"""How long a client waits until all servers of a job serve their parts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adamctl.errors import DeadlineError
from adamctl.model.rule import RuleConfig
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.ps import server
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.ps.jobs.copy_builder import Copies
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import add_job

MAKING_S = 100.0
"""How long a server takes to make its part here: a large model, or a checkpoint on a slow disk."""


@pytest.fixture(autouse=True)
def slow_making(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Copies._make

    async def slowly(self: Copies, *arguments: Any) -> None:
        await asyncio.sleep(MAKING_S)
        await make(self, *arguments)

    monkeypatch.setattr(Copies, "_make", slowly)


def test_a_server_that_makes_its_part_is_waited_for_beyond_the_deadline() -> None:
    async def scenario() -> None:
        async with memory_cluster(15) as cluster:
            await cluster.start("ps", "ps-0", server.run, {"apply_threads": "0"})
            await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
            client = ParameterClient.from_context(await cluster.context("worker", "w"), "a")
            await client.attach(deadline_s=MAKING_S / 10)
            await client.close()

    run_virtual(scenario())


def test_one_that_dies_while_it_makes_its_part_is_not() -> None:
    async def scenario() -> None:
        async with memory_cluster(16) as cluster:
            await cluster.start("ps", "ps-0", server.run, {"apply_threads": "0"})
            await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
            client = ParameterClient.from_context(await cluster.context("worker", "w"), "a")
            attaching = asyncio.create_task(client.attach(deadline_s=MAKING_S / 10))
            await asyncio.sleep(MAKING_S / 2)
            assert not attaching.done()
            await cluster.kill("ps-0")
            with pytest.raises(DeadlineError, match="could not attach within 10 s"):
                await asyncio.wait_for(attaching, MAKING_S / 4)
            await client.close()

    run_virtual(scenario())
