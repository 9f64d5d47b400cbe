"""What a client's pushes and pulls travel as: checked, announced, and carried out off the event loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.rule import RuleConfig
from adamctl.net.handshake import FEATURES
from adamctl.roles.ps.client.push_set import PushSet
from adamctl.roles.ps.client.rounding import HERE_ELEMENTS_MAX
from adamctl.roles.ps.client.wire_choice import WireChoice, check_wire_types
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import (
    TWO,
    add_job,
    make_client,
    make_layout,
    pulled,
    push_of,
    random_flat,
    start_servers,
)


@pytest.mark.parametrize(("push", "pull", "name"), [("half", "float32", "wire_push"), ("float32", "", "wire_pull")])
def test_an_unknown_type_is_told_what_there_is(push: str, pull: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: expected dtype float32, bfloat16 or float16; found"):
        check_wire_types(push, pull)
    with pytest.raises(ConfigurationError, match=name):
        WireChoice(push, pull)  # type: ignore[arg-type]


@pytest.mark.parametrize(("push", "pull"), [("bfloat16", "float32"), ("float32", "float16")])
def test_a_server_that_does_not_know_them_is_named(push: str, pull: str) -> None:
    choice = WireChoice(push, pull)  # type: ignore[arg-type]
    choice.check("ps-3", FEATURES)
    with pytest.raises(ConfigurationError, match=r"ps-3 to support b?float16 on the wire; found an older version"):
        choice.check("ps-3", ())


async def test_float32_needs_nothing_of_a_server_and_rounds_nothing() -> None:
    choice, layout = WireChoice("float32", "float32"), make_layout()
    choice.check("ps-3", ())
    await choice.begin(layout)
    assert choice.start(PushSet(layout, 0.1)) is None
    choice.close()


async def test_to_begin_twice_keeps_what_rounding_left() -> None:
    choice, layout = WireChoice("bfloat16", "float32"), make_layout()
    push = PushSet(layout, 0.1)
    push.gradient(1, np.full(12, 1 + 2.0**-8, np.float32))  # half a step above 1: down first, then up
    sent = []
    for _ in range(2):
        await choice.begin(layout)
        rounding = choice.start(push)
        assert rounding is not None
        sent.append(rounding.push.updates[1].values.copy())
    assert (sent[0] != sent[1]).all()
    choice.close()


async def test_clients_that_each_push_a_part_leave_what_one_client_leaves() -> None:
    """As the partitions of a replica do: each rounds the rows that it sends, with what was left of them."""
    shapes, ends = ((600, 1000), (600,)), {}
    async with memory_cluster(3) as cluster:
        await start_servers(cluster, *TWO)
        for job, parts in {"one": 1, "three": 3}.items():
            layout = await add_job(cluster, job, TWO, RuleConfig("sgd"), shapes=shapes)
            assert len(layout.shards) >= 3
            options = {"wire_push": "bfloat16", "wire_pull": "float16"}
            clients = [await make_client(cluster, job, f"{job}-{part}", **options) for part in range(parts)]
            for seed in range(3):
                for part, client in enumerate(clients):
                    every = len(layout.shards)
                    own = tuple(range(part * every // parts, (part + 1) * every // parts))
                    push = push_of(layout, random_flat(layout, seed), 0.1)
                    pending = client.start_push(push, only=own) if parts > 1 else client.start_push(push)
                    await pending.wait(60)
            ends[job] = [values.tobytes() for values in await pulled(clients[0])]
            for client in clients:
                await client.close()
    assert ends["one"] == ends["three"]


@pytest.mark.parametrize("elements", [1, HERE_ELEMENTS_MAX + 1])
async def test_much_is_widened_in_a_thread_and_little_here(elements: int) -> None:
    choice = WireChoice("float32", "bfloat16")
    await choice.begin(make_layout())
    threads = []
    await choice.widen(elements, lambda: threads.append(threading.get_ident()))
    assert (threads == [threading.get_ident()]) is (elements == 1)
    choice.close()


async def test_who_is_cancelled_meanwhile_returns_when_the_work_is_over() -> None:
    choice = WireChoice("float32", "bfloat16")
    await choice.begin(make_layout())
    begun, go_on, over = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert go_on.wait(30)
        over.append(True)

    task = asyncio.create_task(choice.widen(HERE_ELEMENTS_MAX + 1, work))
    await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert over == [True]
    choice.close()
